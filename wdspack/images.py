"""Encoded images to pixels, in two steps far apart in time: the header when a sample is measured, the rest when its
pack is about to be used.

    bytes ──probe──▶ ImageInfo ──layout.measure──▶ Grid
    bytes, ImageInfo, Grid ──render──▶ rows of pixel_values, uint8 ──normalize──▶ float32

Bytes from the web are hostile: whatever they hold, the only exception that leaves here is a SampleError with the
reason "broken_image" or "image_too_large". Everything may be called from many threads; Pillow's and torch's loops
release the GIL.
"""

import io
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from wdspack.errors import SampleError
from wdspack.layouts import RGB, Layout, View
from wdspack.types import Grid, ImageInfo

if TYPE_CHECKING:
    import torch  # imported where pixels are made: what reads headers only, as conversion does, need not wait for it

Words = npt.NDArray[np.uint8]  # (height, width, 4)

MAX_PIXELS = 89_478_485
"""Default limit of `probe`: a quarter of a gigabyte as RGB, and the size at which Pillow starts to warn."""

# Opened by class rather than by `Image.open`, which warns (or, where warnings are errors, fails) by a global limit,
# and which tries every plugin, even the one that hands PostScript to an interpreter.
_FORMATS: Mapping[bytes, tuple[type[ImageFile.ImageFile], str]] = {
    b"\xff\xd8\xff": (JpegImagePlugin.JpegImageFile, "jpg"),
    b"\x89PNG\r\n\x1a\n": (PngImagePlugin.PngImageFile, "png"),
    b"RIFF": (WebPImagePlugin.WebPImageFile, "webp"),
    b"GIF8": (GifImagePlugin.GifImageFile, "gif"),
    b"BM": (BmpImagePlugin.BmpImageFile, "bmp"),
    b"II": (TiffImagePlugin.TiffImageFile, "tif"),
    b"MM": (TiffImagePlugin.TiffImageFile, "tif"),
    b"P": (PpmImagePlugin.PpmImageFile, "ppm"),
}
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112  # the tag, in EXIF and TIFF
_BAND = 1 << 17  # pixels copied from Pillow at once; see `_words`


def probe(data: bytes, *, max_pixels: int = MAX_PIXELS) -> ImageInfo:
    """Size as displayed, and EXIF orientation, from an image's header; no pixel is decoded.

    Reads JPEG, PNG, WebP, GIF, BMP, TIFF and PPM. The orientation is the one in EXIF ahead of the pixels, where a
    reader of the header can see it (in WebP, whose header announces it, and in TIFF it may stand anywhere).

    Raises SampleError: "broken_image" for what is none of these or is damaged up to the pixels; "image_too_large" for
    more than `max_pixels`.
    """
    with _hostile():
        _, info = _open(data)
    if info.width * info.height > max_pixels:
        raise SampleError(
            f"an image of {info.width:,} × {info.height:,} pixels, but the limit is {max_pixels:,}; shrink it",
            reason="image_too_large",
        )
    return info


def extension(data: bytes) -> str:
    """The extension that an image's first bytes ask for, whatever it is called: "jpg", "png", "webp", "gif", "bmp",
    "tif" or "ppm"; "" for what is none of these."""
    return next((extension for magic, (_, extension) in _FORMATS.items() if data.startswith(magic)), "")


def decode(data: bytes, info: ImageInfo, *, shrink: int = 1) -> Words:
    """The pixels of an image, upright: (height, width, 4) uint8: red, green, blue and a byte that says nothing.

    That is how Pillow has them, torch resizes four bytes as fast as three, and words can be taken apart by shifts.
    `info` is what `probe` found. shrink: a JPEG may come out 2, 4 or 8 times smaller, in half the time. Transparent
    images are laid on white; 16- and 32-bit ones scaled to 8 bits; of moving ones the first frame is taken; colour
    profiles are ignored.

    Raises SampleError("broken_image") for bytes that do not decode, end early, or are not what `info` says: the tokens
    of the sample were counted by it.
    """
    with _hostile():
        image, found = _open(data)
        if found == info:  # else nothing of that size was ever agreed to
            if image.format == "JPEG" and shrink > 1:
                image.draft(None, (image.width // shrink, image.height // shrink))
                width, height = image.size if info.orientation < 5 else image.size[::-1]
                info = ImageInfo(width, height, info.orientation)
            words = _load(image)
            upright = image if words is not None else _rgb(image)
            if image.format != "TIFF" and info.orientation in _UPRIGHT:  # Pillow turns TIFF itself
                upright, words = upright.transpose(_UPRIGHT[info.orientation]), None
            found = ImageInfo(*upright.size, info.orientation)
            if found == info:
                words = _words(upright) if words is None else words
                return _opaque(words, upright)
    raise SampleError(f"an image measured as {info} decodes to {found}; leave it out", reason="broken_image")


def render(data: bytes, info: ImageInfo, grid: Grid, layout: Layout, out: npt.NDArray[np.uint8]) -> None:
    """Decode an image, resize it for every view of its layout, and write the cells into `out`.

    out: the image's rows of pixel_values, (layout.pixel_rows(grid), *layout.pixel_shape) uint8, contiguous; left
        as it was if the image does not decode.

    Every view is resized from the decoded image by torch's antialiased bicubic on uint8: one resampling for each
    pixel, where processors that go through the large picture to the small one blur twice. Against Pillow's bicubic
    values differ by up to 2, or up to 22 on 0.02 % of them under strong shrinking. Raises SampleError as `decode` does.

    A JPEG that every view shrinks 8 times or more is decoded at half its size (16 times: a quarter, 32: an eighth) if
    that comes out even, so that at least a factor of 4 is left to the resizing. On the largest photographed pages at
    hand (12 to 34 megapixels) no value differs from that of a full decoding by more than 7; PSNR 50 dB and more.
    """
    # NumPy wherever it will do: every operation of torch, even one that looks at memory in another way, lets go of the
    # GIL, and has to wait until another thread that decodes lets go of it too.
    views, start = layout.views(grid), 0
    words = decode(data, info, shrink=_shrink(info, views))
    for view in views:
        stop = start + view.rows * view.cols
        cut(fit(words, view), view, out[start:stop])
        start = stop


def normalize(pixels: "torch.Tensor", mean: RGB, std: RGB, out: "torch.Tensor | None" = None) -> "torch.Tensor":
    """(pixels / 255 − mean) / std by channel, as float32 of the same shape, on the same device.

    pixels: uint8, (…, 3, H, W), or (patches, 3 · K) whose rows go channel by channel. out: where to put the result,
        contiguous; a new tensor where None.
    """
    import torch

    out = torch.empty_like(pixels, dtype=torch.float32, memory_format=torch.contiguous_format) if out is None else out
    by_channel = pixels.shape if pixels.ndim > 2 else (len(pixels), 3, pixels.shape[1] // 3, 1)
    scale, shift = ([1 / (255 * s) for s in std], [m / s for m, s in zip(mean, std, strict=True)])
    scales, shifts = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (scale, shift))
    # Copied first: a product of uint8 and float32 would make a float32 copy of its own, at three times the cost.
    out.view(by_channel).copy_(pixels.reshape(by_channel)).mul_(scales).sub_(shifts)
    return out


@contextmanager
def _hostile() -> Iterator[None]:
    """Turns whatever a decoder raises into a SampleError.

    That is OSError, SyntaxError, ValueError, TypeError, struct.error, zlib.error, MemoryError, … and, where warnings
    are errors, a UserWarning: an open set, so all of it.
    """
    try:
        yield
    except SampleError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SampleError(f"{error}; shrink it", reason="image_too_large") from error
    except Exception as error:
        what = f"an image that does not decode ({type(error).__name__}: {error}); mend it or leave it out"
        raise SampleError(what, reason="broken_image") from error


class _Reader(io.BytesIO):
    """Bytes that must not be read past their end.

    Pillow meets the end of a cut file with an OSError, unless some library has set the global LOAD_TRUNCATED_IMAGES:
    then the rest of the picture is grey. Here it is broken either way.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size)
        if size is not None and size > 0 and not chunk:
            raise SampleError("an image that ends before its last pixel; fetch it again", reason="broken_image")
        return chunk


def _open(data: bytes) -> tuple[ImageFile.ImageFile, ImageInfo]:
    opener = next((opener for magic, (opener, _) in _FORMATS.items() if data.startswith(magic)), None)
    if opener is None:
        raise SampleError(
            f"{len(data):,} bytes that start with {data[:8]!r}, but images are JPEG, PNG, WebP, GIF, BMP, TIFF or PPM; "
            "convert it",
            reason="broken_image",
        )
    image = opener(_Reader(data) if ImageFile.LOAD_TRUNCATED_IMAGES else io.BytesIO(data))
    if isinstance(image, TiffImagePlugin.TiffImageFile):  # some versions of Pillow have turned its `size` already
        width, height, orientation = (image.tag_v2.get(tag, 1) for tag in (0x0100, 0x0101, _ORIENTATION))
    else:
        (width, height), orientation = image.size, _orientation(image.info.get("exif", b""))
    if orientation not in range(1, 9):
        orientation = 1
    return image, ImageInfo(*((width, height) if orientation < 5 else (height, width)), orientation)


def _orientation(exif: bytes) -> int:
    """The orientation that an EXIF block states, 1 where it states none or is damaged.

    Pillow's reader of EXIF decodes a PNG's pixels first, in case more of it follows, and warns of damage.
    """
    while exif.startswith(b"Exif\0\0"):  # some writers of PNG add the prefix of JPEG to that of Pillow
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, start)
        for entry in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, count, value = struct.unpack_from(f"{order}HHIH", exif, entry)
            if (tag, kind, count) == (_ORIENTATION, 3, 1):  # one SHORT
                return int(value)
    except struct.error:
        pass
    return 1


def _load(image: ImageFile.ImageFile) -> Words | None:
    """Decodes the pixels; as (height, width, 4) where that is how they come, as most do: straight into an array.

    Otherwise they are first laid down in new memory, then packed into strings, put together and copied.
    """
    words = None
    direct = image.format in ("JPEG", "PNG") and image.mode in ("RGB", "RGBA") and "transparency" not in image.info
    if direct and image.tile:  # without one, Pillow takes it for loaded when it has memory
        words = np.zeros((image.height, image.width, 4), np.uint8)  # what a decoder leaves out is black
        ours = image.im = Image.core.map_buffer(words, image.size, "raw", 0, (image.mode, 0, 1))  # type: ignore[attr-defined]
    image.load()
    return words if words is not None and image.im is ours else None  # an animation's frame is put elsewhere


def _rgb(image: Image.Image) -> Image.Image:
    """As RGB, or RGBA where it may be transparent."""
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(_to_8_bits(np.asarray(image)))
    mode = "RGBA" if image.has_transparency_data else "RGB"  # palettes and "this colour is transparent" too
    return image if image.mode == mode else image.convert(mode)  # which would copy it


def _to_8_bits(grey: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Scales deep grey values, (height, width), to 0…255.

    The range of a 32-bit image is nowhere stated: it is 0…65,535, or 0…1 for floats, if its values lie in that;
    otherwise its own smallest to largest value.
    """
    deep = np.nan_to_num(grey.astype(np.float64), copy=False, posinf=0, neginf=0)
    low, high = 0.0, 1.0 if grey.dtype.kind == "f" else 65535.0
    if deep.min() < low or deep.max() > high:
        low, high = float(deep.min()), float(deep.max())
    deep -= low
    deep *= 255 / ((high - low) or 1)
    return np.rint(deep, out=deep).astype(np.uint8)


def _words(image: Image.Image) -> Words:
    """The pixels of `_rgb`, (height, width, 4). Copied in bands where large, as the cache holds them."""
    width, height = image.size
    out = np.empty((height, width, 4), np.uint8)
    rows = height if width * height <= 8 * _BAND else math.ceil(_BAND / width)
    for top in range(0, height, rows):
        band = image if rows == height else image.crop((0, top, width, min(top + rows, height)))
        data = band.tobytes("raw", "RGBX" if image.mode == "RGB" else "RGBA")
        out[top : top + rows] = np.frombuffer(data, np.uint8).reshape(-1, width, 4)
    return out


def _opaque(words: Words, image: Image.Image) -> Words:
    """The pixels of an image, on white if any is transparent."""
    if image.mode == "RGB" or words.view("<u4").min() >= 0xFF000000:
        return words
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return _words(white)


def _shrink(info: ImageInfo, views: Sequence[View]) -> int:
    """How many times smaller a JPEG may be decoded: every view is four times smaller still, and no pixel is halved."""
    sides = info.width, info.height
    least = min(min(sides[0] / (view.cols * view.cell), sides[1] / (view.rows * view.cell)) for view in views)
    return next(n for n in (8, 4, 2, 1) if n == 1 or (least >= 4 * n and not any(side % n for side in sides)))


def fit(words: Words, view: View) -> Words:
    """An image, as `decode` gives it, at the size of a view: (rows · cell, cols · cell, 4)."""
    height, width = view.rows * view.cell, view.cols * view.cell
    if view.fill is None:
        return _resize(words, height, width)
    scale = min(height / words.shape[0], width / words.shape[1])
    inner = [max(1, round(side * scale)) for side in words.shape[:2]]
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    canvas = np.full((height, width, 4), (*view.fill, 0), np.uint8)
    canvas[top : top + inner[0], left : left + inner[1]] = _resize(words, *inner)
    return canvas


def cut(words: Words, view: View, out: npt.NDArray[np.uint8]) -> None:
    """Writes the cells of an image that has the size of a view, as `fit` gives it, into its rows of pixel_values.

    The image is spoiled: its words are shifted, channel by channel, so that a channel is what is left of a word when it
    becomes a byte. That takes 0.4 of the time of copying every fourth byte.
    """
    rows, cols, cell, merge, frames, _ = view
    blocks = out.reshape(rows // merge, cols // merge, merge, merge, 3, frames, cell, cell)
    shifted = words.view("<u4")[..., 0]
    cells = shifted.reshape(rows // merge, merge, cell, cols // merge, merge, cell).transpose(0, 3, 1, 4, 2, 5)
    for channel in range(3):
        if channel:
            np.right_shift(shifted, 8, out=shifted)
        np.copyto(blocks[:, :, :, :, channel], cells[:, :, :, :, None], casting="unsafe")


def _resize(words: Words, height: int, width: int) -> Words:
    import torch

    # torch takes (1, 4, H, W) for channels last by its strides, that of the 1 included; if it does not, it takes twice
    # the time.
    batch = torch.from_numpy(words.reshape(1, *words.shape).transpose(0, 3, 1, 2))
    resized = torch.nn.functional.interpolate(batch, size=(height, width), mode="bicubic", antialias=True)
    return np.ascontiguousarray(resized.numpy()[0].transpose(1, 2, 0))
