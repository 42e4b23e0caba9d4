"""The folder that a dataset's image paths are relative to, and out of which nothing is read."""

import base64
import binascii
import errno
import os
import posixpath
import reprlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from wdspack.errors import SampleError, ShardError
from wdspack.storage import read_file

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """url: a local folder or a URL. Paths come from strangers: see `fetch` for what is refused."""

    url: str
    storage_options: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        return "://" not in self.url or self.url.startswith(("file://", "local://"))

    def fetch(self, image: bytes | str | None, number: int = 0) -> bytes:
        """An image's bytes: as they are, from a "data:" URL, or from the file at a path below the root.

        Refused are other URLs, and any "..", also with backslashes or %-escapes; absolute paths, but for those of local
        files below the root; what a symbolic link leads out of it to; what is not a regular file (a pipe would wait
        for ever).

        Raises SampleError "outside_root", "missing_image" or "broken_image"; ShardError if the storage fails.
        """
        if isinstance(image, bytes):
            return image
        if not isinstance(image, str) or not image:
            given = "null" if image is None else reprlib.repr(image)
            raise SampleError(f"image {number} is {given}; give its bytes or a path", reason="missing_image")
        if image.startswith("data:"):
            return _data_url(image, number)
        try:
            image.encode()
        except UnicodeEncodeError:
            message = f"image {number} is {reprlib.repr(image)}, which is not valid Unicode; rename the file"
            raise SampleError(message, reason="bad_text") from None
        path = image.replace("\\", "/")
        if _escapes(path.removeprefix("/") if self.is_local else path):
            raise SampleError(
                f"image {number} is {reprlib.repr(image)}, but images are read from below {self.url} only; "
                "give a path relative to it, without '..'",
                reason="outside_root",
            )
        missing = SampleError(
            f"image {number}, {reprlib.repr(image)}, is not a file below {self.url}; check the image folder",
            reason="missing_image",
        )
        if self.is_local:
            return self._read_local(path, missing)
        try:
            url = f"{self.url.rstrip('/')}/{posixpath.normpath(path)}"
            return read_file(url, storage_options=self.storage_options)
        except ShardError as error:
            if error.reason != "missing":
                raise
            raise missing from error

    def _read_local(self, path: str, missing: SampleError) -> bytes:
        """By the system's own calls, and resolving each folder once: through fsspec a small image takes five times as
        long, which would be most of a conversion."""
        root, folder = _folders(self.url.partition("://")[2] or self.url, os.path.dirname(path))
        found = os.path.join(folder, os.path.basename(path))
        try:
            if found.startswith(root) and os.path.islink(found):
                found = os.path.realpath(found)
            if not found.startswith(root):
                raise SampleError(
                    f"{reprlib.repr(path)} leads out of {self.url}, below which images are read; copy the file into it",
                    reason="outside_root",
                )
            if not stat.S_ISREG(os.lstat(found).st_mode):
                raise missing
            with open(found, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            if error.errno in _ABSENT:
                raise missing from error
            message = f"cannot be read ({type(error).__name__}: {error}); check access and the disk"
            raise ShardError(message, url=found, reason="unreadable") from error


@lru_cache(maxsize=4096)
def _folders(root: str, folder: str) -> tuple[str, str]:
    """The root with a slash, and a folder that is below it by name, both without links."""
    root = os.path.realpath(root)
    return root.rstrip("/") + "/", os.path.realpath(os.path.join(root, folder))


def _escapes(path: str) -> bool:
    """Whether a path could mean a file elsewhere, to a server that resolves %-escapes once or twice, too."""
    for _ in range(3):
        if path.startswith("/") or path[1:2] == ":" or ".." in path.split("/"):
            return True
        if "://" in path or "::" in path or "\0" in path:  # fsspec takes "::" for a chain of URLs
            return True
        if "%" not in path:
            return False
        path = unquote(path).replace("\\", "/")
    return False


def _data_url(url: str, number: int) -> bytes:
    kind, comma, data = url.partition(",")
    try:
        if comma:
            return base64.b64decode(data, validate=True) if kind.endswith(";base64") else unquote_to_bytes(data)
    except binascii.Error:
        pass
    raise SampleError(f"image {number} is a malformed data: URL, {reprlib.repr(url)}", reason="broken_image")
