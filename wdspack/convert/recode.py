"""Readers around readers: images recompressed, rows chosen. Both work on what any reader gives."""

import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import PIL
from PIL import Image

from wdspack.convert.rows import Part, Reader, Record, Reject, Row
from wdspack.errors import ConfigError, SampleError
from wdspack.images import MAX_PIXELS, decode, extension, probe
from wdspack.records import IMAGE_EXTENSIONS

_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}


@dataclass(frozen=True)
class _Around(Reader):
    """Another reader's parts."""

    reader: Reader

    def parts(self) -> Sequence[Part]:
        return self.reader.parts()

    def versions(self, parts: Sequence[Part]) -> list[tuple[str, int, str]]:
        return self.reader.versions(parts)

    def finds(self, url: str) -> bool:
        return self.reader.finds(url)


@dataclass(frozen=True)
class Recoded(_Around):
    """Another reader's rows with images of one format, or of a limited size. Make it with `recoded`.

    image_format: "jpg", "png" or "webp". max_side: pixels of the longer side. quality: 1-100, of JPEG and WebP.

    Only images that are of another format or too large are encoded again: upright, RGB, 8 bits, without transparency
    (white behind it) or motion (the first frame), as training sees them. Where only the size changes, JPEG, PNG and
    WebP stay what they are, and others become PNG.
    """

    image_format: str | None = None
    max_side: int | None = None
    quality: int = 90
    max_image_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.image_format is not None and self.image_format not in _FORMATS:
            raise ConfigError(f"image_format={self.image_format!r}; give one of {', '.join(_FORMATS)}")
        if self.max_side is not None and self.max_side < 1:
            raise ConfigError(f"max_side={self.max_side}; give a number of pixels, at least 1")
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality={self.quality}; give 1 to 100")

    def read(self, part: Part, start: int, stop: int) -> Iterator[Row]:
        for row in self.reader.read(part, start, stop):
            yield self._recoded(row) if isinstance(row, Record) else row

    def describe(self) -> dict[str, Any]:
        changed = {"image_format": self.image_format, "max_side": self.max_side, "quality": self.quality}
        return {"reader": "Recoded", **changed, "pillow": PIL.__version__, "of": self.reader.describe()}

    def _recoded(self, record: Record) -> Row:
        files: dict[str, bytes] = {}
        for name, data in record.files.items():
            stem, dot, ending = name.rpartition(".")
            if ending not in IMAGE_EXTENSIONS:
                files[name] = data
                continue
            try:
                coded, ending = self._image(data, ending)
            except SampleError as error:
                return Reject(record.id, error.reason, f"{name}: {error}")
            renamed = f"{stem}{dot}{ending}"
            if renamed in files:
                message = f"two images would be called {renamed}; make the samples canonical, which numbers them"
                return Reject(record.id, "image_mismatch", message)
            files[renamed] = coded
        return Record(record.id, files)

    def _image(self, data: bytes, ending: str) -> tuple[bytes, str]:
        info = probe(data, max_pixels=self.max_image_pixels)
        found = extension(data)
        longer = max(info.width, info.height)
        small = self.max_side is None or longer <= self.max_side
        target = self.image_format or (found if found in _FORMATS else "png")
        if small and (self.image_format is None or _FORMATS[target] == _FORMATS.get(found)):
            return data, ending
        image = Image.fromarray(decode(data, info)[..., :3])
        if not small and self.max_side is not None:
            size = (max(1, round(side * self.max_side / longer)) for side in (info.width, info.height))
            image = image.resize((next(size), next(size)), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        image.save(out, _FORMATS[target], **({} if target == "png" else {"quality": self.quality}))
        return out.getvalue(), "jpg" if target == "jpeg" else target


@dataclass(frozen=True)
class Chosen(_Around):
    """Another reader's rows of which a function says yes; the others are rejected as "filtered".

    where: "module:function", which takes a record's files ({"json": …, "jpg": …}, bytes) and gives True or False. It is
    named rather than given, so that it reaches other processes and a run that is continued can tell it is the same.
    folder: where its module is looked for after all other places, "" for none.
    """

    where: str
    folder: str = ""

    def __post_init__(self) -> None:
        self._function()

    def read(self, part: Part, start: int, stop: int) -> Iterator[Row]:
        chooses = self._function()
        for row in self.reader.read(part, start, stop):
            try:
                chosen = isinstance(row, Reject) or chooses(row.files)
            except Exception as error:
                which = f"the row {row.id!r}" if row.id else "a row"
                message = f"{self.where} fails on {which} of {part.url}: {type(error).__name__}: {error}; mend it"
                raise ConfigError(message) from error
            yield row if chosen else Reject(row.id, "filtered", f"{self.where} says no")

    def describe(self) -> dict[str, Any]:
        return {"reader": "Chosen", "where": self.where, "of": self.reader.describe()}

    def _function(self) -> Callable[[Mapping[str, bytes]], bool]:
        module, _, name = self.where.partition(":")
        if self.folder and self.folder not in sys.path:
            sys.path.append(self.folder)
        try:
            function: Callable[[Mapping[str, bytes]], bool] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"where={self.where!r} ({error}); give 'module:function' that can be imported") from error
        return function


def recoded(
    reader: Reader,
    *,
    image_format: str | None = None,
    max_side: int | None = None,
    quality: int = 90,
    max_image_pixels: int = MAX_PIXELS,
) -> Reader:
    """The reader itself if nothing is asked for. Raises ConfigError for what no image can be."""
    changed = Recoded(reader, image_format, max_side, quality, max_image_pixels)
    return reader if image_format is None and max_side is None else changed


def adapted(
    reader: Reader,
    *,
    caption_prompt: str = "",
    check_images: str = "header",
    max_image_pixels: int = MAX_PIXELS,
    where: str | None = None,
    **recoding: Any,
) -> Reader:
    """The reader with what all tools let one choose; settings that it does not have are passed over."""
    wanted = {"caption_prompt": caption_prompt, "check_images": check_images, "max_image_pixels": max_image_pixels}
    if is_dataclass(reader):
        known = {field.name for field in fields(reader)}
        reader = replace(reader, **{name: value for name, value in wanted.items() if name in known})
    chosen = reader if where is None else Chosen(reader, where, os.getcwd())
    return recoded(chosen, max_image_pixels=max_image_pixels, **recoding)
