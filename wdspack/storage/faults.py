"""What an exception of a storage means: whether to try again, what to call it, and what the user can do.

Every library beneath has exceptions of its own (botocore, aiohttp, requests, the operating system). They are told apart
here and nowhere else.
"""

import asyncio
import errno
import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wdspack.errors import ConfigError, ShardError


class Broken(Exception):
    """A request that did not bring what it promised, or not in time. why: as `Fault.why`."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Changed(Exception):
    """The file is no longer the one that reading began with."""


class PastEnd(Exception):
    """A range was asked for that begins at or after the end of the file."""


class Unranged(Exception):
    """The server sends whole files only."""


@dataclass(frozen=True, slots=True)
class Fault:
    """why: a word to count retries by. transient: it may be gone in a moment. reason: of the `ShardError`.

    message: what happened, and what to do.
    """

    why: str
    transient: bool
    reason: str
    message: str


_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "RequestThrottled",
}
_TRANSIENT = {"InternalError", "ServiceUnavailable", "RequestTimeout", "RequestTimeoutException", "OperationAborted"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_LOCAL = {
    errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.EMFILE, errno.ENFILE,
    errno.ENOMEM, errno.ENOSPC, errno.EIO,
}  # fmt: skip


def diagnose(error: BaseException) -> Fault:
    """Tells what an exception from reading a file means."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, Broken):
        return _transient(error.why, str(error))
    if isinstance(error, Changed):
        return Fault(
            "changed", False, "changed", f"{error}: it was replaced while it was read; write shards once, under new "
            "names, and start again from a checkpoint or afresh",
        )  # fmt: skip
    if isinstance(error, gzip.BadGzipFile | zlib.error | EOFError):
        return Fault("bad_gzip", False, "bad_gzip", f"broken gzip ({error}); compress or fetch the shard again")
    code, status = _answer(error)
    if code or status:
        return _from_answer(code, status, said)
    name = type(error).__name__
    if "Credential" in name or "Profile" in name or "SSO" in name:
        if name == "CredentialRetrievalError":
            return _transient("credentials", said)
        return _denied(said)
    if isinstance(error, FileNotFoundError):
        return _bucketless(said) if "bucket" in said.lower() else _missing(said)
    if isinstance(error, PermissionError):
        return _expired(said) if "expired" in said.lower() else _denied(said)
    chain = " ".join(type(e).__name__ for e in _causes(error)) + f" {error}"
    if "CERTIFICATE_VERIFY" in chain or "WRONG_VERSION_NUMBER" in chain:
        return Fault(
            "tls",
            False,
            "unreadable",
            f"no secure connection ({said}); check http:// against https://, and certificates",
        )
    if isinstance(error, asyncio.TimeoutError | TimeoutError) or "Timeout" in name:
        return _transient("stalled", said)
    if (
        "EndpointConnection" in name
        or "ConnectionRefused" in chain
        or "ClientConnector" in name
        or "ConnectError" in name
    ):
        return _transient("refused", said)
    if (isinstance(error, OSError) and error.errno not in _LOCAL) or _of_network(error):
        return _transient("reset", said)
    return Fault(
        "unreadable", False, "unreadable", f"cannot be read ({said}); check access, storage_options and the connection"
    )


def shard_error(error: BaseException, url: str, offset: int | None = None, tried: str = "") -> ShardError:
    """The `ShardError` that says it. tried: how often and how long, where it was."""
    fault = diagnose(error)
    return ShardError(fault.message + tried, url=url, offset=offset, reason=fault.reason)


@contextmanager
def translating(url: str) -> Iterator[None]:
    """Lets nothing but errors of ours out."""
    try:
        yield
    except (ShardError, ConfigError):
        raise
    except Exception as error:
        raise shard_error(error, url) from error


def shortened(url: str, end: int) -> ShardError:
    """For a shard that ends at `end`, before something that was in it once."""
    advice = "bring back the shard as it was when the state was saved, or start afresh"
    return ShardError(f"ends before the bytes that are wanted of it; {advice}", url=url, offset=end, reason="truncated")


def _from_answer(code: str, status: int, said: str) -> Fault:
    if code in _EXPIRED:
        return _expired(said)
    if code in _THROTTLED or status == 429 or (status == 503 and not code):
        return _transient("throttled", said)
    if code in _TRANSIENT or status >= 500 or status == 408:
        return _transient("unavailable", said)
    if code == "NoSuchBucket":
        return _bucketless(said)
    if code in ("NoSuchKey", "NoSuchVersion") or status in (404, 410):
        return _missing(said)
    if code == "PreconditionFailed" or status == 412:
        return diagnose(Changed("its ETag is another one"))
    if (
        code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
        or status == 301
    ):
        return Fault(
            "region",
            False,
            "denied",
            f"another region or endpoint is in charge ({said}); set AWS_REGION or endpoint_url",
        )
    if code == "RequestTimeTooSkewed":
        return Fault("clock", False, "denied", f"this machine's clock is wrong ({said}); set it")
    if status in (401, 403):
        return _denied(said)
    return Fault(
        "unreadable", False, "unreadable", f"cannot be read ({said}); check the url and the storage's settings"
    )


def _answer(error: BaseException) -> tuple[str, int]:
    """(error code of S3, HTTP status) of an exception that carries a server's answer; ("", 0) of others."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore.exceptions.ClientError
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0
        code = str(answer.get("Error", {}).get("Code", ""))
        return ("" if code.isdigit() else code), int(status or (code if code.isdigit() else 0))
    for holder, name in ((error, "status"), (answer, "status_code"), (error, "code")):
        value = getattr(holder, name, None)
        if isinstance(value, int) and 300 <= value < 600:
            return "", value
    return "", 0


def _of_network(error: BaseException) -> bool:
    """Whether it comes from the transport beneath a client; without importing clients that are not used."""
    classes = [
        getattr(sys.modules.get(module), name, None)
        for module, name in (
            ("aiohttp", "ClientError"), ("botocore.exceptions", "HTTPClientError"),
            ("botocore.exceptions", "IncompleteReadError"), ("http.client", "HTTPException"),
            ("requests", "RequestException"), ("httpx", "TransportError"),
        )
    ]  # fmt: skip
    return isinstance(error, tuple(cls for cls in classes if cls is not None))


def _causes(error: BaseException | None) -> list[BaseException]:
    """The exception, what it wraps, and what caused those."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        kwargs = getattr(error, "kwargs", None)  # botocore keeps the original there
        inner = kwargs.get("error") if isinstance(kwargs, dict) else None
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return found


def _transient(why: str, said: str) -> Fault:
    return Fault(
        why, True, "unreadable", f"cannot be read ({said}); check the endpoint, the connection and the storage's health"
    )


def _missing(said: str) -> Fault:
    return Fault(
        "missing", False, "missing", f"not found ({said}); check the name, and that the storage is the right one"
    )


def _bucketless(said: str) -> Fault:
    return Fault(
        "no_bucket", False, "no_bucket", f"no such bucket ({said}); check its name, the endpoint and the region"
    )


def _denied(said: str) -> Fault:
    return Fault(
        "denied", False, "denied", f"access denied ({said}); for S3, check the key and secret (AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_PROFILE or storage_options), and that they may read it; a public bucket needs "
        "storage_options={'anon': True}",
    )  # fmt: skip


def _expired(said: str) -> Fault:
    return Fault(
        "expired", False, "expired", f"the credentials have expired ({said}); renew AWS_SESSION_TOKEN, or use a "
        "profile or role that renews itself, and go on from the last checkpoint",
    )  # fmt: skip
