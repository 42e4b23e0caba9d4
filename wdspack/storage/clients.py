"""fsspec filesystems, made so that what is above can count and time every request, and so that forks do no harm."""

import os
import sys
from collections.abc import Mapping
from typing import Any, cast

from fsspec import AbstractFileSystem
from fsspec.asyn import reset_lock
from fsspec.core import split_protocol, url_to_fs

from wdspack.errors import ConfigError

_CONNECTIONS = 64  # of one client; botocore's default of 10 would be the limit otherwise

Options = Mapping[str, Any] | None

_CLIENTS = (
    ("s3fs.core", "S3FileSystem"), ("fsspec.implementations.http", "HTTPFileSystem"), ("gcsfs.core", "GCSFileSystem"),
)  # fmt: skip
_inherited: list[Any] = []


def _hold() -> None:
    """Before a fork: holds on to the filesystems there are, for the child's sake.

    fsspec lets go of its parent's filesystems in a child, where collecting them would close clients whose sockets and
    epoll the parent goes on using.
    """
    classes = [getattr(sys.modules.get(module), name, None) for module, name in _CLIENTS]
    _inherited.extend(fs for cls in classes if cls is not None for fs in cls._cache.values())


os.register_at_fork(before=_hold, after_in_parent=_inherited.clear, after_in_child=reset_lock)  # and its thread


def filesystem(url: str, options: Options, stall_seconds: float = 20.0) -> tuple[AbstractFileSystem, str]:
    """The filesystem of this process for a URL, and the path in it.

    fsspec caches filesystems by process and options, so clients are shared within a process and never across a fork.
    """
    given = dict(options or {})
    protocol = split_protocol(url.partition("::")[0])[0]
    if protocol in ("s3", "s3a"):
        # boto would find it, but a filesystem that fsspec has cached would not notice that it has changed.
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint and "endpoint_url" not in (given.get("client_kwargs") or {}):
            given.setdefault("endpoint_url", endpoint)
        given["config_kwargs"] = {
            "max_pool_connections": _CONNECTIONS,
            "connect_timeout": min(10.0, stall_seconds),
            "read_timeout": stall_seconds,
            "retries": {"total_max_attempts": 1},  # ours are counted, and go on where a body broke
            **(given.get("config_kwargs") or {}),
        }
    try:
        fs, path = url_to_fs(url, **given)
    except ImportError as error:
        raise ConfigError(f"{url}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{url}: {error}; check its scheme, and the names in storage_options: {sorted(options or {})}"
        ) from error
    return fs, cast(str, path)
