"""Pictures to files, in the formats and modes that corpora come in, and one file that is a trap."""

import io
import struct
import zlib
from random import Random

from PIL import ExifTags, Image, ImageDraw

from wdspack.demo.canvas import Picture

_BIG = 1_500_000  # pixels from which only JPEG is quick enough


def encode(rng: Random, picture: Picture) -> tuple[str, bytes]:
    """A picture as a file of one of the formats and modes that corpora come in."""
    image, dice = picture.image, rng.random()
    if dice < 0.07 and not picture.colourful:
        return save(image.convert("L"), rng.choice(("jpg", "png")))
    if image.width * image.height > _BIG or dice < 0.55:
        return save(image, "jpg")
    if dice < 0.60:
        return save(_turned(image), "jpg")
    if dice < 0.72:
        return save(image.quantize(48, Image.Quantize.FASTOCTREE), "png")
    if dice < 0.80:
        return save(_rounded(image), rng.choice(("png", "webp")))
    return save(image, "png" if dice < 0.92 else "webp")


def save(image: Image.Image, extension: str) -> tuple[str, bytes]:
    """(extension, the file): "jpg", "png" or "webp", with the EXIF data that the image has."""
    file = io.BytesIO()
    if extension == "jpg":
        image.save(file, "JPEG", quality=88, exif=image.getexif())
    elif extension == "png":
        image.save(file, "PNG", compress_level=4)
    else:
        image.save(file, "WEBP", quality=85, method=1)
    return extension, file.getvalue()


def _turned(image: Image.Image) -> Image.Image:
    """Stored lying on its side, with the EXIF orientation that has viewers set it upright again."""
    turned = image.transpose(Image.Transpose.ROTATE_90)
    turned.getexif()[ExifTags.Base.Orientation] = 6
    return turned


def _rounded(image: Image.Image) -> Image.Image:
    """With rounded, transparent corners."""
    alpha = Image.new("L", image.size, 0)
    ImageDraw.Draw(alpha).rounded_rectangle((0, 0, image.width - 1, image.height - 1), min(image.size) / 12, 255)
    rounded = image.convert("RGBA")
    rounded.putalpha(alpha)
    return rounded


def bomb(side: int) -> bytes:
    """A PNG of a few dozen bytes that claims `side` × `side` pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
