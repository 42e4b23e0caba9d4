"""Where a consumer's time goes: what it waits for, and for how long.

    ├──────── first batch ────────┤├─ consumer ─┤├ storage, parsing, decoding, batching ┤├─ consumer ─┤ …
    workers start, buffers fill                   waited

A loader that is fast enough is one whose consumer is the bottleneck.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

logger = logging.getLogger("wdspack")

EVERY = 60.0  # seconds between two lines in the log
_UNNOTICED = 0.02  # share of the time that may be waited without anything but the consumer being called the bottleneck


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds since a loader was made, on this rank.

    first: until the first batch, and the first one after each restart. total: from then on, of which the consumer
    waited for `storage` (workers that wait for bytes), `parsing` (workers that read, tokenize and pack), `decoding`
    (and putting tensors together) and `batching` (choosing packs, books). The rest was the consumer's own. batches:
    delivered.
    """

    first: float = 0.0
    total: float = 0.0
    storage: float = 0.0
    parsing: float = 0.0
    decoding: float = 0.0
    batching: float = 0.0
    batches: int = 0

    @property
    def waited(self) -> float:
        """Share of `total` in which the consumer waited."""
        return sum(self._waits.values()) / self.total if self.total else 0.0

    @property
    def bottleneck(self) -> str:
        """What was waited for most: "storage", "parsing", "decoding" or "batching"; "consumer" if under 2 % in all."""
        return "consumer" if self.waited < _UNNOTICED else max(self._waits, key=self._waits.__getitem__)

    @property
    def _waits(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("storage", "parsing", "decoding", "batching")}

    def __sub__(self, earlier: "Timing") -> "Timing":
        """What came after an earlier reading."""
        return Timing(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})

    def __str__(self) -> str:
        waits = ", ".join(f"{name} {seconds / (self.total or 1):.1%}" for name, seconds in self._waits.items())
        return (
            f"{self.batches:,} batches in {self.total:.1f} s; the consumer waited {self.waited:.1%} of the time "
            f"({waits}); bottleneck: {self.bottleneck}"
        )


class Stopwatch:
    """Keeps a `Timing`, and writes a line to the log (INFO) every minute and when iterating ends."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("first", "total", "storage", "parsing", "decoding", "batching"), 0.0)
        self._batches = 0
        self._left: float | None = None  # when the last batch was handed over; None before the first one
        self._logged, self._logged_at = Timing(), time.monotonic()

    @property
    def timing(self) -> Timing:
        return Timing(batches=self._batches, **self._seconds)

    @contextmanager
    def batch(self) -> Iterator["Waits"]:
        """Around the making of one batch: what is put into `Waits` is booked when the batch is there."""
        begun, waits = time.monotonic(), Waits()
        yield waits
        now = time.monotonic()
        self._batches += 1
        if self._left is None:
            self._seconds["first"] += now - begun
            self._logged, self._logged_at = self.timing, now
        else:
            self._seconds["total"] += now - self._left
            storage = min(waits.packs, waits.storage)
            self._seconds["storage"] += storage
            self._seconds["parsing"] += waits.packs - storage
            self._seconds["decoding"] += waits.decoding
            self._seconds["batching"] += max(0.0, now - begun - waits.packs - waits.decoding)
        self._left = now
        if now - self._logged_at >= EVERY:
            self._log(now)

    def stop(self) -> None:
        """Iterating has ended, or is broken off: the time until it goes on is nobody's."""
        if self._left is not None:
            self._log(time.monotonic())
        self._left = None

    def _log(self, now: float) -> None:
        if (since := self.timing - self._logged).batches:
            logger.info("%s", since)
        self._logged, self._logged_at = self.timing, now


@dataclass(slots=True)
class Waits:
    """Seconds waited for one batch: packs from the workers, and their decoding.

    storage: what each worker waited for bytes since the batch before; as much of `packs` is the storage's fault.
    """

    packs: float = 0.0
    decoding: float = 0.0
    storage: float = 0.0
