"""Images as files of a sample: checked, and named by what they contain."""

import struct
from collections.abc import Sequence

from wdspack.errors import ConfigError, SampleError
from wdspack.images import MAX_PIXELS, decode, extension, probe

CHECKS = ("header", "decode")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers that begin a JPEG's frame header


def checked_how(how: str) -> str:
    """`how`, if `check` knows it; else raises ConfigError."""
    if how not in CHECKS:
        raise ConfigError(f"check_images={how!r}; give 'header' (the size, cheap) or 'decode' (every pixel)")
    return how


def check(data: bytes, number: int = 0, *, how: str = "header", max_pixels: int = MAX_PIXELS) -> None:
    """Raises SampleError for an image that training would drop: "broken_image" or "image_too_large".

    how: "header" looks up to the pixels, so an image that is cut after them passes; "decode" finds that, too, at some
    milliseconds an image.
    """
    try:
        if how == "header" and (size := _jpeg_size(data)) is not None and size[0] * size[1] <= max_pixels:
            return
        info = probe(data, max_pixels=max_pixels)
        if how == "decode":
            decode(data, info)
    except SampleError as error:
        raise SampleError(f"image {number}: {error}", reason=error.reason) from None


def image_names(images: Sequence[bytes]) -> list[str]:
    """ "jpg" for an only image; "0.jpg", "1.png", … for several. The extension is that of the content."""
    if len(images) == 1:
        return [extension(images[0])]
    return [f"{number}.{extension(data)}" for number, data in enumerate(images)]


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a usual JPEG; None where a thorough reader should look.

    Ten times as fast as Pillow, which parses every table on the way: conversion does little else for an image.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    at = 2
    try:
        while data[at] == 0xFF and 0xC0 <= (marker := data[at + 1]) <= 0xFE and marker not in (0xD8, 0xD9, 0xDA):
            length = int.from_bytes(data[at + 2 : at + 4])
            if marker in _FRAMES:
                depth, height, width, channels = struct.unpack_from(">BHHB", data, at + 4)
                return (width, height) if depth == 8 and width and height and channels in (1, 3, 4) else None
            at += 2 + length
    except (IndexError, struct.error):
        pass
    return None
