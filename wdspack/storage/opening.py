"""A URL → the stream of its shard.

open_shard ──▶ ShardStream ─┬─ LocalFile                 the operating system reads ahead
                            ├─ CopiedFile, or its copy   where there is a cache
                            ├─ PrefetchFile ─ Remote     S3, HTTP, any other fsspec filesystem
                            └─ WholeFile                 servers that know no ranges
"""

import io
import logging
from contextlib import ExitStack, suppress
from threading import Lock
from typing import cast

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
_BUFFER = 1 << 16  # bytes; a member's header rarely costs a system call of its own


def open_shard(
    url: str,
    *,
    start: int = 0,
    storage_options: Options = None,
    access: Access | None = None,
    begun: "Begun | None" = None,
) -> ShardStream:
    """The stream of one shard from decompressed offset `start`. Closing it is up to the caller: use `with`.

    gzip is recognised by its first two bytes, whatever the name, may have several members, and is decompressed from
    its beginning up to `start`. access: how to read, and where to count; one for all that a process reads side by side.
    begun: what `begin` gave for this shard.

    Raises ShardError: "missing", "no_bucket", "denied", "expired", "changed", "unreadable", "bad_gzip", or "truncated"
    where the shard ends before `start`.
    """
    access = access or Access()
    with ExitStack() as closing, translating(url):
        raw = (begun.take() if begun and begun.url == url and not start else None) or _open(
            url, start, storage_options, access
        )
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


class Begun:
    """A shard whose first bytes are on their way while the one before it is read to its end."""

    def __init__(self, url: str, storage_options: Options, access: Access) -> None:
        self.url = url
        self._options, self._access = storage_options, access
        self._file: PrefetchFile | None = None
        self._over = False  # nobody will take it any more
        self._lock = Lock()

    def start(self) -> None:
        """To be called in fsspec's event loop."""
        with self._lock, suppress(Exception):  # whatever it is will be met, and told, when the shard is opened
            if not self._over:
                fs, path = filesystem(self.url, self._options, self._access.reading.stall_seconds)
                self._file = PrefetchFile(remote_file(fs, path, self.url), self._access)

    def take(self) -> PrefetchFile | None:
        """The file from its beginning, once; None if it was not begun. Waits for its first answer."""
        with self._lock:
            file, self._file, self._over = self._file, None, True
        if file is not None and file.failed():
            file.close()
            return None
        return file

    def close(self) -> None:
        with self._lock:
            file, self._file, self._over = self._file, None, True
        if file is not None:
            file.close()


def begin(stream: ShardStream, url: str | None, *, storage_options: Options = None, access: Access) -> Begun | None:
    """Has the shard at `url` begun as soon as the last bytes of `stream` have been asked for.

    None where nothing is gained by it: shards on local disks, and behind a cache, which asks for them first.
    """
    if url is None or not isinstance(stream.source, PrefetchFile):
        return None
    begun = Begun(url, storage_options, access)
    stream.source.when_asked(begun.start)
    return begun


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
