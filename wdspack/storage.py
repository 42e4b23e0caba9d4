"""Bytes of shards, by URL, over fsspec: in go URLs, out come decompressed streams and ranges.

The only module that knows of files, object stores and gzip. Local paths are read by the operating system's own
buffered file; everything else by the fsspec filesystem of its scheme. A filesystem is looked up where it is used, never
kept: its clients do not survive a fork. All failures leave as `ShardError`.
"""

import gzip
import io
import logging
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from wdspack.errors import ShardError

logger = logging.getLogger("wdspack")

_GZIP = b"\x1f\x8b"
_BUFFER = 1 << 16  # bytes; a member's header rarely costs a system call of its own
_SKIP = 1 << 20  # bytes read at a time where a store cannot seek

Options = Mapping[str, Any] | None


class ShardStream:
    """A shard's decompressed bytes, forwards only.

    Attributes:
        url: the shard.
        position: offset of the next byte, in the decompressed stream.
        compressed: True for gzip, where starting late costs as much as reading from the start.
    """

    def __init__(self, file: io.BufferedIOBase, url: str, *, position: int = 0, compressed: bool = False) -> None:
        """Reads `file` from where it stands, which is called `position`."""
        self.url, self.position, self.compressed = url, position, compressed
        self._file = file
        self._end = None if compressed else _end(file, position)

    def read(self, n: int) -> bytes:
        """The next `n` bytes; fewer only where the shard ends. Raises ShardError "bad_gzip" or "unreadable"."""
        try:
            data = self._file.read(n)
        except Exception as error:
            raise _translated(error, self.url, self.position) from error
        self.position += len(data)
        return data

    def skip(self, n: int) -> int:
        """Passes over `n` bytes, or as many as there are, and returns their number. Raises as `read` does."""
        if self._end is not None:
            n = max(0, min(n, self._end - self.position))
            self._file.seek(n, io.SEEK_CUR)
            self.position += n
            return n
        target = self.position + n
        while self.read(min(_SKIP, target - self.position)):
            pass
        return n - (target - self.position)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_shard(url: str, *, start: int = 0, storage_options: Options = None) -> ShardStream:
    """The stream of one shard from decompressed offset `start`. Closing it is up to the caller: use `with`.

    gzip is recognised by its first two bytes, whatever the name, may have several members, and is decompressed from
    its beginning up to `start`.

    Raises ShardError: "missing", "unreadable", "bad_gzip", or "truncated" where the shard ends before `start`.
    """
    with ExitStack() as closing:
        with _translating(url):
            fs, path = _filesystem(url, storage_options)
            file = closing.enter_context(_open(fs, path))
            head = fs.cat_file(path, 0, 2) if start else file.peek(2)  # a peek reads ahead, where nothing is wanted
        compressed = head[:2] == _GZIP
        if compressed and start:
            logger.warning("%s is gzip: its first %d bytes are read again to go on there", url, start)
        stream = ShardStream(_Gunzip(file) if compressed else file, url, compressed=compressed)
        if (end := stream.skip(start)) < start:
            raise _shortened(url, end)
        closing.pop_all()  # from here on the stream is the caller's to close
        return stream


def read_ranges(
    url: str, ranges: Sequence[tuple[int, int]], *, storage_options: Options = None, gap: int = 1 << 16
) -> list[bytes]:
    """The bytes of each (offset, nbytes) of the decompressed stream, in the order asked for.

    Ranges at most `gap` bytes apart share a request, as long as no more than half of what it fetches is unasked for.
    gzip, and servers that do not serve ranges, are read through once.

    Raises ShardError: "missing", "unreadable", "bad_gzip", or "truncated" where the shard ends within a range.
    """
    if not ranges:
        return []
    spans = _merged(ranges, gap)
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    with _translating(url):
        fs, path = _filesystem(url, storage_options)
        head = fs.cat_file(path, 0, 2)
        streamed = len(head) > 2 or head == _GZIP  # a server that ignores the range sends everything
        blocks = [] if streamed else fs.cat_ranges([path] * len(spans), starts, ends, on_error="raise")
    if streamed:
        logger.warning("%s cannot be read in parts (gzip, or its server): read through for %d ranges", url, len(ranges))
        with open_shard(url, storage_options=storage_options) as stream:
            for start, end in spans:
                stream.skip(start - stream.position)
                blocks.append(stream.read(end - start))
    for (start, end), block in zip(spans, blocks, strict=True):
        if len(block) != end - start:
            raise _shortened(url, start + len(block))
    found = []
    for offset, nbytes in ranges:
        span = bisect_right(starts, offset) - 1
        found.append(blocks[span][offset - starts[span] : offset - starts[span] + nbytes])
    return found


def read_file(url: str, *, storage_options: Options = None) -> bytes:
    """All bytes of a small file, a manifest say. Raises ShardError "missing" or "unreadable"."""
    with _translating(url):
        fs, path = _filesystem(url, storage_options)
        return bytes(fs.cat_file(path))


def list_files(pattern: str, *, storage_options: Options = None) -> list[str]:
    """The files (not folders) that match a glob, sorted, by one listing. Raises ShardError "missing" or "unreadable".

    They are named as the pattern is: with its scheme, or as plain paths; relative patterns give relative paths.
    """
    with _translating(pattern):
        fs, path = _filesystem(pattern, storage_options)
        found = sorted(name for name, info in fs.glob(path, detail=True).items() if info["type"] == "file")
    scheme, separator, _ = pattern.partition("://")
    if separator:
        return [name if "://" in name else f"{scheme}://{name}" for name in found]
    return found if os.path.isabs(os.path.expanduser(pattern)) else [os.path.relpath(name) for name in found]


class _Gunzip(gzip.GzipFile):
    """A GzipFile that owns the file beneath it."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._beneath = file

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._beneath.close()


def _filesystem(url: str, storage_options: Options) -> tuple[AbstractFileSystem, str]:
    fs, path = url_to_fs(url, **(storage_options or {}))
    return fs, cast(str, path)


def _open(fs: AbstractFileSystem, path: str) -> io.BufferedReader:
    raw = io.FileIO(path) if isinstance(fs, LocalFileSystem) else fs.open(path, "rb")
    if isinstance(raw, io.BytesIO):  # memory:// hands one object, and its position, to all its readers
        raw = io.BytesIO(raw.getvalue())
    return io.BufferedReader(cast(io.RawIOBase, raw), _BUFFER)


def _end(file: io.BufferedIOBase, position: int) -> int | None:
    """Offset of the file's end, given that of the byte it stands at; None where it cannot seek."""
    try:
        here = file.tell()
        end = file.seek(0, io.SEEK_END)
        file.seek(here)
    except (OSError, ValueError):
        return None
    return position + end - here


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


@contextmanager
def _translating(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _translated(error, url) from error


def _translated(error: Exception, url: str, offset: int | None = None) -> ShardError:
    if isinstance(error, FileNotFoundError):
        message, reason = "not found; check the name, and that the storage is the right one", "missing"
    elif isinstance(error, gzip.BadGzipFile | zlib.error | EOFError):
        message, reason = f"broken gzip ({error}); compress or fetch the shard again", "bad_gzip"
    else:
        said = f"{type(error).__name__}: {error}"
        message, reason = f"cannot be read ({said}); check access, credentials and the connection", "unreadable"
    return ShardError(message, url=url, offset=offset, reason=reason)


def _shortened(url: str, end: int) -> ShardError:
    advice = "bring back the shard as it was when the state was saved, or start afresh"
    return ShardError(f"ends before the bytes that are wanted of it; {advice}", url=url, offset=end, reason="truncated")
