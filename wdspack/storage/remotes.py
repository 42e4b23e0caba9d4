"""Files behind a network, as something that answers range requests: S3, HTTP, and any other fsspec filesystem.

    Remote.open(start, stop, version) ──▶ Body(start, total, version, chunks)       one request, no retries

A version is what must stay the same while a file is read: its ETag, or size and time of change. S3 and HTTP servers
are asked to check it (`If-Match`); other stores are asked for it again when the file has been read.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fsspec import AbstractFileSystem

from wdspack.errors import ConfigError
from wdspack.storage.faults import Changed, PastEnd, Unranged

T = TypeVar("T")

_CHUNK = 1 << 20  # bytes taken from a connection at most at once


@dataclass(frozen=True, slots=True)
class Body:
    """An answer whose headers are here. total: bytes of the whole file; -1 where the server does not say."""

    total: int
    version: str
    chunks: AsyncIterator[bytes]


class Remote(ABC):
    """One file. Lives in the process and the event loop (fsspec's) that use it.

    streams: whether chunks come as they arrive, rather than all at once.
    check: raises Changed if the file is not of a version any more; None where every request states the version.
    """

    streams = True
    check: Callable[[str], Awaitable[None]] | None = None

    def __init__(self, fs: Any, path: str, url: str) -> None:
        self._fs, self._path, self.url = fs, path, url

    async def connect(self) -> None:
        """Makes the client, the first time."""
        return

    @abstractmethod
    def open(self, start: int, stop: int, version: str) -> AbstractAsyncContextManager[Body]:
        """Asks for bytes [start, stop), of this version where one is given.

        Raises PastEnd, Changed, Unranged, or whatever the library beneath does.
        """

    @abstractmethod
    def open_whole(self, version: str) -> AbstractAsyncContextManager[Body]:
        """Asks for all bytes, of a server that knows no ranges. Raises as `open` does."""

    async def size(self) -> int:
        """Asked for only where a server will not say it in an answer: of an empty file, say."""
        self._fs.invalidate_cache()
        return int((await self._fs._info(self._path))["size"])

    async def renew(self) -> bool:
        """Reads credentials anew, since those in use have expired; False where there is no such thing."""
        return False


def remote_file(fs: AbstractFileSystem, path: str, url: str) -> Remote:
    """The Remote that suits a filesystem."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    kind = S3File if "s3" in protocols else HttpFile if "http" in protocols else OtherFile
    return kind(fs, path, url)


class S3File(Remote):
    """An object of S3, by the client that s3fs has set up (its credentials, endpoint, requester pays, encryption).

    Raises ConfigError: the URL names no object, or the client cannot be made of the options.
    """

    def __init__(self, fs: Any, path: str, url: str) -> None:
        super().__init__(fs, path, url)
        bucket, key, version_id = fs.split_path(path)
        if not bucket or not key:
            raise ConfigError(f"{url}: names no object; give s3://bucket/key, or a folder's name with a last '/'")
        self._object = {"Bucket": bucket, "Key": key} | ({"VersionId": version_id} if version_id else {})
        self._client: Any = None

    async def connect(self) -> None:
        try:
            await self._fs.set_session()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.url}: {error}; check storage_options and the AWS_* environment: names as s3fs has them, "
                "an endpoint_url that begins with http:// or https://"
            ) from error
        self._client = await self._fs.get_s3(self._object["Bucket"])

    @asynccontextmanager
    async def open(self, start: int, stop: int, version: str) -> AsyncIterator[Body]:
        from botocore.exceptions import ClientError

        try:
            async with self._get(version, Range=f"bytes={start}-{stop - 1}") as answer:
                total = _total(answer.get("ContentRange", ""), start)
                yield Body(total, answer.get("ETag", ""), _chunks(answer["Body"]))
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 416:
                raise PastEnd from error
            raise

    @asynccontextmanager
    async def open_whole(self, version: str) -> AsyncIterator[Body]:
        async with self._get(version) as answer:
            yield Body(answer["ContentLength"], answer.get("ETag", ""), _chunks(answer["Body"]))

    async def renew(self) -> bool:
        used = self._client
        if used is None or self._fs._s3 is used:  # otherwise another request has done it
            await self._fs.set_session(refresh=True)
        return True

    @asynccontextmanager
    async def _get(self, version: str, **wanted: str) -> AsyncIterator[dict[str, Any]]:
        get, asked = self._client.get_object, self._object | wanted | ({"IfMatch": version} if version else {})
        answer = await get(**self._fs._get_s3_method_kwargs(get, self._fs.req_kw, **asked))
        try:
            yield answer
        finally:
            answer["Body"].close()  # a body not read to its end takes its connection along


class HttpFile(Remote):
    """A file behind http:// or https://."""

    @asynccontextmanager
    async def open(self, start: int, stop: int, version: str) -> AsyncIterator[Body]:
        async with self._get(version, Range=f"bytes={start}-{stop - 1}") as answer:
            if answer.status == 416:
                raise PastEnd
            answer.raise_for_status()
            if answer.status != 206:
                raise Unranged
            total = _total(answer.headers.get("Content-Range", ""), start)
            yield Body(total, _validator(answer.headers), answer.content.iter_any())

    @asynccontextmanager
    async def open_whole(self, version: str) -> AsyncIterator[Body]:
        async with self._get(version) as answer:
            answer.raise_for_status()
            total = int(answer.headers.get("Content-Length", -1))
            yield Body(total, _validator(answer.headers), answer.content.iter_any())

    def _get(self, version: str, **wanted: str) -> Any:
        import aiohttp

        asked = {"Accept-Encoding": "identity", **wanted}
        if version.startswith('"'):  # a strong ETag; servers may not compare others
            asked["If-Match"] = version
        kwargs = {"timeout": aiohttp.ClientTimeout(total=None), **self._fs.kwargs}  # the caller's clock is stricter
        kwargs["headers"] = {**kwargs.get("headers", {}), **asked}
        return self._session.get(self._fs.encode_url(self._path), **kwargs)

    async def connect(self) -> None:
        self._session = await self._fs.set_session()


class OtherFile(Remote):
    """A file of any other fsspec filesystem: a range is one call, in a thread where the filesystem is not async."""

    streams = False

    def __init__(self, fs: Any, path: str, url: str) -> None:
        super().__init__(fs, path, url)
        self.check = self._check
        self._info: dict[str, Any] | None = None

    @asynccontextmanager
    async def open(self, start: int, stop: int, version: str) -> AsyncIterator[Body]:
        del version  # cannot be asked for; `check` is for that
        if self._info is None:
            self._info = await self._call("info")
        total = self._info.get("size")
        if total is None:
            raise Unranged
        if start >= total:
            raise PastEnd
        yield Body(total, _version(self._info), self._chunk(start=start, end=min(stop, total)))

    @asynccontextmanager
    async def open_whole(self, version: str) -> AsyncIterator[Body]:
        yield Body(-1, version, self._chunk())

    async def size(self) -> int:
        self._fs.invalidate_cache()
        return int((await self._call("info"))["size"])

    async def _check(self, version: str) -> None:
        self._fs.invalidate_cache()
        found = _version(await self._call("info"))
        if version and found != version:
            raise Changed(f"it was {version}, and is {found}")

    async def _chunk(self, **extent: int) -> AsyncIterator[bytes]:
        yield await self._call("cat_file", **extent)

    async def _call(self, name: str, **kwargs: Any) -> Any:
        if self._fs.async_impl:
            return await getattr(self._fs, f"_{name}")(self._path, **kwargs)
        if name == "cat_file" and type(self._fs).cat_file is AbstractFileSystem.cat_file:
            return await in_thread(self._uncached, **kwargs)
        return await in_thread(getattr(self._fs, name), self._path, **kwargs)

    def _uncached(self, start: int = 0, end: int | None = None) -> bytes:
        """fsspec's own cat_file opens a file that reads ahead: more bytes than are asked for."""
        with self._fs.open(self._path, "rb", cache_type="none") as file:
            file.seek(start)
            return cast(bytes, file.read(-1 if end is None else end - start))


async def in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What `call` returns, from a thread of its own that neither others nor the end of the process wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():  # cancelled, when it took too long
            settle(outcome)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = future.set_result, call(*args, **kwargs)
        except Exception as error:
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name="wdspack-storage", daemon=True).start()
    return await future


def _chunks(body: Any) -> AsyncIterator[bytes]:
    """A body's bytes as they arrive. aiohttp's own iterator costs less than aiobotocore's around it."""
    content: Any = getattr(getattr(body, "raw_stream", None), "content", None)
    return cast(AsyncIterator[bytes], content.iter_any() if hasattr(content, "iter_any") else body.iter_chunks(_CHUNK))


def _total(content_range: str, start: int) -> int:
    """ "bytes 5-9/100" → 100. Raises Unranged if another range came, or none."""
    extent, _, total = content_range.removeprefix("bytes ").partition("/")
    if extent.partition("-")[0].strip() != str(start) or not total.isdigit():
        raise Unranged
    return int(total)


def _validator(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified", "")


def _version(info: Mapping[str, Any]) -> str:
    names = (
        "ETag", "etag", "generation", "xet_hash", "blob_id", "sha256",
        "mtime", "last_modified", "LastModified", "created",
    )  # fmt: skip
    said = next((f"{name}={info[name]}" for name in names if info.get(name)), "")
    return f"{info.get('size')} bytes, {said}" if said else ""
