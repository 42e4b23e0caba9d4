"""JSONL, or a JSON array, of conversations with images by path: LLaVA's, ShareGPT's, transformers' chat format.

Both are read in stretches of rows and never loaded whole. An array costs a first pass at the speed of Python's JSON
parser (some 100 MB/s), JSONL one that only looks for line ends.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wdspack.convert.compose import Draft
from wdspack.convert.readers.base import DraftReader
from wdspack.convert.readers.inputs import find_files, there, would_find
from wdspack.convert.readers.stretches import (
    MAX_ROW,
    Split,
    rows_of,
    split_array,
    split_lines,
    starts_with_bracket,
    stretches,
)
from wdspack.convert.rows import Part, Reject

_ENDINGS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz")


@dataclass(frozen=True, kw_only=True)
class ChatReader(DraftReader):
    """A row is {"id"?, "image" or "images"?, "conversations" or "messages"}.

    urls: files, globs or folders. Images are paths below `images`, or "data:" URLs: a string, {"path": …}, or a list of
    these; where the row has neither field, the image entries of its messages say what they are by path, url, image or
    image_url.
    """

    urls: str | Sequence[str]

    def find_parts(self) -> Sequence[Part]:
        parts: list[Part] = []
        for url in find_files(self.urls, _ENDINGS, self.storage_options):
            with there("a .jsonl or .json file"):
                array = starts_with_bracket(url, self.storage_options)
                split: Split[bytes | None] = split_array if array else split_lines
                found = stretches(url, split, self.storage_options)
            parts += [Part(part.url, part.rows, (*part.place, array)) for part in found]
        return parts

    def finds(self, url: str) -> bool:
        return would_find(self.urls, _ENDINGS, url)

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        offset, end, array = part.place
        stretch = Part(part.url, part.rows, (offset, end))
        split: Split[bytes | None] = split_array if array else split_lines
        return map(_draft, rows_of(stretch, start, stop, split, self.storage_options))


def _draft(row: bytes | None) -> Draft | Reject:
    if row is None:
        return Reject(None, "too_large", f"a row of more than {MAX_ROW:,} bytes; keep images in files beside it")
    try:
        record = json.loads(row.decode())
    except UnicodeDecodeError as error:
        return Reject(None, "bad_text", f"not UTF-8 at byte {error.start:,} of the row; write it as UTF-8")
    except (ValueError, RecursionError) as error:
        return Reject(None, "bad_json", f"not JSON: {error}; a row is one JSON object")
    if not isinstance(record, dict):
        return Draft(None, record)
    return Draft(row_id(record.get("id")), _without_images(record), tuple(_images(record)))


def row_id(value: Any) -> str | None:
    """A row's id as text; None where it has none."""
    return None if value is None or value == "" else str(value)


def _without_images(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("image", "images")}


def _images(record: dict[str, Any]) -> Iterator[bytes | str | None]:
    given = next((record[name] for name in ("images", "image") if record.get(name) is not None), None)
    if given is not None:
        yield from map(image_in, given if isinstance(given, list) else [given])
        return
    for field in ("messages", "conversations"):
        for turn in record.get(field) or () if isinstance(record.get(field), list) else ():
            content = turn.get("content", turn.get("value")) if isinstance(turn, dict) else None
            for entry in content if isinstance(content, list) else ():
                if isinstance(entry, dict) and entry.get("type") in ("image", "image_url"):
                    yield image_in(entry)


def image_in(value: Any) -> bytes | str | None:
    """What a field that stands for an image holds of it: contents, or its path; None if neither."""
    if isinstance(value, bytes | str):
        return value
    if not isinstance(value, dict):
        return None
    found = (value[name] for name in ("bytes", "path", "url", "image", "image_url") if value.get(name) is not None)
    return image_in(next(found, None))
