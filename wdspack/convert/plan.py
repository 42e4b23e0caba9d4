"""Which rows make which shard: decided before anything is written, so that each shard can be made alone, by anyone.

parts     [0 ....... 99][100 ... 149][150 ........... 260]     rows, numbered through the dataset
unshuffled, per_shard=100:  shard 0 = rows 0-99, shard 1 = rows 100-199, shard 2 = rows 200-260
shuffled: row r stands at place p(r) of a permutation; shard s has the rows at places s·per_shard and on
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, Literal

from wdspack.convert.rows import Part, Reader, Record
from wdspack.convert.tarball import members
from wdspack.errors import ConfigError, SampleError
from wdspack.hashing import digest

_SAMPLED_PARTS, _SAMPLED_ROWS = 16, 32
_LONGEST_NAME = 200  # bytes; file systems take 255, of which a number and a temporary ending need some
_SURVEYS = 64  # of a dataset that memory does not divide further
_LEAST_SURVEYED, _MOST_SURVEYED = 1024, 1 << 18  # rows surveyed together


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What decides the shards, beside the dataset.

    per_shard: rows of a shard; a reject leaves its place empty, so a shard may have fewer samples.
    shard_size: bytes a shard is to have, about; turned into rows by the mean of the first rows of parts all over the
        dataset. Where both are given, the lesser number of rows counts.
    shuffle: seed of a global shuffle, None to keep the dataset's order.
    key: samples are called by the row's number, or by the dataset's id (a row whose id came before is rejected).
    name: shards are called {name}-000000.tar and on.
    limit: take only so many rows, the first ones.
    tokenizer: count text tokens for this one.
    """

    per_shard: int | None = None
    shard_size: int | None = None
    shuffle: int | None = None
    key: Literal["row", "id"] = "row"
    name: str = "shard"
    limit: int | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        for field in ("per_shard", "shard_size", "limit"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{field}={value}: must be 1 or more, or left out")
        if self.key not in ("row", "id"):
            raise ConfigError(f"key={self.key!r}: must be 'row' or 'id'")
        if not self.name or set(self.name) & set("/\\*?[]{}:\0") or self.name.startswith((".", "_")):
            raise ConfigError(f"name={self.name!r}: must be the beginning of a file name, such as 'shard'")
        if len(self.name.encode()) > _LONGEST_NAME:
            message = (
                f"name={self.name[:40]!r}… has {len(self.name.encode()):,} bytes: must have {_LONGEST_NAME} at most"
            )
            raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of a part; the first of them is row `row` of the dataset."""

    number: int
    part: Part
    start: int
    stop: int
    row: int


@dataclass(frozen=True)
class Plan:
    """The dataset's parts, and how its rows are shared out.

    rows: those to convert. row_bytes: about what one takes in a shard; 0 where nothing depends on it.
    """

    options: Options
    parts: Sequence[Part]
    rows: int
    per_shard: int
    row_bytes: int = 0

    @property
    def shards(self) -> int:
        return -(-self.rows // self.per_shard)

    def name(self, shard: int) -> str:
        return shard_name(self.options.name, shard)

    def rows_in(self, shard: int) -> int:
        return min(self.per_shard, self.rows - shard * self.per_shard)

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Rows [start, stop) of the dataset, as stretches of parts, in order."""
        found = []
        number = self.part_number(start)
        while start < stop:
            first, part = self._starts[number], self.parts[number]
            end = min(stop, first + part.rows)
            if start < end:
                found.append(Piece(number, part, start - first, end - first, start))
                start = end
            number += 1
        return found

    def surveys(self, memory: int) -> list[tuple[Piece, ...]]:
        """All rows, as consecutive pieces that are surveyed together, whatever the number of workers.

        A part may be a row group of 100 rows, but each shard reads from each spill, so there must be few of them: whole
        parts go together up to `memory` bytes, but for a small dataset, which many workers are to share.
        """
        most = max(1, memory // self.row_bytes) if self.row_bytes else _MOST_SURVEYED
        most = min(most, max(-(-self.rows // _SURVEYS), _LEAST_SURVEYED), _MOST_SURVEYED)
        found: list[tuple[Piece, ...]] = []
        together: list[Piece] = []
        rows = 0
        for piece in self.pieces(0, self.rows):
            size = piece.stop - piece.start
            if together and rows + size > most:
                found.append(tuple(together))
                together, rows = [], 0
            together.append(piece)
            rows += size
        return [*found, tuple(together)]

    def part_of(self, row: int) -> Part:
        return self.parts[self.part_number(row)]

    def part_number(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1

    def part_start(self, number: int) -> int:
        """The part's first row."""
        return self._starts[number]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((part.rows for part in self.parts), initial=0))[:-1]


def make_plan(reader: Reader, options: Options) -> Plan:
    """Asks the reader what there is. Raises ConfigError for a dataset without rows, or what the reader raises."""
    parts = tuple(reader.parts())
    rows = sum(part.rows for part in parts)
    if not rows:
        raise ConfigError(f"no rows in {json.dumps(reader.describe())[:300]}; give a dataset that has some")
    size = options.shard_size or (None if options.per_shard else 1 << 28)
    row_bytes = _row_bytes(reader, parts) if size or options.shuffle is not None else 0
    by_size = size and (max(1, size // row_bytes) if row_bytes else 1000)
    per_shard = min(filter(None, (options.per_shard, by_size)))
    return Plan(options, parts, min(rows, options.limit or rows), per_shard, row_bytes)


def identity(plan: Plan, reader: Reader) -> dict[str, Any]:
    """All that decides the shards' bytes, as plain JSON values."""
    parts = digest(*(json.dumps([part.url, part.rows, part.place], default=repr) for part in plan.parts))
    versions = digest(*map(json.dumps, reader.versions(plan.parts)))
    options = {**asdict(plan.options), "per_shard": plan.per_shard, "shard_size": None}
    found: dict[str, Any] = json.loads(
        json.dumps({"dataset": reader.describe(), "parts": parts, "versions": versions, "rows": plan.rows, **options})
    )
    return found


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """What two identities differ in: "shuffle was null, is 3"."""
    for field in sorted(old.keys() | new.keys()):
        before, now = old.get(field), new.get(field)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from differences(before, now, f"{prefix}{field}.")
        elif before != now and field == "versions":
            yield "files of the dataset were changed (their sizes, ETags or times)"
        elif before != now:
            yield f"{prefix}{field} was {json.dumps(before)[:100]}, is {json.dumps(now)[:100]}"


def shard_name(name: str, shard: int) -> str:
    """ "shard-000042.tar"."""
    return f"{name}-{shard:06d}.tar"


def _row_bytes(reader: Reader, parts: Sequence[Part]) -> int:
    """The mean of samples' bytes in a tar, by the first rows of parts all over the dataset; 0 if all are rejects."""
    filled = [part for part in parts if part.rows]
    step = max(1, len(filled) // _SAMPLED_PARTS)
    nbytes = samples = 0
    for part in islice(filled[::step], _SAMPLED_PARTS):
        with suppress(ConfigError):  # the run comes to that row, and says which it is
            for row in reader.read(part, 0, min(part.rows, _SAMPLED_ROWS)):
                if isinstance(row, Record):
                    try:
                        nbytes += sum(map(len, members("0" * 9, row.files)))
                    except SampleError:
                        continue
                    samples += 1
    return -(-nbytes // samples) if samples else 0
