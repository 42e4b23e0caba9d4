"""A remote file, read forwards: ranges are requested side by side ahead of the reader, and delivered in order.

    consumer's thread                         fsspec's event loop
    readinto ◀── queue of blocks, in order ◀── pump: a request for each block, as far as the budget goes
       └──────── block used up ──────────────▶ release ─▶ pump

The first answer tells the file's size and version; the requests that follow state that version.
"""

import asyncio
import contextlib
import io
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from fsspec.asyn import get_loop

from wdspack.storage.access import Access
from wdspack.storage.remotes import Remote

T = TypeVar("T")

_NEARLY = 1 << 25  # bytes that a fast connection brings until a request made now is answered


class _Block:
    """Bytes [start, start + len(data)) of the file; `ready` when they are all there, or have failed."""

    def __init__(self, start: int, data: bytearray) -> None:
        self.start, self.size, self.data = start, len(data), data
        self.granted = self.size  # bytes of the budget
        self.filled = 0
        self.ready: Future[None] = Future()
        self.task: asyncio.Task[None] | None = None

    def take(self, chunk: bytes) -> None:
        self.data[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)


class PrefetchFile(io.RawIOBase):
    """Reads from `start` on. Seeking goes forwards only; what is skipped and not yet asked for never is.

    reader: whose share of the budget it takes; one of its own by default.

    Raises, in `readinto`: ShardError; Unranged.
    """

    def __init__(self, remote: Remote, access: Access, *, start: int = 0, reader: object = None) -> None:
        super().__init__()
        self._remote, self._access, self._reader = remote, access, reader or object()
        self._loop = get_loop()
        self._at = start  # of the consumer
        self._block: _Block | None = None  # the one the consumer stands in
        self._queue: SimpleQueue[_Block | None] = SimpleQueue()
        self._known: Future[int] = Future()  # the file's size
        # The rest belongs to the event loop.
        self._next, self._version = start, ""
        self._size: int | None = None
        self._all_asked = False
        self._blocks: set[_Block] = set()
        self._most = 1 << 30  # blocks to hold: few after a skip, twice as many after each block read through
        self._then: Callable[[], None] | None = None
        self._loop.call_soon_threadsafe(self._begin)

    @property
    def size(self) -> int:
        """Of the file, in bytes. Waits for the first answer. Raises as `readinto` does."""
        return self._waited(self._known)

    def failed(self) -> bool:
        """Whether the first answer is an error. Waits for it."""
        try:
            return self.size < 0
        except Exception:
            return True

    def when_nearly_asked(self, call: Callable[[], None]) -> None:
        """Has `call` called once, in the event loop, when few of the file's bytes have not been asked for."""
        self._tell(self._set_then, call)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        """The next `n` bytes, fewer only at the end of the file: copied once, where a buffer would copy them twice."""
        pieces = []
        while n and (found := self._peek(n if n > 0 else 1 << 62)):
            pieces.append(bytes(found))
            self._at += len(found)
            n -= len(found) if n > 0 else 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def peek(self, n: int) -> bytes:
        """The next bytes, `n` of them unless a block ends before, which stay to be read."""
        return bytes(self._peek(n))

    def readinto(self, buffer: "memoryview[int] | bytearray") -> int:  # type: ignore[override]
        found = self._peek(len(buffer))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("only forwards; the file's `size` tells where it ends")
        target = offset + (self._at if whence == io.SEEK_CUR else 0)
        if target < self._at:
            raise io.UnsupportedOperation(f"at byte {self._at:,}, asked for {target:,}: only forwards")
        self._at = target
        return target

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Ends all requests. Needs no event loop that still runs."""
        if not self.closed:
            self._tell(self._end)
        super().close()

    def _peek(self, n: int) -> memoryview:
        """Up to `n` of the next bytes, as far as one block has them; none at the end of the file."""
        while (block := self._block or self._take()) is not None:
            offset = self._at - block.start
            if offset < block.size:
                self._waited(block.ready)
            if offset < block.filled or block.filled < block.size:  # a block that is short ends the file
                return memoryview(block.data)[offset : min(offset + n, block.filled)]
            self._block = None
            self._tell(self._release, block, self._at)
        return memoryview(b"")

    def _take(self) -> _Block | None:
        self._block = self._queue.get()
        if self._block is None:
            self._queue.put(None)  # for whoever asks again
        return self._block

    def _waited(self, future: "Future[T]") -> T:
        if future.done():
            return future.result()
        begun = time.monotonic()
        try:
            return future.result()
        finally:
            self._access.counts["waited_ms"] += round(1000 * (time.monotonic() - begun))

    def _tell(self, call: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed when the interpreter goes down
            self._loop.call_soon_threadsafe(call, *args)

    # ── in the event loop ──

    def _begin(self) -> None:
        self._access.budget.join(self._pump, self._reader)
        self._pump()

    def _pump(self) -> None:
        """Asks for as many further blocks as the budget allows; before the size is known, for the first one only."""
        while not self._all_asked and len(self._blocks) < self._most and (self._size is not None or not self._blocks):
            left = self._size - self._next if self._size is not None else 1 << 62
            if not (size := self._access.budget.grant(self._pump, left)):
                return
            block = _Block(self._next, self._access.budget.buffer(size))
            self._next += size
            self._blocks.add(block)
            block.task = self._loop.create_task(self._fill(block))
            self._queue.put(block)
            self._note_end()

    def _set_then(self, call: Callable[[], None]) -> None:
        self._then = call
        self._note_end()

    def _note_end(self) -> None:
        if self._size is None:
            return
        if self._then is not None and self._size - self._next <= _NEARLY:
            call, self._then = self._then, None
            call()
        if not self._all_asked and self._next >= self._size:
            self._all_asked = True
            self._queue.put(None)

    async def _fill(self, block: _Block) -> None:
        remote, stop = self._remote, block.start + block.size
        try:
            version = await self._access.transfer(
                remote, block.start, stop, block.take, version=self._version, size=self._size, opened=self._opened
            )
            if remote.check is not None and self._size is not None and stop >= self._size:
                others = [other.task for other in self._blocks if other is not block and other.task]
                if others:
                    await asyncio.wait(others)
                check = remote.check
                await self._access.ask(remote, lambda: check(version))
            block.ready.set_result(None)
        except asyncio.CancelledError:
            block.ready.cancel()
            raise
        except Exception as error:
            if not self._known.done():
                self._known.set_exception(error)
            block.ready.set_exception(error)

    def _opened(self, size: int, version: str) -> None:
        if self._size is None:
            self._size, self._version = size, version
            self._known.set_result(size)
            self._note_end()
            for block in tuple(self._blocks):  # the first one; the file may be smaller
                spare = min(block.granted, max(0, block.start + block.size - size))
                block.granted -= spare
                self._access.budget.release(self._pump, spare)
            self._pump()

    def _release(self, block: _Block, at: int) -> None:
        """The consumer is past `block`, at byte `at`."""
        self._blocks.discard(block)
        skipped = not block.ready.done()
        if skipped and block.task:
            block.task.cancel()
        else:
            self._access.budget.take_back(block.data)
        self._most = 1 if skipped else min(2 * self._most, 1 << 30)
        if self._size is not None and at > self._next:
            self._next = min(at, self._size)
            self._note_end()
        self._access.budget.release(self._pump, block.granted)

    def _end(self) -> None:
        self._all_asked = True
        for block in self._blocks:
            if block.task:
                block.task.cancel()
        self._blocks.clear()
        self._access.budget.leave(self._pump)
