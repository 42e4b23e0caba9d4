"""Which files a dataset is made of."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from braceexpand import braceexpand  # webdataset's own, without importing torch
from fsspec.utils import glob_translate

from wdspack.errors import ConfigError, ShardError
from wdspack.storage import list_files

Options = Mapping[str, Any] | None


def find_files(urls: str | Sequence[str], endings: tuple[str, ...], storage_options: Options = None) -> list[str]:
    """The files that paths or URLs stand for: braces, globs, folders (searched to any depth for `endings`), or files.

    A path that is there stands for itself, whatever characters are in it. A URL without a known ending is a folder.
    Order: as given, what a folder or glob holds sorted.

    Raises ConfigError if there are none, or one comes twice; ShardError if the storage cannot be listed.
    """
    patterns = [urls] if isinstance(urls, str) else list(urls)
    try:
        given = ([pattern] if os.path.exists(pattern) else braceexpand(pattern) for pattern in patterns)
        expanded = [url for urls_of in given for url in urls_of]
    except ValueError as error:
        raise ConfigError(f"{urls!r}: {error}; write braces as in {{000..511}}") from error
    found = [file for url in expanded for file in _expand(url, endings, storage_options)]
    if twice := sorted(url for url, count in Counter(found).items() if count > 1):
        raise ConfigError(f"files that come more than once: {', '.join(twice[:5])}; name each once")
    if not found:
        raise ConfigError(f"{urls!r} names no files; give files, globs or folders with {' or '.join(endings)}")
    return found


def _expand(url: str, endings: tuple[str, ...], storage_options: Options) -> list[str]:
    if is_glob(url):
        return listed(url, storage_options)
    if is_folder(url, endings):
        return [file for file in listed_below(url, storage_options) if file.endswith(endings)]
    return [url]


def would_find(urls: str | Sequence[str], endings: tuple[str, ...], url: str) -> bool:
    """Whether `find_files` would find a file in a folder or by a glob, if it were there."""
    for place in (urls,) if isinstance(urls, str) else urls:
        if not is_glob(place):
            below = is_folder(place, endings) and url.startswith(posixpath.join(place, ""))
            if below and url.endswith(endings):
                return True
            continue
        with suppress(ValueError):  # a malformed pattern, as listing it will say
            if any(re.match(glob_translate(glob), url) for glob in braceexpand(place)):
                return True
    return False


def is_glob(url: str) -> bool:
    return (
        any(wild in url for wild in "*?[") and not url.startswith(("http://", "https://")) and not os.path.exists(url)
    )


def is_folder(url: str, endings: tuple[str, ...]) -> bool:
    """A local folder, or a URL that does not end as files do."""
    return url.endswith("/") or (os.path.isdir(url) if is_local(url) else not url.endswith(endings))


def is_local(url: str) -> bool:
    return "://" not in url


def absolute(url: str) -> str:
    """A path that means the same in any current folder, its last slash kept; URLs as they are."""
    if not url or not is_local(url):
        return url
    path = os.path.abspath(os.path.expanduser(url))
    return posixpath.join(path, "") if url.endswith("/") else path


def listed_below(folder: str, storage_options: Options) -> list[str]:
    """All files below a folder, at any depth, sorted; none if it is not there."""
    if not is_local(folder):
        return listed(posixpath.join(folder, "**"), storage_options)
    found = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if os.path.isfile(path))


def listed(pattern: str, storage_options: Options) -> list[str]:
    """The files that match a glob, sorted; none if there are none."""
    try:
        return list_files(pattern, storage_options=storage_options)
    except ShardError as error:
        if error.reason != "missing":
            raise
        return []


@contextmanager
def there(form: str) -> Iterator[None]:
    """A dataset's file that is missing is a wrong setting, not a fault of the storage."""
    try:
        yield
    except ShardError as error:
        if error.reason != "missing":
            raise
        raise ConfigError(f"{error.url} is not there; give {form}") from error
