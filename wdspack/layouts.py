"""What an image becomes, from its width and height alone: a grid of tiles, tokens, and the text that stands for it.

    (width, height) ──measure──▶ Grid ──prompt──▶ "<fake_token_around_image><row_1_col_1><image>…"   (for the tokenizer)
                                  └────views────▶ how the pixels are resized and cut                 (for `images`)

A layout is a frozen value that imports neither torch nor Pillow: measuring takes microseconds, so the packing buffer
can hold images still compressed. Its fields are its identity: layouts that compare equal make equal packs.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wdspack.errors import ConfigError, SampleError
from wdspack.types import Grid

RGB = tuple[float, float, float]
CLIP_MEAN: RGB = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: RGB = (0.26862954, 0.26130258, 0.27577711)


class View(NamedTuple):
    """One resized copy of an image, cut into rows × cols square cells, each a row of `pixel_values`.

    cell: the side of a cell, in pixels.
    merge: cells are written in blocks of merge × merge, the blocks and the cells in them row by row.
    frames: how often each cell is repeated in its row, channel by channel (video models see a still of 2 frames).
    fill: a colour to centre the image on, keeping its aspect ratio; None stretches it over the whole view.
    """

    rows: int
    cols: int
    cell: int
    merge: int = 1
    frames: int = 1
    fill: tuple[int, int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """What the rest of the pipeline asks of a layout. mean, std: models want (pixel / 255 − mean) / std by channel."""

    mean: RGB = (0.5, 0.5, 0.5)
    std: RGB = (0.5, 0.5, 0.5)

    @property
    @abstractmethod
    def image_token(self) -> str:
        """The placeholder, one for each feature that the vision tower yields."""

    @property
    @abstractmethod
    def special_tokens(self) -> tuple[str, ...]:
        """All tokens of `prompt` that are not plain text; a tokenizer that lacks some must be given them as special."""

    @property
    @abstractmethod
    def pixel_shape(self) -> tuple[int, ...]:
        """Shape of one row of `pixel_values`."""

    @abstractmethod
    def measure(self, width: int, height: int) -> Grid:
        """What an image of that size in pixels, as displayed, becomes.

        Raises SampleError: "broken_image" for a side below 1, "aspect" for one that is too long for the other.
        """

    @abstractmethod
    def grid(self, rows: int, cols: int) -> Grid:
        """The Grid of an image cut into rows × cols tiles (NativeLayout: tokens); 1 × 1 for one that is not split."""

    @abstractmethod
    def prompt(self, grid: Grid) -> str:
        """The text that stands for an image, placeholders written out; begins and ends with a special token.

        It is `grid.length` tokens where a tokenizer has one token each for "\\n" and "\\n\\n".
        """

    @abstractmethod
    def views(self, grid: Grid) -> tuple[View, ...]:
        """How pixels are made, in the order of the placeholders."""

    def prefix(self, index: int, count: int) -> str:  # noqa: ARG002
        """Plain text ahead of image `index` (from 0) of the `count` in a conversation."""
        return ""

    def blank(self) -> Grid:
        """The cheapest grid that the model accepts, for an image with nothing on it."""
        return self.grid(1, 1)

    def pixel_rows(self, grid: Grid) -> int:
        """How many rows of `pixel_values` an image fills: its tiles, or its patches."""
        return sum(view.rows * view.cols for view in self.views(grid))

    def __post_init__(self) -> None:
        for name, least in (("mean", -math.inf), ("std", 0.0)):
            given = getattr(self, name)
            try:
                red, green, blue = map(float, given)
            except (TypeError, ValueError):
                red = green = blue = math.nan
            if not all(least < channel < math.inf for channel in (red, green, blue)):
                raise ConfigError(
                    f"{name}={given!r} but it must be three finite numbers, one a channel"
                    f"{', each above 0' if name == 'std' else ''}; SmolVLM has (0.5, 0.5, 0.5)"
                )
            object.__setattr__(self, name, (red, green, blue))  # a list, as YAML has it, could not be hashed


@dataclass(frozen=True, kw_only=True)
class TileLayout(Layout):
    """Square tiles of a large image and one of the whole: SmolVLM, Idefics3 and nanoVLM.

    tile: side of the vision tower's input, in pixels; even. max_side: what the long side is resized to, a multiple of
        `tile`. tokens_per_tile: features for a tile, after pixel shuffle.
    style: whose short side, prompt and order. "smolvlm" (Idefics3's too): the tiles by row, then the whole image;
        "nanovlm": the whole image first, and "<image: 0>" ahead of each image where there are several.
    upscale: True, as SmolVLM does it, brings every long side to `max_side`: a 32 × 32 icon costs as much as a
        photograph. False, as nanoVLM does it, only rounds it up to the next multiple of `tile`.
    mean, std: nanoVLM's published models want (0, 0, 0) and (1, 1, 1).

    The rule: resize the long side, let the short side follow, round both up to whole tiles, stretch the image to that.
    An image that fits one tile is not split (Grid 0 × 0 for "smolvlm", 1 × 1 for "nanovlm"). Where the short side lands
    within rounding of a tile's edge, the floats decide; they are those of the models' own processors.
    """

    tile: int = 512
    max_side: int = 2048
    tokens_per_tile: int = 64
    style: Literal["smolvlm", "nanovlm"] = "smolvlm"
    upscale: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(1, tile=self.tile, max_side=self.max_side, tokens_per_tile=self.tokens_per_tile)
        if self.style not in ("smolvlm", "nanovlm"):
            raise ConfigError(f'style={self.style!r} but the styles are "smolvlm" and "nanovlm"; name one of them')
        if self.tile % 2 or self.max_side % self.tile:  # else the models' processors disagree with themselves
            raise ConfigError(
                f"tile={self.tile}, max_side={self.max_side} but a tile must be even and max_side a multiple of it; "
                f"use tile={self.tile + self.tile % 2} and a max_side of 1, 2, 3, … times that"
            )
        if self.style == "smolvlm" and self.max_side > 4096:
            raise ConfigError(f"max_side={self.max_side} but SmolVLM's own processor stops at 4096; use at most that")

    @property
    def image_token(self) -> str:
        return "<image>" if self.style == "smolvlm" else "<|image|>"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        side = range(1, self.max_side // self.tile + 1)
        head = ("<fake_token_around_image>", "<global-img>") if self.style == "smolvlm" else ("<|global_image|>",)
        return (*head, self.image_token, *(f"<row_{row}_col_{col}>" for row in side for col in side))

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        return 3, self.tile, self.tile

    def measure(self, width: int, height: int) -> Grid:
        _check_size(width, height)
        long, short, side = max(width, height), min(width, height), self.max_side
        if not self.upscale:
            side = min(side, math.ceil(long / self.tile) * self.tile)
        if self.style == "nanovlm":
            across = math.ceil(short * (side / long) / self.tile)
        else:
            aspect = width / height
            follows = int(side / aspect) if width >= height else int(side * aspect)
            across = math.ceil(max(1, follows + follows % 2) / self.tile)
        along = side // self.tile
        return self.grid(across, along) if width >= height else self.grid(along, across)

    def grid(self, rows: int, cols: int) -> Grid:
        split, tokens = rows * cols > 1, self.tokens_per_tile
        tiles = rows * cols + split
        if self.style == "nanovlm":  # a marker a tile
            return Grid(rows, cols, tiles, tiles * tokens, tiles * (tokens + 1))
        # Two markers a tile, a line break a row (the blank line after the last is one token), a closing marker
        length = tiles * (tokens + 2) + rows * split + 1
        return Grid(rows * split, cols * split, tiles, tiles * tokens, length)

    def prefix(self, index: int, count: int) -> str:
        return f"<image: {index}>" if self.style == "nanovlm" and count > 1 else ""

    def prompt(self, grid: Grid) -> str:
        images, split = self.image_token * self.tokens_per_tile, grid.tiles > 1
        fence = "<fake_token_around_image>" if self.style == "smolvlm" else ""
        rows = [
            "".join(f"{fence}<row_{row}_col_{col}>{images}" for col in range(1, grid.cols + 1))
            for row in range(1, grid.rows * split + 1)
        ]
        if self.style == "nanovlm":
            return f"<|global_image|>{images}{''.join(rows)}"
        return "\n".join(rows) + "\n\n" * split + f"{fence}<global-img>{images}{fence}"

    def views(self, grid: Grid) -> tuple[View, ...]:
        whole = View(1, 1, self.tile)
        if grid.tiles == 1:
            return (whole,)
        tiles = View(grid.rows, grid.cols, self.tile)
        return (tiles, whole) if self.style == "smolvlm" else (whole, tiles)


@dataclass(frozen=True, kw_only=True)
class FixedLayout(Layout):
    """One square and a fixed number of tokens for any image: LLaVA-1.5.

    size: side of the square, in pixels. tokens: features of the vision tower, (336 / 14)² by default.
    fit: "pad" centres the image on the mean colour, as LLaVA-1.5 was trained; "stretch" ignores its aspect ratio.
    """

    mean: RGB = CLIP_MEAN
    std: RGB = CLIP_STD
    size: int = 336
    tokens: int = 576
    image_token: str = "<image>"
    fit: Literal["pad", "stretch"] = "pad"

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(1, size=self.size, tokens=self.tokens)
        if self.fit not in ("pad", "stretch") or not self.image_token:
            raise ConfigError(
                f'fit={self.fit!r}, image_token={self.image_token!r} but an image is made square by "pad" or "stretch" '
                f'and needs a placeholder; LLaVA-1.5 has fit="pad", image_token="<image>"'
            )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.image_token,)

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        return 3, self.size, self.size

    def measure(self, width: int, height: int) -> Grid:
        _check_size(width, height)
        return self.grid(1, 1)

    def grid(self, rows: int, cols: int) -> Grid:
        return Grid(rows, cols, 1, self.tokens, self.tokens)

    def prompt(self, grid: Grid) -> str:
        return self.image_token * grid.tokens

    def views(self, grid: Grid) -> tuple[View, ...]:
        red, green, blue = (min(255, max(0, int(channel * 255))) for channel in self.mean)
        return (View(grid.rows, grid.cols, self.size, fill=(red, green, blue) if self.fit == "pad" else None),)


@dataclass(frozen=True, kw_only=True)
class NativeLayout(Layout):
    """Patches at nearly the image's own size and aspect ratio: Qwen2-VL.

    patch: side of a patch, in pixels. merge: merge × merge patches make one token.
    min_pixels, max_pixels: the area that an image is scaled into; its sides become multiples of patch × merge.
    frames: how often a patch is repeated in its row of `pixel_values`, which has 3 · frames · patch² numbers.

    Grid.rows and Grid.cols count patches, so `pixel_values` has rows × cols rows and image_grid_thw is (1, rows, cols).
    Grid.tiles is the vision work in units of 64 tokens (256 patches at merge=2) rounded up: about one tile of the
    default TileLayout, so budgets and balance mean the same for both.
    """

    mean: RGB = CLIP_MEAN
    std: RGB = CLIP_STD
    patch: int = 14
    merge: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    frames: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(1, patch=self.patch, merge=self.merge, min_pixels=self.min_pixels, frames=self.frames)
        _at_least(self.min_pixels, max_pixels=self.max_pixels)
        _at_least((self.patch * self.merge) ** 2, max_pixels=self.max_pixels)

    @property
    def image_token(self) -> str:
        return "<|image_pad|>"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return "<|vision_start|>", self.image_token, "<|vision_end|>"

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        return (3 * self.frames * self.patch**2,)

    def measure(self, width: int, height: int) -> Grid:
        _check_size(width, height)
        if max(width, height) / min(width, height) > 200:
            raise SampleError(
                f"an image of {width} × {height} pixels, but a side may be at most 200 times the other; crop it",
                reason="aspect",
            )
        unit = self.patch * self.merge
        rows, cols = round(height / unit), round(width / unit)
        if rows * cols * unit**2 > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows, cols = (max(1, math.floor(side / shrink / unit)) for side in (height, width))
        elif rows * cols * unit**2 < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows, cols = (math.ceil(side * grow / unit) for side in (height, width))
        return self.grid(rows, cols)

    def grid(self, rows: int, cols: int) -> Grid:
        tokens = rows * cols
        return Grid(rows * self.merge, cols * self.merge, math.ceil(tokens / 64), tokens, tokens + 2)

    def prompt(self, grid: Grid) -> str:
        return f"<|vision_start|>{self.image_token * grid.tokens}<|vision_end|>"

    def views(self, grid: Grid) -> tuple[View, ...]:
        return (View(grid.rows, grid.cols, self.patch, self.merge, self.frames),)


def _at_least(least: int, **settings: int) -> None:
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name}={value!r} but it must be a whole number of {least:,} or more; raise it")


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise SampleError(f"an image of {width} × {height} pixels, but both must be at least 1", reason="broken_image")
