"""A URL → the stream of its shard.

open_shard ──▶ ShardStream ─┬─ LocalFile                 the operating system reads ahead
                            ├─ CopiedFile, or its copy   where there is a cache
                            ├─ PrefetchFile ─ Remote     S3, HTTP, any other fsspec filesystem
                            └─ WholeFile                 servers that know no ranges
"""

import io
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from threading import Lock
from typing import cast

from fsspec.asyn import get_loop
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from wdspack.storage.access import Access
from wdspack.storage.cache import cached
from wdspack.storage.clients import Options, filesystem
from wdspack.storage.faults import Unranged, shortened, translating
from wdspack.storage.files import LocalFile, WholeFile
from wdspack.storage.prefetch import PrefetchFile
from wdspack.storage.remotes import remote_file
from wdspack.storage.requests import fetch
from wdspack.storage.stream import Gunzip, ShardStream

logger = logging.getLogger("wdspack")

GZIP = b"\x1f\x8b"
_AHEAD = 8  # shards begun ahead at most: small ones cost a request each
_BUFFER = 1 << 16  # bytes; a member's header rarely costs a system call of its own


def open_shard(
    url: str,
    *,
    start: int = 0,
    storage_options: Options = None,
    access: Access | None = None,
    begun: PrefetchFile | None = None,
) -> ShardStream:
    """The stream of one shard from decompressed offset `start`. Closing it is up to the caller: use `with`.

    gzip is recognised by its first two bytes, whatever the name, may have several members, and is decompressed from
    its beginning up to `start`. access: how to read, and where to count; one for all that a process reads side by side.
    begun: this very shard, at its beginning.

    Raises ShardError: "missing", "no_bucket", "denied", "expired", "changed", "unreadable", "bad_gzip", or "truncated"
    where the shard ends before `start`.
    """
    access = access or Access()
    with ExitStack() as closing, translating(url):
        raw = begun or _open(url, start, storage_options, access)
        closing.enter_context(raw)
        at = raw.tell() if raw.seekable() else 0
        file: PrefetchFile | io.BufferedIOBase
        if isinstance(raw, PrefetchFile) and (at or raw.peek(2) != GZIP):
            file, compressed = raw, False  # needs no buffer
        else:
            buffered = io.BufferedReader(raw, _BUFFER)
            compressed = not at and buffered.peek(2)[:2] == GZIP
            file = Gunzip(buffered) if compressed else buffered
        if compressed and start:
            logger.warning("%s is gzip: its first %d bytes are read again to go on there", url, start)
        stream = ShardStream(file, url, position=at, compressed=compressed, source=raw)
        if at + (skipped := stream.skip(start - at)) < start:
            raise shortened(url, at + skipped)
        closing.pop_all()  # from here on the stream is the caller's to close
        return stream


class Successive:
    """Opens shards one after the other. While one is read, those that follow are begun, as far as the budget goes.

    urls: the shards, in the order in which they will be opened. Drawn from as they are begun, in any thread.
    """

    def __init__(self, urls: Iterator[str], *, storage_options: Options = None, access: Access) -> None:
        self._urls, self._options, self._access = urls, storage_options, access
        self._begun: deque[tuple[str, PrefetchFile | None]] = deque()  # None: could not be begun, or is not worth it
        self._waits = False  # whether the next one is to be begun as soon as one is opened
        self._closed = False
        self._lock = Lock()

    def open(self, url: str, *, start: int = 0) -> ShardStream:
        """The next shard, which is `url`: as `open_shard`, and raises as that does."""
        file = self._take(url)
        if file is not None and (start or file.failed()):
            file.close()
            file = None
        stream = open_shard(url, start=start, storage_options=self._options, access=self._access, begun=file)
        if isinstance(stream.source, PrefetchFile) and stream.source is not file:
            stream.source.when_nearly_asked(self._begin)
        return stream

    def close(self) -> None:
        """Lets go of what was begun and is not opened yet; nothing can be opened any more."""
        with self._lock:
            self._closed = True
            files = [file for _, file in self._begun if file is not None]
        for file in files:
            file.close()

    def _take(self, url: str) -> PrefetchFile | None:
        """What has been begun of the next shard."""
        with self._lock:
            expected, file = self._begun.popleft() if self._begun else (next(self._urls, None), None)
            waits, self._waits = self._waits, False
        if expected != url:
            raise ValueError(f"{expected} comes next, not {url}")
        if waits:
            get_loop().call_soon_threadsafe(self._begin)
        return file

    def _begin(self) -> None:
        """Begins the next shard, and after it those that follow. In fsspec's event loop."""
        with self._lock:
            self._waits = len(self._begun) >= _AHEAD
            if self._closed or self._waits or (url := next(self._urls, None)) is None:
                return
            file = None
            with suppress(Exception):  # whatever it is will be met, and told, when the shard is opened
                fs, path = filesystem(url, self._options, self._access.reading.stall_seconds)
                if not isinstance(fs, LocalFileSystem | MemoryFileSystem):
                    file = PrefetchFile(remote_file(fs, path, url), self._access, reader=self)
            self._begun.append((url, file))
        if file is not None:
            file.when_nearly_asked(self._begin)


def _open(url: str, start: int, storage_options: Options, access: Access) -> io.RawIOBase:
    """The file, at byte `start` if that can be had at once, otherwise at its beginning."""
    fs, path = filesystem(url, storage_options, access.reading.stall_seconds)
    if isinstance(fs, LocalFileSystem):
        return LocalFile(path)
    if isinstance(fs, MemoryFileSystem):
        return cast(io.RawIOBase, io.BytesIO(fs.cat_file(path)))  # it would hand the same file to all its readers
    remote = remote_file(fs, path, url)
    try:
        if access.reading.cache_dir is not None and (file := cached(access, remote, whole=not start)) is not None:
            return file
        if start and fetch(access, remote, 2) == GZIP:
            start = 0
        prefetched = PrefetchFile(remote, access, start=start)
        try:
            if prefetched.size < start:
                raise shortened(url, prefetched.size)
        except BaseException:
            prefetched.close()
            raise
        return prefetched
    except Unranged:
        return WholeFile(remote, access)
