"""Files that are read without ranges: the operating system's, and those of servers that only send them whole."""

import asyncio
import io
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from fsspec.asyn import get_loop

from wdspack.errors import ConfigError
from wdspack.storage.access import Access, Trial
from wdspack.storage.faults import Broken, Changed
from wdspack.storage.remotes import Remote
from wdspack.storage.requests import wait_for


class LocalFile(io.FileIO):
    """A local file; raises Changed at its end if it was written to since it was opened. (One that is moved over it
    makes no difference: the old one is still there.)"""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._opened = self._state()

    def readinto(self, buffer: Any) -> int:
        n = super().readinto(buffer) or 0
        if not n and len(buffer) and self._state() != self._opened:
            raise Changed("it was written to")
        return n

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self.fileno())
        return found.st_size, found.st_mtime_ns


class WholeFile(io.RawIOBase):
    """A file of a server that knows no ranges: read as it comes, without reading ahead.

    When it breaks off it is asked for again, and read up to where it was.
    """

    def __init__(self, remote: Remote, access: Access) -> None:
        super().__init__()
        self._remote, self._access = remote, access
        self._at, self._chunk = 0, memoryview(b"")
        self._version, self._total = "", -1
        self._answer: AsyncExitStack | None = None
        self._chunks: AsyncIterator[bytes]
        self._loop = get_loop()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int] | bytearray") -> int:  # type: ignore[override]
        if not self._chunk:
            self._chunk = memoryview(wait_for(self._more()))
        n = min(len(buffer), len(self._chunk))
        buffer[:n] = self._chunk[:n]
        self._chunk = self._chunk[n:]
        self._at += n
        return n

    def close(self) -> None:
        if not self.closed:
            with suppress(RuntimeError):  # the loop is closed when the interpreter goes down
                self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._drop()))
        super().close()

    async def _more(self) -> bytes:
        """The bytes from `_at` on that come next; none at the end. Raises ShardError."""
        trial = Trial(self._access, self._remote.url)
        while True:
            try:
                chunk = await self._next(trial)
                if not chunk and self._at < self._total:
                    raise Broken("short", f"the body ended {self._total - self._at:,} bytes early")
                return chunk
            except ConfigError:
                raise
            except Exception as error:
                await self._drop()
                await self._access.pause(trial, error, self._at, remote=self._remote)

    async def _next(self, trial: Trial) -> bytes:
        stall = self._access.reading.stall_seconds
        left = 0
        if self._answer is None:
            await self._remote.connect()
            self._access.counts["requests"] += 1
            self._answer, left = AsyncExitStack(), self._at
            async with asyncio.timeout(stall):
                body = await self._answer.enter_async_context(self._remote.open_whole(self._version))
            if (self._version, self._total) not in (("", -1), (body.version, body.total)):
                raise Changed(f"it was {self._version} of {self._total:,} bytes; is {body.version} of {body.total:,}")
            self._version, self._total, self._chunks = body.version, body.total, body.chunks
        while True:
            async with asyncio.timeout(stall):
                chunk = await anext(self._chunks, b"")
            trial.progressed()
            self._access.counts["bytes"] += len(chunk)
            if left < len(chunk) or not chunk:
                return chunk[left:]
            left -= len(chunk)

    async def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            with suppress(Exception):
                await answer.aclose()
