"""A shard's bytes as they are read: forwards, decompressed, at a known position."""

import gzip
import io
from typing import Self

from wdspack.errors import ShardError
from wdspack.storage.faults import shard_error
from wdspack.storage.prefetch import PrefetchFile

_SKIP = 1 << 20  # bytes read at a time where a store cannot seek


class ShardStream:
    """A shard's decompressed bytes, forwards only.

    Attributes:
        url: the shard.
        position: offset of the next byte, in the decompressed stream.
        compressed: True for gzip, where starting late costs as much as reading from the start.
    """

    def __init__(
        self,
        file: io.BufferedIOBase | PrefetchFile,
        url: str,
        *,
        position: int = 0,
        compressed: bool = False,
        source: io.RawIOBase | None = None,
    ) -> None:
        """Reads `file` from where it stands, which is called `position`. source: what the bytes come from."""
        self.url, self.position, self.compressed, self.source = url, position, compressed, source
        self._file = file
        if compressed:
            self._end = None
        else:
            self._end = file.size if isinstance(file, PrefetchFile) else _end(file, position)

    def read(self, n: int) -> bytes:
        """The next `n` bytes; fewer only where the shard ends. Raises ShardError "bad_gzip" or "unreadable"."""
        try:
            data = self._file.read(n)
        except ShardError:
            raise
        except Exception as error:
            raise shard_error(error, self.url, self.position) from error
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


class Gunzip(gzip.GzipFile):
    """A GzipFile that owns the file beneath it."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._beneath = file

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._beneath.close()


def _end(file: io.BufferedIOBase, position: int) -> int | None:
    """Offset of the file's end, given that of the byte it stands at; None where it cannot seek."""
    try:
        here = file.tell()
        end = file.seek(0, io.SEEK_END)
        file.seek(here)
    except (OSError, ValueError):
        return None
    return position + end - here
