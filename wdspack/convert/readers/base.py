"""What the readers of datasets share: settings, the image root, versions of files, and fetching ahead."""

import posixpath
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

from wdspack.convert.compose import Compose, Draft
from wdspack.convert.imagefiles import checked_how
from wdspack.convert.imageroot import ImageRoot
from wdspack.convert.readers.inputs import absolute, would_find
from wdspack.convert.rows import Part, Reader, Reject, Row
from wdspack.errors import ConfigError
from wdspack.images import MAX_PIXELS
from wdspack.storage import stat_shard

PART_ROWS = 1024  # rows of a part, where the form does not say
_AHEAD = 16  # images of remote roots that are fetched at once
_ASKED = 32  # files whose versions are asked for at once
_PATHS = ("url", "urls", "folder", "images")  # fields, as far as a reader has them


@dataclass(frozen=True, kw_only=True)
class DraftReader(Reader):
    """A reader that says what a row holds, and leaves it to `Compose` to check it and to write it canonically.

    images: the folder or URL that image paths are relative to; default: where the file with the row is.
    caption_prompt: what the user asks where a row has but a caption.
    check_images: "header", or "decode" to find images that are cut or corrupt after their headers.
    max_image_pixels: images of more are rejected, unread.
    storage_options: for fsspec; not part of what the rows are.
    """

    images: str | None = None
    caption_prompt: str = ""
    check_images: str = "header"
    max_image_pixels: int = MAX_PIXELS
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Makes paths absolute: a cluster's processes, and a run that is continued, may have another current folder."""
        checked_how(self.check_images)
        for name in _PATHS:
            if (given := getattr(self, name, None)) is not None:
                found = absolute(given) if isinstance(given, str) else [absolute(path) for path in given]
                object.__setattr__(self, name, found)

    @abstractmethod
    def find_parts(self) -> Sequence[Part]:
        """As `parts`, where there may be none, and empty ones."""

    @abstractmethod
    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        """As `read`."""

    def parts(self) -> Sequence[Part]:
        if not (found := [part for part in self.find_parts() if part.rows]):
            raise ConfigError(f"{self.describe()} holds no rows; give a dataset that has some")
        return found

    def read(self, part: Part, start: int, stop: int) -> Iterator[Row]:
        compose = Compose(
            root=ImageRoot(self.images or posixpath.dirname(part.url) or ".", self.storage_options),
            caption_prompt=self.caption_prompt,
            check_images=self.check_images,
            max_image_pixels=self.max_image_pixels,
        )
        drafts = self.drafts(part, start, stop)
        return map(compose, drafts) if compose.root.is_local else _ahead(compose, drafts)

    def finds(self, url: str) -> bool:
        return would_find(getattr(self, "urls", ()), (), url)

    def sources(self, parts: Sequence[Part]) -> Sequence[str]:
        """The files that decide the rows, but for images."""
        return list(dict.fromkeys(part.url for part in parts))

    def versions(self, parts: Sequence[Part]) -> list[tuple[str, int, str]]:
        with ThreadPoolExecutor(_ASKED) as pool:
            urls = self.sources(parts)
            return [(url, *stat) for url, stat in zip(urls, pool.map(self._stat, urls), strict=True)]

    def _stat(self, url: str) -> tuple[int, str]:
        return stat_shard(url, storage_options=self.storage_options)

    def describe(self) -> dict[str, Any]:
        """The reader's class and fields, but for how its storage is reached."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "storage_options"}
        return {"reader": type(self).__name__, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _ahead(compose: Compose, drafts: Iterator[Draft | Reject]) -> Iterator[Row]:
    """`map(compose, drafts)` by threads, a few ahead: each may wait for an object store."""
    pool = ThreadPoolExecutor(_AHEAD)
    pending: deque[Future[Row]] = deque()
    try:
        for draft in drafts:
            pending.append(pool.submit(compose, draft))
            if len(pending) >= 2 * _AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
