"""COCO's captions and instances files.

captions: {"images": [{"id", "file_name", …}], "annotations": [{"image_id", "caption"}]} → the first caption answers
    "Describe the image.", each further one "Describe it in other words."
instances: annotations of {"image_id", "category_id", "bbox": [x, y, width, height]} and "categories" →
    "List the objects in the image with their bounding boxes." is answered with a line for each object,

        dog [120, 45, 560, 998]

    left, top, right, bottom in thousandths of the width and height, so that resizing the image keeps them true;
    regions of many (iscrowd) are "crowd of person [...]"; an image without any is answered with "There are none."
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from wdspack.convert.compose import Draft
from wdspack.convert.readers.base import PART_ROWS, DraftReader
from wdspack.convert.readers.inputs import Options, there
from wdspack.convert.rows import Part, Reject
from wdspack.errors import ConfigError
from wdspack.storage import read_file

DESCRIBE, AGAIN = "Describe the image.", "Describe it in other words."
DETECT, NOTHING = "List the objects in the image with their bounding boxes.", "There are none."
_FORM = "COCO's captions or instances: images, annotations with caption, or with category_id and bbox, and categories"


@dataclass(frozen=True, kw_only=True)
class CocoReader(DraftReader):
    """A row is an entry of `images`, in their order; its file is below `images`, the folder. After them come rejects:
    a row for each annotation of an image that is not listed.

    url: the annotations file. It is loaded whole, by each process (captions of train2017: 0.5 GB of memory; instances
    about 3 GB while it is parsed).
    """

    url: str

    def find_parts(self) -> Sequence[Part]:
        rows, size = _rows(self.url, _frozen(self.storage_options))
        starts = range(0, len(rows), PART_ROWS)
        return [Part(self.url, min(PART_ROWS, len(rows) - start), (start, size)) for start in starts]

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        rows, _ = _rows(self.url, _frozen(self.storage_options))
        yield from islice(rows, part.place[0] + start, part.place[0] + stop)


@lru_cache(maxsize=1)
def _rows(url: str, storage_options: str) -> tuple[list[Draft | Reject], int]:
    """The file's rows, and its size."""
    with there("the annotations file"):
        content = read_file(url, storage_options=json.loads(storage_options))
    try:
        document = json.loads(content)
        images, annotations = document["images"], document["annotations"]
        names = {category["id"]: str(category["name"]) for category in document.get("categories") or ()}
        by_image: dict[Any, list[Mapping[str, Any]]] = {image["id"]: [] for image in images}
        captions = any("caption" in note for note in annotations) if annotations else not names
        if not captions and not names:
            raise KeyError("categories")
        strays: list[Mapping[str, Any]] = []
        for annotation in annotations:
            found = by_image.get(annotation.get("image_id"))
            (strays if found is None else found).append(annotation)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{url} is not of the form ({type(error).__name__}: {error}); give {_FORM}") from error
    rows: list[Draft | Reject] = [_row(image, by_image[image["id"]], None if captions else names) for image in images]
    return rows + list(map(_stray, strays)), len(content)


def _stray(annotation: Mapping[str, Any]) -> Reject:
    message = f"annotation {annotation.get('id')!r} is of image {annotation.get('image_id')!r}, which is not listed"
    return Reject(None, "bad_annotation", f"{message}; list it under images, or take the annotation out")


def _row(
    image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], names: Mapping[Any, str] | None
) -> Draft | Reject:
    """names: of the categories; None for captions."""
    key = str(image["id"])
    try:
        if names is None:
            if not annotations:
                return Reject(key, "no_text", "an image without captions; leave it out, or caption it")
            said = [(AGAIN if number else DESCRIBE, note["caption"]) for number, note in enumerate(annotations)]
        else:
            lines = [_line(note, image, names) for note in annotations]
            said = [(DETECT, "\n".join(lines) or NOTHING)]
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        message = f"an annotation is not of the form ({type(error).__name__}: {error}); it must be {_FORM}"
        return Reject(key, "bad_annotation", message)
    texts = [{"user": question, "assistant": answer} for question, answer in said]
    return Draft(key, {"id": image["id"], "texts": texts}, (image.get("file_name"),))


def _line(note: Mapping[str, Any], image: Mapping[str, Any], names: Mapping[Any, str]) -> str:
    left, top, width, height = note["bbox"]
    corners = (
        left / image["width"],
        top / image["height"],
        (left + width) / image["width"],
        (top + height) / image["height"],
    )
    box = [min(1000, max(0, round(1000 * corner))) for corner in corners]
    return f"{'crowd of ' if note.get('iscrowd') else ''}{names[note['category_id']]} {box}"


def _frozen(storage_options: Options) -> str:
    return json.dumps(dict(storage_options or {}))
