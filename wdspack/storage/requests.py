"""Single requests, from a thread that waits for them."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from fsspec.asyn import get_loop

from wdspack.storage.access import Access
from wdspack.storage.faults import Changed
from wdspack.storage.remotes import OtherFile, Remote, in_thread

_ALL = 1 << 50  # more bytes than any file has
_AT_ONCE = 16  # requests

T = TypeVar("T")


class Stat(NamedTuple):
    """size: bytes. version: what changes when the file does."""

    size: int
    version: str


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it in fsspec's event loop; cancels it if the waiting is interrupted."""
    future = asyncio.run_coroutine_threadsafe(coroutine, get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def fetch(access: Access, remote: Remote, stop: int = _ALL) -> bytes:
    """The file's first `stop` bytes, or all of them. Raises ShardError; Unranged as it is."""
    found = bytearray()
    wait_for(access.transfer(remote, 0, stop, found.extend))
    return bytes(found)


def fetch_all(access: Access, remote: Remote, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of each (start, stop), requested side by side. Raises ShardError; Unranged as it is."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(start: int, stop: int) -> tuple[bytes, str]:
        found = bytearray()
        async with limit:
            version = await access.transfer(remote, start, stop, found.extend)
        return bytes(found), version

    async def every() -> list[tuple[bytes, str]]:
        tasks = [asyncio.ensure_future(one(*span)) for span in spans]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # of one that failed, the others are of no use
                task.cancel()

    found = wait_for(every())
    if len(versions := {version for _, version in found if version}) > 1:
        raise Changed(f"its version was {versions.pop()}, and is {versions.pop()}")
    return [data for data, _ in found]


def stat(access: Access, remote: Remote) -> Stat:
    """Size and version. Raises ShardError; Unranged as it is."""
    found: list[Stat] = []
    wait_for(access.transfer(remote, 0, 1, lambda _: None, opened=lambda *said: found.append(Stat(*said))))
    return found[-1]


def ask_size(access: Access, remote: Remote) -> int:
    """Size, by a request for it alone. Raises ShardError."""
    return wait_for(access.ask(remote, remote.size))


def glob(access: Access, fs: Any, path: str, url: str) -> dict[str, Any]:
    """fsspec's glob, by a fresh listing. Raises ShardError."""
    fs.invalidate_cache()

    async def listed() -> dict[str, Any]:
        if fs.async_impl:
            return dict(await fs._glob(path, detail=True))
        return dict(await in_thread(fs.glob, path, detail=True))

    return wait_for(access.ask(OtherFile(fs, path, url), listed, timeout=3600))
