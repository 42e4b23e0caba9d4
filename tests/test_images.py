"""Pixels worked out by hand, by Pillow or by the models' own processors, and bytes that mean harm."""

import io
import struct
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from wdspack.errors import SampleError
from wdspack.images import decode, normalize, probe, render
from wdspack.layouts import CLIP_MEAN, CLIP_STD, FixedLayout, Layout, NativeLayout, TileLayout
from wdspack.types import ImageInfo

Array = npt.NDArray[np.uint8]


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(data: bytes) -> Array:
    return decode(data, probe(data))[..., :3]


def rendered(data: bytes, layout: Layout) -> torch.Tensor:
    info = probe(data)
    grid = layout.measure(info.width, info.height)
    out = torch.full((layout.pixel_rows(grid), *layout.pixel_shape), 99, dtype=torch.uint8)
    render(data, info, grid, layout, out.numpy())
    return out


def photo(width: int, height: int) -> Image.Image:
    """Smooth shapes with sharp edges, as in a photograph; the same every time."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = np.stack([np.sin(x / 17 + k) * np.cos(y / (11 + 7 * k)) for k in range(3)], -1)
    edges = ((x // 40 + y // 56) % 3 == 0)[..., None]
    return Image.fromarray(np.uint8(128 + 100 * waves * np.where(edges, -1, 1)))


def png(
    width: int, height: int, depth: int, colour: int, rows: bytes, *, before: bytes = b"", after: bytes = b""
) -> bytes:
    """A PNG by hand: `rows` with their filter bytes, `before` and `after` chunks around IDAT."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    idat = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + idat + after + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def exif(orientation: int, *, order: str = ">") -> bytes:
    """An EXIF block with a camera's name and the orientation."""
    mark = b"MM" if order == ">" else b"II"
    entries = struct.pack(f"{order}HHI4s", 0x010F, 2, 4, b"abc\0") + struct.pack(
        f"{order}HHIHH", 0x0112, 3, 1, orientation, 0
    )
    return b"Exif\0\0" + mark + struct.pack(f"{order}HIH", 42, 8, 2) + entries + bytes(4)


# --- colours -------------------------------------------------------------------------------------------------------


def flat(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (20, 20), colour)  # type: ignore[arg-type]


def palette(*, transparent: bool) -> bytes:
    image = flat("P", 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    return encode(image, "PNG", **({"transparency": bytes([255, 51])} if transparent else {}))


def deep(dtype: str, *values: float) -> Image.Image:
    return Image.fromarray(np.array([values], dtype=dtype))


def over_white(colour: int, alpha: int) -> float:
    return (colour * alpha + 255 * (255 - alpha)) / 255


MOVING: dict[str, Any] = {"save_all": True, "append_images": [flat("RGB", "blue")]}
ONE_COLOUR: dict[str, tuple[bytes, tuple[float, float, float], int]] = {
    "1": (encode(flat("1", 1), "PNG"), (255, 255, 255), 0),
    "L": (encode(flat("L", 77), "PNG"), (77, 77, 77), 0),
    "L-jpeg": (encode(flat("L", 77), "JPEG"), (77, 77, 77), 1),
    "LA": (encode(flat("LA", (100, 128)), "PNG"), (over_white(100, 128),) * 3, 1),
    "RGB-bmp": (encode(flat("RGB", (1, 2, 3)), "BMP"), (1, 2, 3), 0),
    "RGB-ppm": (encode(flat("RGB", (1, 2, 3)), "PPM"), (1, 2, 3), 0),
    "RGB-webp": (encode(flat("RGB", (1, 2, 3)), "WEBP", lossless=True), (1, 2, 3), 0),
    "RGB-jpeg": (encode(flat("RGB", (200, 30, 60)), "JPEG", quality=98), (200, 30, 60), 3),
    "RGB-tiff": (encode(flat("RGB", (1, 2, 3)), "TIFF", compression="tiff_lzw"), (1, 2, 3), 0),
    "RGBA": (
        encode(flat("RGBA", (250, 0, 10, 51)), "PNG"),
        (over_white(250, 51), over_white(0, 51), over_white(10, 51)),
        1,
    ),
    "RGBA-webp": (encode(flat("RGBA", (9, 9, 9, 0)), "WEBP", lossless=True, exact=True), (255, 255, 255), 0),
    "RGB-one-transparent": (encode(flat("RGB", (1, 2, 3)), "PNG", transparency=(1, 2, 3)), (255, 255, 255), 0),
    "L-one-transparent": (encode(flat("L", 7), "PNG", transparency=7), (255, 255, 255), 0),
    "P": (palette(transparent=False), (200, 100, 50), 0),
    "P-alpha": (palette(transparent=True), (over_white(200, 51), over_white(100, 51), over_white(50, 51)), 1),
    "P-gif": (encode(flat("RGB", (200, 100, 50)), "GIF"), (200, 100, 50), 0),
    "P-gif-transparent": (encode(flat("P", 0), "GIF", transparency=0), (255, 255, 255), 0),
    # (1 − C)(1 − K) of an ink, in a JPEG whose inks Adobe's marker declares inverted and in a TIFF where they are not
    "CMYK-jpeg": (encode(flat("CMYK", (0, 255, 128, 51)), "JPEG", quality=98), (204, 0, 204 * 127 / 255), 3),
    "CMYK-tiff": (encode(flat("CMYK", (0, 255, 128, 51)), "TIFF"), (204, 0, 204 * 127 / 255), 1),
    "first-frame-gif": (encode(flat("RGB", "red"), "GIF", **MOVING), (255, 0, 0), 0),
    "first-frame-webp": (encode(flat("RGB", "red"), "WEBP", lossless=True, **MOVING), (255, 0, 0), 0),
    "first-frame-png": (encode(flat("RGB", "red"), "PNG", **MOVING), (255, 0, 0), 0),
    "16-bit-RGB": (png(1, 1, 16, 2, struct.pack(">xHHH", 257 * 10, 257 * 128, 65535)), (10, 128, 255), 0),
    "16-bit-RGBA": (
        png(1, 1, 16, 6, struct.pack(">xHHHH", 0, 257 * 100, 65535, 257 * 128)),
        (over_white(0, 128), over_white(100, 128), 255),
        1,
    ),
    "16-bit-LA": (png(1, 1, 16, 4, struct.pack(">xHH", 257 * 100, 257 * 128)), (over_white(100, 128),) * 3, 1),
}


@pytest.mark.parametrize("name", ONE_COLOUR)
def test_every_colour_mode_becomes_rgb(name: str) -> None:
    data, colour, tolerance = ONE_COLOUR[name]
    found = pixels(data)
    assert found.dtype == np.uint8
    assert np.abs(found - np.array(colour)).max() <= tolerance + 0.5


DEEP_GREY: dict[str, tuple[bytes, list[float]]] = {
    "16-bit-png": (png(3, 1, 16, 0, struct.pack(">xHHH", 0, 257 * 128, 65535)), [0, 128, 255]),
    "16-bit-dark-png": (png(3, 1, 16, 0, struct.pack(">xHHH", 0, 257, 514)), [0, 1, 2]),  # not stretched
    "16-bit-tiff": (encode(deep("<u2", 0, 30000, 65535), "TIFF"), [0, 30000 / 257, 255]),
    "16-bit-ppm": (b"P5\n3 1\n65535\n" + struct.pack(">HHH", 0, 30000, 65535), [0, 30000 / 257, 255]),
    "32-bit-within-16": (encode(deep("<i4", 0, 30000, 65535), "TIFF"), [0, 30000 / 257, 255]),
    "32-bit-beyond-16": (encode(deep("<i4", -1000, 49000, 99000), "TIFF"), [0, 127.5, 255]),
    "float-within-1": (encode(deep("<f4", 0, 0.25, 1), "TIFF"), [0, 63.75, 255]),
    "float-beyond-1": (encode(deep("<f4", -2, 0, 8), "TIFF"), [0, 51, 255]),
    "float-not-numbers": (encode(deep("<f4", np.nan, np.inf, 0.5), "TIFF"), [0, 0, 127.5]),
    "float-all-the-same": (encode(deep("<f4", 7, 7, 7), "TIFF"), [0, 0, 0]),
}


@pytest.mark.parametrize("name", DEEP_GREY)
def test_deep_grey_is_scaled_not_clipped(name: str) -> None:
    data, values = DEEP_GREY[name]
    found = pixels(data)[0]
    assert (found == found[:, :1]).all()
    assert np.abs(found[:, 0] - np.array(values)).max() <= 0.5


def test_every_alpha_is_laid_on_white_as_the_models_do_it() -> None:
    levels = np.arange(256, dtype=np.uint8)
    image = Image.fromarray(np.dstack([*[np.tile(levels, (256, 1))] * 3, np.tile(levels[:, None], 256)]), "RGBA")
    assert (pixels(encode(image, "PNG")) == convert_to_rgb(image, return_numpy=True)).all()


# --- orientation ---------------------------------------------------------------------------------------------------

# Where EXIF 2.3 says the stored first row and first column belong, as a turn of the stored array.
UPRIGHT: dict[int, Callable[[Array], Array]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),  # row → left, column → top
    6: lambda a: np.rot90(a, -1),  # row → right, column → top
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),  # row → right, column → bottom
    8: lambda a: np.rot90(a, 1),  # row → left, column → bottom
}
STORED = np.random.default_rng(3).integers(0, 256, (3, 5, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {"quality": 100, "subsampling": 0}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})],
)
def test_images_are_turned_upright(kind: str, options: dict[str, object], orientation: int) -> None:
    tag = {"tiffinfo": {0x0112: orientation}} if kind == "TIFF" else {"exif": exif(orientation)}
    data = encode(Image.fromarray(STORED), kind, **options, **tag)
    expected = UPRIGHT[orientation](STORED)
    info = probe(data)
    assert info == ImageInfo(expected.shape[1], expected.shape[0], orientation)
    assert np.abs(pixels(data).astype(int) - expected).max() <= (4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate"])
def test_compressed_tiff_is_turned_once(compression: str | None) -> None:
    data = encode(Image.fromarray(STORED), "TIFF", tiffinfo={0x0112: 6}, compression=compression)
    assert (pixels(data) == UPRIGHT[6](STORED)).all()


@pytest.mark.parametrize(
    ("block", "orientation"),
    [
        (exif(6, order="<"), 6),
        (exif(0), 1),
        (exif(9), 1),
        (exif(6)[:36], 1),  # ends inside the tag
        (exif(6).removeprefix(b"Exif\0\0"), 6),
        (b"MM\0\x2a\xff\xff\xff\xff", 1),  # points outside
        (b"no such thing", 1),
        (b"", 1),
    ],
)
def test_odd_exif_is_no_reason_to_lose_an_image(block: bytes, orientation: int) -> None:
    data = png(2, 1, 8, 2, bytes(7), before=chunk(b"eXIf", block))
    assert probe(data).orientation == orientation
    assert pixels(data).shape == ((2, 1, 3) if orientation == 6 else (1, 2, 3))


def test_exif_behind_the_pixels_counts_neither_early_nor_late() -> None:
    data = png(2, 1, 8, 2, bytes(7), after=chunk(b"eXIf", exif(6)))
    assert probe(data) == ImageInfo(2, 1, 1)
    assert pixels(data).shape == (1, 2, 3)


# --- headers and hostile bytes -------------------------------------------------------------------------------------

PHOTO = photo(90, 60)
SOUND = {kind: encode(PHOTO, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")} | {
    "JPEG-progressive": encode(PHOTO, "JPEG", progressive=True, exif=exif(6)),
    "TIFF-deflate": encode(PHOTO, "TIFF", compression="tiff_adobe_deflate"),
    "PNG-palette": encode(PHOTO.quantize(16), "PNG", transparency=3),
    "GIF-moving": encode(PHOTO, "GIF", save_all=True, append_images=[ImageOps.mirror(PHOTO)]),
}
by_kind = pytest.mark.parametrize("kind", SOUND)


def outcome(data: bytes) -> Array | str:
    """Pixels, or the reason why there are none."""
    try:
        return decode(data, probe(data, max_pixels=1_000_000))[..., :3]
    except SampleError as error:
        return error.reason


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(SampleError) as refused:
        call()
    return refused.value.reason


@by_kind
def test_probing_decodes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: ImageFile.ImageFile) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    assert probe(SOUND[kind]) == (ImageInfo(60, 90, 6) if kind == "JPEG-progressive" else ImageInfo(90, 60, 1))


@pytest.mark.parametrize("forgiving", [False, True])
@pytest.mark.parametrize("kind", ["JPEG", "JPEG-progressive", "PNG", "PNG-palette", "GIF", "BMP", "PPM", "TIFF"])
def test_a_cut_image_has_a_size_and_no_pixels(kind: str, forgiving: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", forgiving)
    data, whole = SOUND[kind], probe(SOUND[kind])
    assert pixels(data).shape == (whole.height, whole.width, 3)
    for keep in (0.8, 0.95):
        cut = data[: int(len(data) * keep)]
        assert probe(cut) == whole
        assert reason_of(lambda cut=cut: decode(cut, whole)) == "broken_image"


@by_kind
@given(keep=st.floats(0, 0.99))
def test_a_cut_anywhere_is_broken_or_whole(kind: str, keep: float) -> None:
    cut = SOUND[kind][: int(len(SOUND[kind]) * keep)]
    found = outcome(cut)  # whole, if what was cut off held no pixels of the first frame
    assert found == "broken_image" if isinstance(found, str) else (found == pixels(SOUND[kind])).all()


@by_kind
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), early=st.booleans())
def test_changed_bytes_raise_nothing_else(kind: str, changes: list[tuple[float, int]], early: bool) -> None:
    data = bytearray(SOUND[kind])
    for where, value in changes:
        data[int(where * (min(200, len(data)) if early else len(data)) * 0.999)] = value
    found = outcome(bytes(data))
    if isinstance(found, str):
        assert found in ("broken_image", "image_too_large")
    else:
        assert (found == outcome(bytes(data))).all()  # what damage has left out is not up to chance


@given(data=st.binary(max_size=200), magic=st.sampled_from([b"", *(data[:12] for data in SOUND.values())]))
def test_noise_raises_nothing_else(data: bytes, magic: bytes) -> None:
    found = outcome(magic + data)
    assert found in ("broken_image", "image_too_large") if isinstance(found, str) else found.ndim == 3


@pytest.mark.parametrize("data", [b"", b"\xff", b"<svg/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\0" * 99], ids=repr)
def test_what_is_no_image_is_named(data: bytes) -> None:
    with pytest.raises(SampleError, match="images are JPEG, PNG") as refused:
        probe(data)
    assert refused.value.reason == "broken_image"


@pytest.mark.parametrize(
    "data",
    [
        png(0, 5, 8, 2, b""),
        png(5, 0, 8, 2, b""),
        b"GIF89a" + struct.pack("<HHBBB", 0, 0, 0, 0, 0) + b";",
        b"P6\n0 0\n255\n",
        SOUND["BMP"][:18] + struct.pack("<ii", 0, 60) + SOUND["BMP"][26:],
    ],
)
def test_an_image_without_area_is_broken(data: bytes) -> None:
    assert reason_of(lambda: probe(data)) == "broken_image"


@pytest.mark.parametrize(
    "data",
    [
        png(100_000, 100_000, 8, 2, b""),
        png(10_000, 9_000, 8, 2, b""),  # where Pillow only warns
        b"P6\n100000 100000\n255\n",
        SOUND["BMP"][:18] + struct.pack("<ii", 100_000, 100_000) + SOUND["BMP"][26:],
        SOUND["WEBP"][:26] + struct.pack("<HH", 16383, 16383) + SOUND["WEBP"][30:],
    ],
)
def test_a_bomb_is_refused_by_its_header(data: bytes) -> None:
    assert reason_of(lambda: probe(data)) == "image_too_large"


def test_the_limit_is_the_callers() -> None:
    with pytest.raises(SampleError, match=r"90 × 60 pixels, but the limit is 5,399"):
        probe(SOUND["PNG"], max_pixels=5399)
    assert probe(SOUND["PNG"], max_pixels=5400) == ImageInfo(90, 60, 1)


def test_a_text_bomb_is_broken() -> None:
    bomb = chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(20_000_000)))
    assert reason_of(lambda: probe(png(1, 1, 8, 0, b"\0\0", before=bomb))) == "broken_image"


@pytest.mark.parametrize("wrong", [ImageInfo(60, 90, 1), ImageInfo(90, 60, 3), ImageInfo(1, 1, 1)])
def test_pixels_must_be_those_that_were_measured(wrong: ImageInfo) -> None:
    with pytest.raises(SampleError, match="measured as") as refused:
        decode(SOUND["PNG"], wrong)
    assert refused.value.reason == "broken_image"


# --- tiles ---------------------------------------------------------------------------------------------------------


def coordinates(width: int, height: int) -> Array:
    y, x = np.mgrid[:height, :width]
    return np.dstack([x, y, np.zeros_like(x)]).astype(np.uint8)


@pytest.mark.parametrize("style", ["smolvlm", "nanovlm"])
def test_tiles_land_in_reading_order(style: str) -> None:
    layout = TileLayout(tile=32, max_side=96, style=style)
    image = coordinates(96, 64)  # 2 × 3 tiles as it is: no pixel is resampled
    out = rendered(encode(Image.fromarray(image), "PNG"), layout).permute(0, 2, 3, 1).numpy()
    tiles = [image[32 * row : 32 * row + 32, 32 * col : 32 * col + 32] for row in range(2) for col in range(3)]
    whole, split = (out[-1], out[:-1]) if style == "smolvlm" else (out[0], out[1:])
    assert (split == np.stack(tiles)).all()
    y, x = np.mgrid[:32, :32]  # the picture in small: each pixel the mean of 3 × 2
    inside = (slice(2, -2), slice(2, -2))
    assert np.abs(whole[..., 0] - (3 * x + 1))[inside].max() <= 1
    assert np.abs(whole[..., 1] - (2 * y + 0.5))[inside].max() <= 1


def test_an_image_of_one_tile_is_not_split() -> None:
    layout = TileLayout(tile=64, max_side=64)
    image = coordinates(64, 64)
    out = rendered(encode(Image.fromarray(image), "PNG"), layout)
    assert (out.permute(0, 2, 3, 1).numpy() == image[None]).all()


def test_padding_is_the_mean_colour_around_the_middle() -> None:
    out = rendered(encode(Image.new("RGB", (200, 100), (9, 8, 7)), "PNG"), FixedLayout(size=100))[0].permute(1, 2, 0)
    assert (out[25:75] == torch.tensor([9, 8, 7])).all()
    bands = torch.cat([out[:25], out[75:]])
    assert (bands == torch.tensor([int(255 * channel) for channel in CLIP_MEAN])).all()
    tall = rendered(encode(Image.new("RGB", (1, 5000), (9, 8, 7)), "PNG"), FixedLayout(size=100))[0]
    assert (tall[0] == 9).sum() == 100  # one column survives


STRETCH = FixedLayout(fit="stretch")


@pytest.mark.parametrize(("width", "height"), [(400, 300), (1000, 800), (50, 900), (336, 336)])
def test_resizing_is_close_to_pillows(width: int, height: int) -> None:
    image = photo(width, height)
    out = rendered(encode(image, "PNG"), STRETCH)[0].permute(1, 2, 0).numpy()
    wanted = np.asarray(image.resize((336, 336), Image.Resampling.BICUBIC))
    apart = np.abs(out.astype(int) - wanted)
    assert (apart > 2).mean() <= 0.0005
    assert apart.max() <= 25


@pytest.mark.parametrize("size", [(1, 1), (1, 9000), (9000, 1), (7000, 3)])
@pytest.mark.parametrize("layout", [TileLayout(), TileLayout(style="nanovlm", upscale=False), STRETCH], ids=repr)
def test_extreme_shapes_have_their_colour_everywhere(size: tuple[int, int], layout: Layout) -> None:
    out = rendered(encode(Image.new("RGB", size, (200, 100, 50)), "PNG"), layout)
    centre = out[:, :, out.shape[2] // 2, out.shape[3] // 2].int()
    assert ((centre - torch.tensor([200, 100, 50])).abs() <= 1).all()


def test_smolvlm_pixels_are_close_to_its_processors() -> None:
    """Bicubic in one step against bicubic in two or three: alike but at edges."""
    processor = SmolVLMImageProcessorPil(
        size={"longest_edge": 512},
        max_image_size={"longest_edge": 128},
        resample=Image.Resampling.BICUBIC,
        do_normalize=False,
        do_rescale=False,
    )
    for width, height in [(640, 480), (300, 200), (333, 777)]:
        image = photo(width, height)
        theirs = processor([image], return_row_col_info=True, return_tensors="np")
        layout = TileLayout(tile=128, max_side=512)
        grid = layout.measure(width, height)
        assert (grid.rows, grid.cols) == (theirs["rows"][0][0], theirs["cols"][0][0])
        apart = np.abs(rendered(encode(image, "PNG"), layout).numpy() - theirs["pixel_values"][0].astype(int))
        assert apart[:-1].mean() < 1
        assert apart[-1].mean() < 2.5


@pytest.mark.parametrize(("width", "height"), [(28 * 5, 28 * 3), (56, 84)])
def test_native_patches_are_exactly_the_processors(width: int, height: int) -> None:
    image, layout = photo(width, height), NativeLayout()
    theirs = Qwen2VLImageProcessorPil()([image], return_tensors="pt")
    out = rendered(encode(image, "PNG"), layout)
    assert theirs["image_grid_thw"].tolist() == [[1, height // 14, width // 14]]
    assert out.shape == theirs["pixel_values"].shape == (width * height // 196, 1176)
    torch.testing.assert_close(normalize(out, CLIP_MEAN, CLIP_STD), theirs["pixel_values"], atol=2e-6, rtol=0)


def test_native_patches_of_a_resized_image_are_close() -> None:
    image = photo(613, 407)
    theirs = Qwen2VLImageProcessorPil(do_normalize=False, do_rescale=False)([image], return_tensors="np")
    apart = np.abs(rendered(encode(image, "PNG"), NativeLayout()).numpy() - theirs["pixel_values"])
    assert apart.max() <= 2


@pytest.mark.parametrize("shape", [(5, 3, 4, 6), (3, 2, 2), (1, 2, 3, 4, 4), (7, 24), (0, 3, 4, 4), (0, 24)])
def test_normalizing(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    axis = len(shape) - 3 if len(shape) > 2 else 1
    each = np.moveaxis(values.reshape(*shape[:1], 3, -1) if len(shape) == 2 and shape[0] else values, axis, -1)
    out = normalize(torch.from_numpy(values), CLIP_MEAN, CLIP_STD)
    assert out.dtype == torch.float32
    assert out.shape == shape
    if values.size:
        wanted = np.moveaxis((each / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_STD), -1, axis).reshape(shape)
        np.testing.assert_allclose(out.numpy(), wanted, atol=2e-6)


def test_a_broken_image_leaves_its_rows_alone() -> None:
    layout = TileLayout(tile=64, max_side=128)
    data = SOUND["JPEG"]
    info = probe(data)
    grid = layout.measure(info.width, info.height)
    out = torch.full((layout.pixel_rows(grid), *layout.pixel_shape), 99, dtype=torch.uint8)
    with pytest.raises(SampleError):
        render(data[:-300], info, grid, layout, out.numpy())
    assert (out == 99).all()


def test_rendering_from_many_threads_is_rendering_from_one() -> None:
    layout, images = TileLayout(tile=64, max_side=256), [*SOUND.values()] * 4
    alone, start = [rendered(data, layout) for data in images], threading.Barrier(8)

    def work(turn: int) -> torch.Tensor:
        if turn < 8:
            start.wait()
        return rendered(images[turn], layout)

    with ThreadPoolExecutor(8) as pool:
        assert all(map(torch.equal, pool.map(work, range(len(images))), alone))


# --- the real corpus -----------------------------------------------------------------------------------------------


def test_real_images_are_what_the_models_see(shared: Path) -> None:
    files = sorted(path for path in (shared / "data/corpus/images").rglob("*") if path.is_file())
    assert len(files) > 1000
    for number, path in enumerate(files):
        data = path.read_bytes()
        info = probe(data)
        with Image.open(path) as image:
            turned = image.format == "JPEG" and image.getexif().get(0x0112, 1) > 4
            assert (info.width, info.height) == (image.size[::-1] if turned else image.size), path
            if number % 7 == 0 and info.width * info.height < 2_000_000:
                wanted = convert_to_rgb(ImageOps.exif_transpose(image), return_numpy=True)
                assert (pixels(data) == wanted).all(), path


@pytest.mark.parametrize(
    ("size", "orientation", "shrinks"),
    [((400, 320), 6, 2), ((401, 320), 1, 1), ((318, 318), 1, 1), ((640, 800), 8, 4), ((1250, 100), 1, 1)],
)
def test_a_jpeg_is_decoded_smaller_only_under_strong_shrinking(
    size: tuple[int, int], orientation: int, shrinks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    tall = orientation > 4
    layout = FixedLayout(size=40, tokens=4)  # of which short sides are 8, just under 8, 16 and 2.5 times as long
    data = encode(photo(*size), "jpeg", exif=exif, quality=92)
    loaded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (loaded.append(self.size), load(self))[1])
    found = rendered(data, layout)
    assert loaded[0] == (-(-size[0] // shrinks), -(-size[1] // shrinks))
    assert len(found) == 1
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert (upright.size == size) != tall
    whole = rendered(encode(upright, "png"), layout)  # a PNG is always decoded whole
    error = (found.double() - whole.double()).square().mean()
    assert 10 * torch.log10(255**2 / error.clamp(min=1e-9)) > 40
