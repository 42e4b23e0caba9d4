"""Local copies of whole shards, shared by the processes of a host, least recently used go first.

    <sha of url>-<sha of size and version>.shard   a whole shard; moved there when the last byte is on the disk
    <the same>.<random>.part                       one being copied, locked by the process that does it

What is stale is never served, since a name says the version, which the storage is asked for at every opening (one
request). A process killed on the way leaves a .part without a lock, which the next one to make room removes.
"""

import contextlib
import fcntl
import hashlib
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from wdspack.errors import ConfigError
from wdspack.storage.access import Access
from wdspack.storage.prefetch import PrefetchFile
from wdspack.storage.remotes import Remote
from wdspack.storage.requests import Stat, stat

logger = logging.getLogger("wdspack")


def cached(access: Access, remote: Remote, *, whole: bool) -> io.RawIOBase | None:
    """A file at its beginning: the copy of a shard, or the shard itself, which is copied as it is read.

    None if there is no copy and none can be made: the shard is too large, another process is at it, the disk is full,
    its server does not say which version it is, or it is not to be read as a `whole`.

    Raises ShardError; ConfigError if the folder cannot be used.
    """
    folder = Path(access.reading.cache_dir or "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cache_dir={str(folder)!r} cannot be made ({error}); give a folder that can be written to"
        ) from error
    found = stat(access, remote)
    if not found.version:
        return None
    path = folder / f"{_sha(remote.url)}-{_sha(f'{found.size} {found.version}')}.shard"
    try:
        if (copy := _copy(path, found)) is not None:
            access.counts["cache_hits"] += 1
            return copy
        access.counts["cache_misses"] += 1
        part = _part(path, found.size, access) if whole else None
    except OSError as error:
        _complain(access, path, error)
        return None
    return None if part is None else CopiedFile(PrefetchFile(remote, access), *part, path, found.size, access)


class CopiedFile(io.RawIOBase):
    """Reads a shard and writes what it reads to `part`, called `name`; whole, it becomes `path`."""

    def __init__(
        self, source: PrefetchFile, part: io.FileIO, name: Path, path: Path, size: int, access: Access
    ) -> None:
        super().__init__()
        self._source, self._name, self._path, self._size, self._access = source, name, path, size, access
        self._part: io.FileIO | None = part
        self._at = 0
        self._pid = os.getpid()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int] | bytearray") -> int:  # type: ignore[override]
        n = self._source.readinto(buffer)
        if self._part is not None and n:
            try:
                view = memoryview(buffer)[:n]
                while view:
                    view = view[self._part.write(view) :]
                self._at += n
                if self._at == self._size:
                    os.fsync(self._part.fileno())
                    os.replace(self._name, self._path)
                    self._part.close()
                    self._part = None
            except OSError as error:  # a full disk ends the copy, not the stream
                _complain(self._access, self._path, error)
                self._give_up()
        return n

    def close(self) -> None:
        self._give_up()
        self._source.close()
        super().close()

    def _give_up(self) -> None:
        if self._part is not None:
            if os.getpid() == self._pid:  # a forked process has the file, but it is not its own
                self._name.unlink(missing_ok=True)
            self._part.close()
            self._part = None


def _copy(path: Path, found: Stat) -> io.FileIO | None:
    """The copy, open; None if there is none, or only one that others have cut. Raises OSError."""
    try:
        file = io.FileIO(path)
    except FileNotFoundError:
        return None
    if os.fstat(file.fileno()).st_size != found.size:
        file.close()
        path.unlink(missing_ok=True)
        return None
    with contextlib.suppress(FileNotFoundError):  # it may just have had to go; the open file stays
        os.utime(path)
    return file


def _part(path: Path, size: int, access: Access) -> tuple[io.FileIO, Path] | None:
    """The locked file to copy to, of its final size, and its name; None if the shard is too large, or being copied."""
    limit = access.reading.cache_bytes or 0
    if size > limit:
        return None
    part = path.with_suffix(f".{uuid4().hex[:12]}.part")
    with _locked(path.parent):
        taken, busy = 0, False
        copies: list[tuple[int, int, Path]] = []
        for entry in list(os.scandir(path.parent)):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(".part"):
                    if _abandoned(entry.path):
                        os.unlink(entry.path)
                    else:
                        taken += entry.stat().st_size
                        busy = busy or entry.name.startswith(path.stem)
                elif entry.name.endswith(".shard"):
                    copies.append((entry.stat().st_mtime_ns, entry.stat().st_size, Path(entry.path)))
        if busy:
            return None
        taken += sum(nbytes for _, nbytes, _ in copies)
        for _, nbytes, old in sorted(copies):
            if taken + size <= limit:
                break
            old.unlink(missing_ok=True)
            access.counts["cache_evicted"] += 1
            taken -= nbytes
        if taken + size > limit:  # by copies that are being made
            return None
        file = io.FileIO(part, "x")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            file.truncate(size)
        except OSError:
            part.unlink()
            file.close()
            raise
        return file, part


def _abandoned(part: str) -> bool:
    with open(part, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _complain(access: Access, path: Path, error: OSError) -> None:
    access.counts["cache_failed"] += 1
    log = logger.warning if access.counts["cache_failed"] == 1 else logger.debug
    log("no copy of a shard in %s: %s; it is streamed without, as all are of which this is true", path.parent, error)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
