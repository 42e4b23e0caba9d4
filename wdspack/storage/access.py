"""How a process reads: its settings, its memory budget, and what it has counted.

transfer(remote, start, stop) ──▶ bytes, whatever happens on the way: tried again, from the very byte where it broke
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from wdspack.config import Reading
from wdspack.errors import ConfigError
from wdspack.storage.faults import Broken, Changed, PastEnd, Unranged, diagnose, shard_error
from wdspack.storage.remotes import Remote

logger = logging.getLogger("wdspack")

T = TypeVar("T")

_FIRST_PAUSE = 0.2  # seconds at most before the first retry; doubled each time
_LONGEST_PAUSE = 10.0
_CRAWL = 1 << 15  # bytes a second below which a connection is given up for a new one

_jitter = random.SystemRandom()  # processes that were forked must not come back in step


class Budget:
    """Bytes that the readers of a process may hold ahead of where they read. Used in fsspec's event loop only.

    Each reader has an equal share, for the file it reads and those that come next; a file that holds nothing always
    gets a block, so that none can starve.
    """

    LARGEST, SMALLEST = 6 << 20, 1 << 18  # bytes of a block; see tools/bench_storage.py

    def __init__(self, total: int) -> None:
        self._total = total
        self._spare: list[bytearray] = []  # of largest blocks; a new one costs page faults
        self._used = 0
        self._readers: dict[Callable[[], None], object] = {}  # by the pumps of their files
        self._held: dict[Callable[[], None], int] = {}  # bytes
        self._by_reader: Counter[object] = Counter()

    def join(self, pump: Callable[[], None], reader: object) -> None:
        """pump: called whenever there may be room again, those that joined first before others."""
        self._readers[pump], self._held[pump] = reader, 0
        self._by_reader[reader] += 0

    def leave(self, pump: Callable[[], None]) -> None:
        """Gives back what is held."""
        if pump in self._readers:
            self._count(pump, -self._held[pump])
            reader = self._readers.pop(pump)
            del self._held[pump]
            if reader not in self._readers.values():
                del self._by_reader[reader]
            self._wake()

    def grant(self, pump: Callable[[], None], wanted: int) -> int:
        """Bytes of the block that may now be asked for, `wanted` at most; 0 for none."""
        share = self._total // len(self._by_reader)
        block = min(wanted, max(self.SMALLEST, min(self.LARGEST, share // 2)))
        over = self._by_reader[self._readers[pump]] + block > share or self._used + block > self._total
        if over and self._held[pump]:
            return 0
        if over:
            block = min(block, self.SMALLEST)
        self._count(pump, block)
        return block

    def release(self, pump: Callable[[], None], n: int) -> None:
        if pump in self._readers:
            self._count(pump, -n)
            self._wake()

    def _count(self, pump: Callable[[], None], n: int) -> None:
        self._held[pump] += n
        self._by_reader[self._readers[pump]] += n
        self._used += n

    def buffer(self, size: int) -> bytearray:
        """Memory for a block that was granted."""
        found = self._spare.pop() if size == self.LARGEST and self._spare else None
        while self._spare and self._used + len(self._spare) * self.LARGEST > self._total:
            self._spare.pop()
        return bytearray(size) if found is None else found

    def take_back(self, buffer: bytearray) -> None:
        """Of a block that nobody reads or writes any more."""
        if len(buffer) == self.LARGEST:
            self._spare.append(buffer)

    def _wake(self) -> None:
        for pump in list(self._readers):
            pump()


class Access:
    """One process's way to the storage.

    counts: see `Ledger.storage`.
    """

    def __init__(self, reading: Reading | None = None) -> None:
        self.reading = reading or Reading()
        self.budget = Budget(self.reading.prefetch_bytes * 9 // 10)  # the rest is for what is just arriving
        self.counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()

    def news(self) -> Counter[str]:
        """What has been counted since this was asked last."""
        before, self._told = self._told, self.counts.copy()
        return self._told - before

    async def transfer(
        self,
        remote: Remote,
        start: int,
        stop: int,
        take: Callable[[bytes], None],
        *,
        version: str = "",
        size: int | None = None,
        opened: Callable[[int, str], None] | None = None,
    ) -> str:
        """Hands bytes [start, stop) to `take`, in order, fewer where the file ends; returns the file's version.

        A request that fails for a passing reason is made again, for the bytes not yet here, after a random pause of at
        most 0.2 s · 2^n (10 s at most), until no byte has come for `retry_seconds`. One that stands still or crawls
        (under 32 kB/s for `stall_seconds`) is given up for a new one. version, size: of the file, where they are known.
        opened: told size and version early on.

        Raises ShardError; Unranged as it is.
        """
        trial = Trial(self, remote.url)
        stall = self.reading.stall_seconds if remote.streams else trial.patience + self.reading.stall_seconds
        while start < stop:
            try:
                await remote.connect()  # not on the clock: the first time it takes a second of CPU
                self.counts["requests"] += 1
                async with asyncio.timeout(stall) as clock, remote.open(start, stop, version) as body:
                    if version and body.version != version:
                        raise Changed(f"its version was {version}, and is {body.version}")
                    if size not in (None, body.total):
                        raise Changed(f"it had {size:,} bytes, and has {body.total:,}")
                    version, size, stop = body.version, body.total, min(stop, body.total)
                    if opened:
                        opened(body.total, version)
                    marked = start
                    async for chunk in body.chunks:
                        chunk = chunk[: stop - start]
                        take(chunk)
                        start += len(chunk)
                        self.counts["bytes"] += len(chunk)
                        trial.progressed()
                        if start - marked >= _CRAWL * stall:
                            marked = start
                            clock.reschedule(asyncio.get_running_loop().time() + stall)
                    if start < stop:
                        raise Broken("short", f"the body ended {stop - start:,} bytes early")
            except PastEnd:
                if opened:
                    opened(min(start, await self.ask(remote, remote.size)), version)
                return version
            except (Unranged, ConfigError):
                raise
            except Exception as error:
                await self.pause(trial, error, start or None, remote=remote)
        return version

    async def ask(self, remote: Remote, question: Callable[[], Awaitable[T]], *, timeout: float | None = None) -> T:
        """The answer to any other request, tried as `transfer` does. timeout: seconds for one attempt.

        Raises ShardError.
        """
        trial = Trial(self, remote.url)
        while True:
            try:
                self.counts["requests"] += 1
                async with asyncio.timeout(timeout or self.reading.stall_seconds):
                    return await question()
            except ConfigError:
                raise
            except Exception as error:
                await self.pause(trial, error, remote=remote)

    async def pause(self, trial: "Trial", error: Exception, offset: int | None = None, *, remote: Remote) -> None:
        """Waits before `remote` is tried again. Raises ShardError if that is in vain."""
        if trial.may_renew(error) and await remote.renew():
            return
        await asyncio.sleep(trial.failed(error, offset))


class Trial:
    """One thing that is tried until it succeeds, or nothing has come of it for `retry_seconds`."""

    def __init__(self, access: Access, url: str) -> None:
        self.patience = access.reading.retry_seconds
        self._counts, self._url = access.counts, url
        self._progress, self._failures, self._renewed = time.monotonic(), 0, False

    def progressed(self) -> None:
        self._progress, self._failures = time.monotonic(), 0

    def may_renew(self, error: Exception) -> bool:
        """Whether to read credentials anew before anything else: once, where they have expired."""
        if self._renewed or diagnose(error).why != "expired":
            return False
        self._renewed = True
        self._counts["retried_expired"] += 1
        return True

    def failed(self, error: Exception, offset: int | None = None) -> float:
        """Seconds to wait before the next attempt. Raises ShardError if there is to be none."""
        fault, waited = diagnose(error), time.monotonic() - self._progress
        if not fault.transient or waited > self.patience:
            tried = f" ({self._failures + 1} attempts in {waited:.0f} s without a byte)" if self._failures else ""
            raise shard_error(error, self._url, offset, tried) from error
        self._counts[f"retried_{fault.why}"] += 1
        pause = _jitter.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10)))
        self._failures += 1
        log = logger.warning if self._failures == 5 else logger.debug
        log("%s: %s; trying again for up to %g s", self._url, fault.message, self.patience)
        return pause
