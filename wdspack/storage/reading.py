"""Files, or parts of them, all at once; which there are, and how large."""

import logging
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from wdspack.storage.access import Access
from wdspack.storage.clients import Options, filesystem
from wdspack.storage.faults import Unranged, shortened, translating
from wdspack.storage.files import WholeFile
from wdspack.storage.opening import GZIP, open_shard
from wdspack.storage.remotes import remote_file
from wdspack.storage.requests import Stat, ask_size, fetch, fetch_all, glob, stat

logger = logging.getLogger("wdspack")


def read_ranges(
    url: str,
    ranges: Sequence[tuple[int, int]],
    *,
    storage_options: Options = None,
    access: Access | None = None,
    gap: int = 1 << 16,
) -> list[bytes]:
    """The bytes of each (offset, nbytes) of the decompressed stream, in the order asked for.

    Ranges at most `gap` bytes apart share a request, as long as no more than half of what it fetches is unasked for.
    gzip, and servers that do not serve ranges, are read through once.

    Raises ShardError, as `open_shard` does; "truncated" where the shard ends within a range.
    """
    if not ranges:
        return []
    access = access or Access()
    spans = _merged(ranges, gap)
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    with translating(url):
        fs, path = filesystem(url, storage_options, access.reading.stall_seconds)
        try:
            if isinstance(fs, LocalFileSystem | MemoryFileSystem):
                head = fs.cat_file(path, start=0, end=2)
                blocks = [] if head == GZIP else fs.cat_ranges([path] * len(spans), starts, ends, on_error="raise")
            else:
                head, *blocks = fetch_all(access, remote_file(fs, path, url), [(0, 2), *spans])
            streamed = head == GZIP
        except Unranged:
            streamed = True
    if streamed:
        logger.warning("%s cannot be read in parts (gzip, or its server): read through for %d ranges", url, len(ranges))
        blocks = []
        with open_shard(url, storage_options=storage_options, access=access) as stream:
            for start, end in spans:
                stream.skip(start - stream.position)
                blocks.append(stream.read(end - start))
    for (start, end), block in zip(spans, blocks, strict=True):
        if len(block) != end - start:
            raise shortened(url, start + len(block))
    found = []
    for offset, nbytes in ranges:
        span = bisect_right(starts, offset) - 1
        found.append(blocks[span][offset - starts[span] : offset - starts[span] + nbytes])
    return found


def read_file(url: str, *, storage_options: Options = None, access: Access | None = None) -> bytes:
    """All bytes of a small file, a manifest say. Raises ShardError as `open_shard` does."""
    access = access or Access()
    with translating(url):
        fs, path = filesystem(url, storage_options, access.reading.stall_seconds)
        if isinstance(fs, LocalFileSystem | MemoryFileSystem):
            return bytes(fs.cat_file(path))
        remote = remote_file(fs, path, url)
        try:
            return fetch(access, remote)
        except Unranged:
            with WholeFile(remote, access) as file:
                return file.read()


def stat_shard(url: str, *, storage_options: Options = None, access: Access | None = None) -> Stat:
    """Size and version (ETag, or size and time of change) of a file. Raises ShardError as `open_shard` does."""
    access = access or Access()
    with translating(url):
        fs, path = filesystem(url, storage_options, access.reading.stall_seconds)
        if isinstance(fs, LocalFileSystem):
            found = os.stat(path)
            return Stat(found.st_size, f"mtime={found.st_mtime_ns}")
        remote = remote_file(fs, path, url)
        try:
            return stat(access, remote)
        except Unranged:
            return Stat(ask_size(access, remote), "")


def list_files(pattern: str, *, storage_options: Options = None, access: Access | None = None) -> list[str]:
    """The files (not folders) that match a glob, sorted, by one listing. Raises ShardError as `open_shard` does.

    They are named as the pattern is: with its scheme, or as plain paths; relative patterns give relative paths.
    """
    access = access or Access()
    with translating(pattern):
        fs, path = filesystem(pattern, storage_options, access.reading.stall_seconds)
        found = sorted(name for name, info in glob(access, fs, path, pattern).items() if _is_file(name, info))
    scheme, separator, _ = pattern.partition("://")
    if separator:
        return [name if "://" in name else f"{scheme}://{name}" for name in found]
    return found if os.path.isabs(os.path.expanduser(pattern)) else [os.path.relpath(name) for name in found]


def _is_file(name: str, info: Mapping[str, Any]) -> bool:
    """Links to local files are files: the hub's cache consists of them."""
    return info["type"] == "file" or bool(info.get("islink") and os.path.isfile(name))


def _merged(ranges: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Disjoint (start, end) that cover the (offset, nbytes), in order; see `read_ranges`."""
    spans: list[tuple[int, int]] = []
    start = end = wanted = 0
    for offset, nbytes in sorted(ranges):
        more = max(0, offset + nbytes - max(end, offset))
        if spans and offset - end <= gap and max(end, offset + nbytes) - start <= 2 * (wanted + more):
            end, wanted = max(end, offset + nbytes), wanted + more
            spans[-1] = start, end
        else:
            start, end, wanted = offset, offset + nbytes, nbytes
            spans.append((start, end))
    return spans
