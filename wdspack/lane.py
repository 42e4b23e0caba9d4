"""One lane: samples in, packs out, each with the bookmark that continues after it.

    source 0 ─┐
    source 1 ─┼─ next_source ─▶ measure ─▶ RollingPacker ─▶ Packed(samples, bookmark)
    source 2 ─┘                    │            │
                                   └── ledger ──┘

A lane knows nothing of ranks, workers or other lanes, and what it yields depends on (run, lane) alone. That is what
makes a run independent of how many machines share it.
"""

import logging
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdspack import storage, tar
from wdspack.bookmark import ARRIVAL, EPOCH, NBYTES, OFFSET, SHARD, SOURCE, Bookmark, Cursor
from wdspack.errors import ResumeError, SampleError, ShardError
from wdspack.hashing import mix64
from wdspack.ledger import Counts, Ledger
from wdspack.mix import next_source
from wdspack.packing import RollingPacker, Totals, priority
from wdspack.run import Run
from wdspack.source import SourceReader
from wdspack.types import Place, RawSample, Sample

logger = logging.getLogger("wdspack")


@dataclass(frozen=True, slots=True)
class Packed:
    """A pack before its images are decoded.

    samples: in the order of their segments; none where a lane ends without a pack and only its books are left to
    hand over. bookmark: `Bookmark` as bytes. last: nothing of this lane will follow.
    """

    lane: int
    samples: tuple[Sample, ...]
    bookmark: bytes
    last: bool


class Lane:
    """Iterates over the packs of lane `number`, from its start or from a bookmark.

    Raises, while iterating:
        SampleError: under on_error="raise", or when more samples are dropped than max_drop_share allows.
        ShardError: a damaged shard, unless on_error="skip".
        ResumeError: a sample that the bookmark holds cannot be read again as it was.
    """

    def __init__(
        self, run: Run, number: int, bookmark: Bookmark | None = None, *, access: storage.Access | None = None
    ) -> None:
        """access: of the process, which all its lanes share."""
        self.run, self.number = run, number
        access = access or storage.Access(run.config.reading)
        self._sources = run.config.source_list
        start = bookmark or Bookmark(
            lane=number,
            packs=0,
            arrival=0,
            ended=False,
            totals=tuple(Totals()),
            cursors=(Cursor(),) * len(run.shards),
            held=np.zeros((0, 6), dtype=np.int64),
            check=0,
            ledger=Ledger(),
        )
        self._ledger = start.ledger.copy()
        self._counts = [self._ledger.sources.setdefault(source.name, Counts()) for source in self._sources]
        self._readers = [
            SourceReader(
                run.config,
                n,
                urls,
                lane=number,
                lanes=run.lanes,
                cursor=start.cursors[n],
                counts=self._counts[n],
                access=access,
            )
            for n, urls in enumerate(run.shards)
        ]
        self._live = [reader.live for reader in self._readers]
        self._packs, self._arrival, self._ended = start.packs, start.arrival, start.ended
        self._held, self._check = _Held(run.config.buffer_size), 0
        self._packer: RollingPacker[tuple[int, Sample]] = RollingPacker(
            run.budget, buffer_size=run.config.buffer_size, totals=Totals(*start.totals)
        )
        for row, sample in zip(start.held, _read_again(run, start, access), strict=True):
            self._push(int(row[ARRIVAL]), sample)
        if self._check != start.check:
            raise ResumeError(
                f"the samples that lane {number} held when the state was saved say something else now: shards were "
                "replaced; resume with the shards as they were"
            )

    def __iter__(self) -> Iterator[Packed]:
        try:
            while not self._ended:
                self._fill()
                chosen = self._packer.pop() if len(self._packer) else []
                if not len(self._packer):
                    self._fill()  # to know whether this pack is the last
                self._ended = not len(self._packer)
                yield self._emit(chosen)
        finally:
            for reader in self._readers:
                reader.close()

    def _fill(self) -> None:
        """Reads until the buffer is full or every source has ended."""
        config = self.run.config
        while not self._packer.full:
            served = [c.read if config.weigh == "samples" else c.tokens for c in self._counts]
            weights = [source.weight for source in self._sources]
            number = next_source(served, weights, self._live, config.seed, self.number)
            if number is None:
                return
            reader, counts = self._readers[number], self._counts[number]
            if (found := reader.next()) is None:
                self._live[number] = False
                continue
            counts.read += 1
            sample = self._measure(*found)
            if sample is not None:
                reader.used()
                counts.truncated += sample.truncated
                self._push(self._arrival, sample)
                self._arrival += 1

    def _measure(self, raw: RawSample, place: Place) -> Sample | None:
        counts, prompt = self._counts[place.source], self._sources[place.source].caption_prompt
        try:
            sample = self.run.measurer(raw, place, prompt)
        except SampleError as error:
            if self.run.config.on_error == "raise":
                raise SampleError(f"{raw.url}: sample {raw.key!r}: {error}", reason=error.reason) from error
            logger.debug("dropped %s %s: %s", raw.url, raw.key, error)
            # An unreadable sample counts as one token, so that a source of nothing else still moves its clock.
            counts.tokens += max(1, error.tokens)
            counts.dropped[error.reason] += 1
            self._ledger.check_drops(self.run.config.max_drop_share)
            return None
        counts.tokens += sample.size.tokens
        return sample

    def _push(self, arrival: int, sample: Sample) -> None:
        config = self.run.config
        rank = priority(config.seed, self.number, arrival, config.buffer_size, config.shuffle)
        self._held.add(arrival, sample.place)
        self._check ^= _fingerprint(arrival, sample)
        self._packer.push(sample.size, rank, (arrival, sample))

    def _emit(self, chosen: list[tuple[int, Sample]]) -> Packed:
        samples = tuple(sample for _, sample in chosen)
        self._held.remove([arrival for arrival, _ in chosen])
        for arrival, sample in chosen:
            self._check ^= _fingerprint(arrival, sample)
            self._counts[sample.place.source].packed += 1
        held = self._held.rows
        for n, counts in enumerate(self._counts):
            counts.held = int((held[:, SOURCE] == n).sum())
        count_pack(self._ledger, samples)
        self._packs += bool(samples)
        bookmark = Bookmark(
            lane=self.number,
            packs=self._packs,
            arrival=self._arrival,
            ended=self._ended,
            totals=tuple(self._packer.totals),
            cursors=tuple(reader.cursor for reader in self._readers),
            held=held,
            check=self._check,
            ledger=self._ledger,
        )
        return Packed(self.number, samples, bookmark.to_bytes(), self._ended)


def count_pack(ledger: Ledger, samples: tuple[Sample, ...], sign: int = 1) -> None:
    """Books a pack of these samples (sign=1), or takes back samples that a pack then left without (sign=-1)."""
    ledger.packs += sign == 1 and bool(samples)
    for sample in samples:
        tokens, images, tiles = sample.size
        ledger.tokens += sign * tokens
        ledger.images += sign * images
        ledger.tiles += sign * tiles
        ledger.attention += sign * tokens * tokens
        ledger.supervised += sign * int(sample.encoded.supervised.sum())


def _fingerprint(arrival: int, sample: Sample) -> int:
    """64 bits of a sample's name and tokens; those of all held samples are xor-ed into a bookmark's check."""
    return mix64(
        arrival, zlib.crc32(sample.key.encode(errors="replace")), zlib.crc32(sample.encoded.input_ids.tobytes())
    )


class _Held:
    """Places of the samples in the buffer: rows of integers in order of arrival, cheap to copy into a bookmark."""

    def __init__(self, capacity: int) -> None:
        self._rows = np.zeros((max(capacity, 1), 6), dtype=np.int64)
        self._n = 0

    def add(self, arrival: int, place: Place) -> None:
        if self._n == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._n] = (arrival, *place)
        self._n += 1

    def remove(self, arrivals: list[int]) -> None:
        kept = self.rows[~np.isin(self.rows[:, ARRIVAL], arrivals)]
        self._n = len(kept)
        self._rows[: self._n] = kept

    @property
    def rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self._rows[: self._n]


def _read_again(run: Run, bookmark: Bookmark, access: storage.Access) -> list[Sample]:
    """The held samples of a bookmark, in order of arrival: only their own bytes are read."""
    wanted: dict[tuple[int, int], list[int]] = defaultdict(list)
    for n, row in enumerate(bookmark.held):
        wanted[int(row[SOURCE]), int(row[SHARD])].append(n)
    samples: dict[int, Sample] = {}
    for (number, shard), rows in wanted.items():
        source, url = run.config.source_list[number], run.shards[number][shard]
        ranges = [(int(bookmark.held[n, OFFSET]), int(bookmark.held[n, NBYTES])) for n in rows]
        try:
            contents = storage.read_ranges(url, ranges, storage_options=source.storage_options, access=access)
            for n, extent, data in zip(rows, ranges, contents, strict=True):
                place = Place(number, int(bookmark.held[n, EPOCH]), shard, *extent)
                samples[n] = run.measurer(tar.read_sample(data, url, offset=place.offset), place, source.caption_prompt)
        except (ShardError, SampleError) as error:
            if error.reason in ("unreadable", "denied", "expired"):  # that says nothing of the shard
                raise
            raise ResumeError(
                f"{url}: a sample that waited in the buffer when the state was saved cannot be read as it was then "
                f"({error}); resume with the same shards"
            ) from error
    return [samples[n] for n in range(len(bookmark.held))]
