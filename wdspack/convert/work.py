"""The work of a run, in pieces that any process may do: each is a function of (job, task) and of nothing else.

                 ┌─ write_shards(pieces) ─────────────────────────────────────▶ shards      in the dataset's order
    rows ────────┤
                 └─ survey(pieces) ─▶ spills, one a chunk ─▶ gather_shard ────▶ shards      shuffled

A spill holds a chunk of rows, ordered by the shard they belong to, after a table of where each shard's begin:

    [offset of shard 0's | … | offset of shard n−1's | end]  8 bytes each, then the entries

so that a shard takes two ranges of each spill. A survey also reads ids, where keys are made of them.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from wdspack.convert import entries
from wdspack.convert.entries import Entry
from wdspack.convert.keys import NO_DIGEST, id_digest
from wdspack.convert.order import places
from wdspack.convert.plan import Options, Piece, shard_name
from wdspack.convert.receipts import Receipt, Rejects, Survey
from wdspack.convert.rows import Reader
from wdspack.convert.store import Store
from wdspack.convert.tarball import TarFile
from wdspack.errors import ConfigError, ShardError

WORK = "_convert"  # folder in the output, of what is needed only until the run is complete
RECEIPTS, SURVEYS = f"{WORK}/receipts", f"{WORK}/surveys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all tasks of a run share. rows, per_shard: the plan's. output, spill: None in a dry run.

    memory: bytes of rows that a survey holds before it writes a spill.
    """

    reader: Reader
    options: Options
    rows: int
    per_shard: int
    output: Store | None
    spill: Store | None
    memory: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive shards to make in one pass, in the dataset's order. duplicates: rows to reject."""

    first: int
    pieces: tuple[Piece, ...]
    duplicates: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Stock:
    """Consecutive rows to survey together, the `number`-th of the dataset."""

    number: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Gathering:
    """One shard to make of spills, by name. rows: that it must have."""

    shard: int
    rows: int
    spills: tuple[str, ...]
    duplicates: frozenset[int] = frozenset()


def write_shards(job: Job, task: Stretch) -> list[Receipt]:
    """Makes the stretch's shards. Raises what the reader or the storage raises."""
    receipts = []
    rows = sum(piece.stop - piece.start for piece in task.pieces)
    source = _entries(job, task.pieces)
    for number in range(-(-rows // job.per_shard)):
        count = min(job.per_shard, rows - number * job.per_shard)
        receipts.append(_write(job, task.first + number, count, source, task.duplicates))
    return receipts


def survey(job: Job, task: Stock) -> Survey:
    """Reads rows: lays them by in spills if the job shuffles, and names their ids if keys are made of them."""
    shuffling, identifying = job.spill is not None, job.options.key == "id"
    spills, rejects, digests = 0, Rejects(), bytearray()
    chunk: list[Entry] = []
    held = 0
    for entry in _entries(job, task.pieces):
        if entry.reject:
            rejects.add(entry.row, entry.reject)
        if identifying:
            digests += id_digest(entry.id) if entry.id and not entry.reject else NO_DIGEST
        if shuffling:
            chunk.append(entry)
            held += sum(map(len, entry.blocks)) + 1024  # about what the objects take
            if held > job.memory:
                _spill(job, spill_name(task.number, spills), chunk)
                spills, chunk, held = spills + 1, [], 0
    if chunk:
        _spill(job, spill_name(task.number, spills), chunk)
        spills += 1
    if job.output and rejects.lines:
        job.output.put(rejects_name(SURVEYS, task.number), b"".join(rejects.lines))
    rows = sum(piece.stop - piece.start for piece in task.pieces)
    return Survey(task.number, rows, spills, bytes(digests), dict(rejects.counts), rejects.examples)


def gather_shard(job: Job, task: Gathering) -> list[Receipt]:
    """Makes one shard of what the spills hold of it. Memory: the shard. Raises ShardError if rows are missing."""
    assert job.spill is not None
    at = 8 * task.shard
    tables = job.spill.ranges([(name, at, at + 16) for name in task.spills])
    bounds = [struct.unpack("<QQ", table) for table in tables]
    wanted = [(name, *bound) for name, bound in zip(task.spills, bounds, strict=True) if bound[0] < bound[1]]
    found = job.spill.ranges(wanted)
    mine = [entry for data in found for entry in entries.from_bytes(data)]
    if len(mine) != task.rows:
        message = f"the spills hold {len(mine):,} rows of shard {task.shard}, not {task.rows:,}: they were changed"
        raise ShardError(f"{message}; remove the output and start afresh", url=job.spill.url, reason="changed")
    order = np.argsort(_places(job, mine))
    return [_write(job, task.shard, task.rows, (mine[i] for i in order), task.duplicates)]


def spill_name(survey: int, chunk: int) -> str:
    return f"{survey:06d}-{chunk:04d}.spill"


def rejects_name(folder: str, number: int) -> str:
    return f"{folder}/{number:06d}.jsonl"


def _entries(job: Job, pieces: Iterable[Piece]) -> Iterator[Entry]:
    for piece in pieces:
        count = 0
        try:
            for row in job.reader.read(piece.part, piece.start, piece.stop):
                yield entries.entry_of(piece.row + count, row, job.options)
                count += 1
        except ConfigError as error:  # of a function that chooses rows, or of a file that is not what it was
            raise ConfigError(f"row {piece.row + count:,}: {error}") from error
        if count != piece.stop - piece.start:
            message = f"gave {count:,} rows of rows {piece.start:,} to {piece.stop:,}: the dataset changed"
            raise ShardError(f"{message}; start afresh in an empty output", url=piece.part.url, reason="changed")


def _write(job: Job, shard: int, rows: int, source: Iterator[Entry], duplicates: frozenset[int]) -> Receipt:
    """The next `rows` entries become a shard. Its receipt is there before it is: a shard that exists is finished."""
    samples = tokens = 0
    rejects = Rejects()
    name = shard_name(job.options.name, shard)
    with job.output.writing(name) if job.output else open(os.devnull, "wb") as file:
        tar = TarFile(file)
        for _, entry in zip(range(rows), source, strict=False):  # in this order: it takes no entry too many
            if entry.row in duplicates and not entry.reject:
                entry = entries.duplicate(entry)
            if entry.reject:
                rejects.add(entry.row, entry.reject)
                continue
            tar.write(entry.blocks)
            samples += 1
            tokens += entry.tokens
        tar.finish()
        receipt = Receipt(shard, rows, samples, tar.nbytes, tokens, dict(rejects.counts), rejects.examples)
        if job.output:
            if rejects.lines:
                job.output.put(rejects_name(RECEIPTS, shard), b"".join(rejects.lines))
            job.output.put(f"{RECEIPTS}/{shard:06d}.json", receipt.to_json())
    return receipt


def _spill(job: Job, name: str, chunk: list[Entry]) -> None:
    assert job.spill is not None
    shards = -(-job.rows // job.per_shard)
    shard_of = _places(job, chunk) // job.per_shard
    order = np.argsort(shard_of, kind="stable")
    blocks = [entries.to_bytes(entry) for entry in chunk]
    sizes = np.array([sum(map(len, block)) for block in blocks], dtype=np.uint64)
    ends = np.concatenate([[np.uint64(0)], np.cumsum(sizes[order])])
    first = np.searchsorted(shard_of[order], np.arange(shards + 1))
    table = ends[first] + np.uint64(8 * (shards + 1))
    with job.spill.writing(name) as file:
        file.write(table.astype("<u8").tobytes())
        for i in order:
            for block in blocks[i]:
                file.write(block)


def _places(job: Job, chunk: list[Entry]) -> "np.typing.NDArray[np.int64]":
    assert job.options.shuffle is not None
    return places(np.array([entry.row for entry in chunk], dtype=np.int64), job.rows, job.options.shuffle)
