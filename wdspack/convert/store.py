"""Where conversion writes: a folder of any filesystem of fsspec, in which a file is there whole or not at all.

Locally a file is written beside its place under a temporary name, then moved. An object store shows an upload only
when it is complete: there it is written under its own name, in an fsspec transaction, which takes back what fails.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast
from uuid import uuid4

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from wdspack.errors import ConfigError

_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{12}\.partial")
_AT_ONCE = 32  # requests


@dataclass(frozen=True, slots=True)
class Store:
    """A folder: its URL or path, and the options of its filesystem. Names are relative to it, with '/'.

    It holds no connection, so it can be sent to other processes. Local paths become absolute. What the filesystem
    raises is not translated, but for what cannot be a folder: ConfigError.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.url.strip() or "::" in self.url:  # fsspec would take "a::b" for a file within a file
            raise ConfigError(
                f"{self.url!r} is not a folder; give a path without '::', or a URL such as s3://bucket/folder"
            )
        if "://" not in self.url and not self.url.startswith("memory:"):
            path = os.path.abspath(os.path.expanduser(self.url))
            if os.path.exists(path) and not os.path.isdir(path):
                raise ConfigError(f"{self.url} is a file; give a folder")
            object.__setattr__(self, "url", path)

    @property
    def folder(self) -> str | None:
        """Its path, if it is local."""
        fs, path = self._filesystem("")
        return path if isinstance(fs, LocalFileSystem) else None

    def at(self, name: str) -> str:
        """URL of a file in it."""
        return posixpath.join(self.url, name)

    def within(self, folder: str) -> "Store":
        return Store(self.at(folder), self.storage_options)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A new file, which takes its place when the block is left; if that is by an exception, nothing remains."""
        fs, path = self._filesystem(name)
        if not isinstance(fs, LocalFileSystem):
            with fs.transaction, fs.open(path, "wb") as file:
                yield file
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{uuid4().hex[:12]}.partial"  # as in _TEMPORARY
        try:
            with open(temporary, "xb", buffering=1 << 18) as file:
                yield file
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise

    def put(self, name: str, data: bytes) -> None:
        """Writes a small file at once."""
        fs, path = self._filesystem(name)
        if isinstance(fs, LocalFileSystem):
            with self.writing(name) as file:
                file.write(data)
        else:
            fs.pipe_file(path, data)

    def get(self, names: Sequence[str]) -> list[bytes]:
        """All bytes of some small files, together. Raises FileNotFoundError."""
        fs, root = self._filesystem("")
        found = fs.cat([posixpath.join(root, name) for name in names]) if names else {}
        return [cast(bytes, data) for data in (found.values() if isinstance(found, dict) else [found])]

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """The bytes [start, end) of each (name, start, end), in one round of concurrent requests."""
        fs, root = self._filesystem("")
        names, starts, ends = zip(*wanted, strict=True)
        paths = [posixpath.join(root, name) for name in names]
        return [bytes(data) for data in fs.cat_ranges(paths, list(starts), list(ends), on_error="raise")]

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Name → bytes of the files right in a folder, by one listing; temporary ones excepted."""
        return {name: size for name, size in self._list(folder).items() if not _TEMPORARY.fullmatch(name)}

    def clear(self, folder: str = "") -> None:
        """Removes a folder with all that is in it, if it is there."""
        fs, path = self._filesystem(folder)
        if isinstance(fs, LocalFileSystem):
            if fs.exists(path):
                fs.rm(path, recursive=True)
            return
        fs.invalidate_cache(path)
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # s3fs removes many by one request, which not every S3 server takes
            list(pool.map(fs.rm_file, fs.find(path)))

    def remove(self, name: str) -> None:
        fs, path = self._filesystem(name)
        fs.rm_file(path)

    def remove_temporary(self, names: re.Pattern[str]) -> None:
        """Removes what killed writers left of files that are called so."""
        for name in self._list(""):
            if (left := _TEMPORARY.fullmatch(name)) and names.fullmatch(left[1]):
                self.remove(name)

    def _list(self, folder: str) -> dict[str, int]:
        fs, path = self._filesystem(folder)
        fs.invalidate_cache(path)
        try:
            found = fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        return {posixpath.basename(entry["name"]): entry["size"] for entry in found if entry["type"] == "file"}

    def _filesystem(self, name: str) -> tuple[AbstractFileSystem, str]:
        try:
            fs, path = url_to_fs(self.at(name) if name else self.url, **self.storage_options)
        except (ValueError, ImportError, TypeError) as error:
            raise ConfigError(f"{self.url}: {error}; give a path, or a URL such as s3://bucket/folder") from error
        return fs, cast(str, path)
