"""Are the shards what they were when they were indexed, and sound?

shard ──stat──▶ size, version ─┐
  └──TarReader──▶ samples ─────┴── against the index's rows ──▶ Faults
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from wdspack import images, records
from wdspack.errors import ConfigError, SampleError, ShardError
from wdspack.index.build import checksum
from wdspack.index.pool import in_order
from wdspack.index.table import Index, IndexedShard, absolute
from wdspack.shards import expand_urls
from wdspack.storage import Options, Stat, open_shard, stat_shard
from wdspack.tar import TarReader
from wdspack.types import RawSample

_COMPARED = ("key", "offset", "nbytes", "crc32")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    kind: against the index "not_indexed", "size", "version" (unless its samples are the same, see `Checked`), "count",
        "key", "offset", "contents"; of the shard what `ShardError.reason` says ("missing", "truncated", …); of a sample
        what `SampleError.reason` says.
    key: of the sample, "" where it is the shard. offset: byte in the (decompressed) shard, None where there is none.
    """

    shard: str
    kind: str
    message: str
    key: str = ""
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A shard that was checked: samples and bytes of them that were read, and all that is wrong.

    rewritten: it has another version than the index knows, but every byte that was compared is the same, as in a copy.
    Indexing the shards again makes it known.
    """

    shard: str
    samples: int
    nbytes: int
    faults: tuple[Fault, ...]
    rewritten: bool = False


@dataclass(frozen=True, slots=True)
class Checks:
    """What to look at.

    quick: sizes and versions alone; no shard is read.
    decode: every sample's text must be readable and every image decode to its last pixel.
    strict_end: a shard without end-of-archive marker is faulty.
    """

    quick: bool = False
    decode: bool = False
    strict_end: bool = True


def verify_shards(
    urls: str | Sequence[str] | None = None,
    *,
    index: str | None = None,
    checks: Checks = Checks(),
    workers: int = 1,
    storage_options: Options = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Checked]:
    """Checks shards, and gives what came of each, in order.

    urls: as `expand_urls` takes them; the index's shards where None, so that one that is gone is missed.
    index: url of an index to check against; without one only what a shard tells of itself is checked.
    workers: processes.
    progress: called with the number of shards done and of all.

    Raises:
        ConfigError: neither urls nor an index, no shards, quick together with decode or without an index.
        ShardError: the index is missing or unreadable.
    """
    if urls is None and index is None:
        raise ConfigError("nothing to check; give shards, an index, or both")
    if checks.quick and (checks.decode or index is None):
        raise ConfigError("quick compares sizes and versions with an index; give the index, and do not ask to decode")
    with Index(index, storage_options=storage_options) if index else nullcontext() as opened:
        listed = list(opened.shards) if opened else []
        if urls is not None:
            listed = expand_urls(urls, storage_options=storage_options)
        jobs = (_job(url, opened, checks) for url in listed)
        check = partial(_check, checks=checks, storage_options=storage_options)
        for number, checked in enumerate(in_order(check, jobs, workers=workers), 1):
            yield checked
            if progress:
                progress(number, len(listed))


@dataclass(frozen=True, slots=True)
class _Job:
    """A shard, and what an index says of it. indexed: there is an index. known: None where it does not say a thing."""

    url: str
    indexed: bool
    known: IndexedShard | None
    rows: Mapping[str, list[Any]]


def _job(url: str, index: Index | None, checks: Checks) -> _Job:
    known = index.shards.get(absolute(url)) if index else None
    rows = index.samples(url, _COMPARED).to_pydict() if index and known and not checks.quick else {}
    return _Job(url, index is not None, known, rows)


def _check(job: _Job, *, checks: Checks, storage_options: Options) -> Checked:
    url, faults = job.url, list[Fault]()
    samples = nbytes = 0
    try:
        if job.indexed:
            faults += _against(url, job.known, stat_shard(url, storage_options=storage_options))
        if not checks.quick:
            compare = _Comparing(url, job.rows) if job.known else None
            with open_shard(url, storage_options=storage_options) as stream:
                for raw in TarReader(stream, strict_end=checks.strict_end):
                    samples, nbytes = samples + 1, nbytes + raw.nbytes
                    faults += compare.sample(raw) if compare else ()
                    faults += _decoding(raw) if checks.decode else ()
            faults += compare.count(samples) if compare else ()
    except ShardError as error:
        faults.append(Fault(url, error.reason, str(error), offset=error.offset))
    if not checks.quick and [fault.kind for fault in faults] == ["version"]:
        return Checked(url, samples, nbytes, (), rewritten=True)
    return Checked(url, samples, nbytes, tuple(faults))


def _against(url: str, known: IndexedShard | None, stat: Stat) -> Iterator[Fault]:
    if known is None:
        yield Fault(url, "not_indexed", "not in the index; index the shards again")
    elif known.size != stat.size:
        yield Fault(url, "size", f"{stat.size:,} bytes, but {known.size:,} when it was indexed")
    elif known.version != stat.version:
        message = f"version {stat.version}, but {known.version} when it was indexed: written again since"
        yield Fault(url, "version", message)


class _Comparing:
    """A shard's samples against the index's rows, one by one. After samples that differ, the others are not compared:
    they may all have moved."""

    def __init__(self, url: str, rows: Mapping[str, list[Any]]) -> None:
        self._url, self._moved = url, False
        self._rows = list(zip(*(rows[name] for name in _COMPARED), strict=True))

    def sample(self, raw: RawSample) -> Iterator[Fault]:
        if self._moved or raw.ordinal >= len(self._rows):
            return
        key, offset, nbytes, crc = self._rows[raw.ordinal]
        if raw.key != key:
            self._moved = True
            message = (
                f"sample {raw.ordinal:,} is {raw.key!r}, but {key!r} when it was indexed; no further one is compared"
            )
            yield Fault(self._url, "key", message, raw.key, raw.offset)
        elif (raw.offset, raw.nbytes) != (offset, nbytes):
            self._moved = True
            message = (
                f"{raw.nbytes:,} bytes at {raw.offset:,}, but {nbytes:,} at {offset:,} when it was indexed; "
                "no further one is compared"
            )
            yield Fault(self._url, "offset", message, raw.key, raw.offset)
        elif checksum(raw.files) != crc:
            message = "its files hold other bytes than when it was indexed"
            yield Fault(self._url, "contents", message, raw.key, raw.offset)

    def count(self, samples: int) -> Iterator[Fault]:
        if samples != len(self._rows):
            message = f"{samples:,} samples, but {len(self._rows):,} when it was indexed"
            yield Fault(self._url, "count", message)


def _decoding(raw: RawSample) -> Iterator[Fault]:
    """Every fault of a sample, not just the first: its turns, and each image file."""
    try:
        records.conversation_from(raw)
    except SampleError as error:
        yield Fault(raw.url, error.reason, str(error), raw.key, raw.offset)
    for extension, data in raw.files.items():
        if extension.rpartition(".")[2] in records.IMAGE_EXTENSIONS:
            try:
                images.decode(data, images.probe(data))
            except SampleError as error:
                yield Fault(raw.url, error.reason, f"{extension}: {error}", raw.key, raw.offset)
