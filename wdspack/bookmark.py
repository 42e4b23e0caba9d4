"""Where a lane stands, in a few kilobytes: everything needed to produce its next pack.

A bookmark holds places, never contents: how far each source was read, and for every sample waiting in the buffer
where it stands in its shard. As bytes it is a JSON header and integer columns, delta-coded to the narrowest type that
holds them (about 10 bytes a held sample); `to_text` makes it fit into JSON.
"""

import base64
import json
import zlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdspack.errors import ResumeError
from wdspack.ledger import Ledger

FORMAT = 1
# Columns of `held`, one row a sample, in order of arrival.
ARRIVAL, SOURCE, EPOCH, SHARD, OFFSET, NBYTES = range(6)


class Cursor(NamedTuple):
    """How far a lane has read one source.

    epoch, position: the pass, and the place in the lane's list of shards for it. offset: the byte, in the
    decompressed shard, of the first member not yet in a sample. ordinal: number in the shard of the sample that
    starts there. read, usable: samples of this epoch so far.
    """

    epoch: int = 0
    position: int = 0
    offset: int = 0
    ordinal: int = 0
    read: int = 0
    usable: int = 0


@dataclass(frozen=True, slots=True)
class Bookmark:
    """State of a lane after a pack.

    packs: packs emitted. arrival: number of the next sample to enter the buffer. ended: no pack will follow.
    totals: the packer's running totals. cursors: one a source. held: (n, 6) int64, the columns named above.
    check: 64 bits of what the held samples say, so that a replaced shard is noticed.
    ledger: the lane's books, decode failures up to this pack included.
    """

    lane: int
    packs: int
    arrival: int
    ended: bool
    totals: tuple[int, ...]
    cursors: tuple[Cursor, ...]
    held: npt.NDArray[np.int64]
    check: int
    ledger: Ledger

    def to_bytes(self) -> bytes:
        columns = _encode(self.held)
        fields = {
            name: getattr(self, name) for name in ("lane", "packs", "arrival", "ended", "totals", "cursors", "check")
        }
        header = json.dumps(
            {"format": FORMAT, **fields, "held": len(self.held), "ledger": self.ledger.to_dict()},
            separators=(",", ":"),
        ).encode()
        return len(header).to_bytes(4, "little") + header + columns

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Bookmark":
        """Raises ResumeError for bytes that are no bookmark, or one of another format."""
        try:
            size = int.from_bytes(raw[:4], "little")
            header = dict(json.loads(raw[4 : 4 + size]))
            if header.pop("format") != FORMAT:
                raise ResumeError(f"a bookmark of another format than {FORMAT}: resume with the version that wrote it")
            held = _decode(raw[4 + size :], header.pop("held"))
            return cls(
                **{
                    **header,
                    "totals": tuple(header["totals"]),
                    "cursors": tuple(Cursor(*cursor) for cursor in header["cursors"]),
                    "held": held,
                    "ledger": Ledger.from_dict(header["ledger"]),
                }
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ResumeError(f"not a bookmark, or a damaged one ({error}); resume from another checkpoint") from error

    def with_late(self, late: Ledger) -> "Bookmark":
        """The same place with what happened after packing (decode failures, fillers) added to the books."""
        return replace(self, ledger=self.ledger.copy().add(late))

    def to_text(self) -> str:
        """For JSON: compressed, base64."""
        return base64.b64encode(zlib.compress(self.to_bytes(), 9)).decode()

    @classmethod
    def from_text(cls, text: str) -> "Bookmark":
        try:
            raw = zlib.decompress(base64.b64decode(text, validate=True))
        except (ValueError, zlib.error, TypeError) as error:
            raise ResumeError(f"not a bookmark, or a damaged one ({error}); resume from another checkpoint") from error
        return cls.from_bytes(raw)


def _encode(held: npt.NDArray[np.int64]) -> bytes:
    """Columns of differences, sorted by source so that neighbours in a shard are neighbours here.

    An offset is written as the gap from the end of the row before: zero for a run of untouched samples.
    """
    rows = held[np.argsort(held[:, SOURCE], kind="stable")].copy()
    ends = rows[:-1, OFFSET] + rows[:-1, NBYTES]
    rows[1:, OFFSET] -= ends
    parts = []
    for column in range(rows.shape[1]):
        values = rows[:, column]
        if column not in (OFFSET, NBYTES):
            values = np.diff(values, prepend=0)
        kind = next(k for k in ("<i1", "<i2", "<i4", "<i8") if _fits(values, k))
        parts.append(kind[-1].encode() + values.astype(kind).tobytes())
    return b"".join(parts)


def _decode(raw: bytes, n: int) -> npt.NDArray[np.int64]:
    rows, at = np.zeros((n, 6), dtype=np.int64), 0
    for column in range(6):
        width = int(raw[at : at + 1])
        values = np.frombuffer(raw, f"<i{width}", count=n, offset=at + 1).astype(np.int64)
        rows[:, column] = values if column in (OFFSET, NBYTES) else np.cumsum(values)
        at += 1 + n * width
    rows[:, OFFSET] = np.cumsum(rows[:, OFFSET]) + np.cumsum(rows[:, NBYTES]) - rows[:, NBYTES]
    return rows[np.argsort(rows[:, ARRIVAL], kind="stable")]


def _fits(values: npt.NDArray[np.int64], kind: str) -> bool:
    limits = np.iinfo(kind)
    return bool(len(values) == 0 or (values.min() >= limits.min and values.max() <= limits.max))
