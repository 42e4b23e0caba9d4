"""Where the demo draws: Pillow with smooth edges, a few palettes and the one font that Pillow brings along.

    Canvas(width, height, theme) ──rect, line, text, …──▶ .finish() ──▶ Image (height, width, RGB)

All coordinates and sizes are pixels of the finished image. Small canvases are drawn at twice their size and shrunk,
because Pillow smooths text only; on large ones the steps are too fine to see and four times the pixels cost too much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont

Point = tuple[float, float]
Box = tuple[float, float, float, float]

_SMOOTH_BELOW = 1_100_000  # pixels


@dataclass(frozen=True, slots=True)
class Picture:
    """A finished drawing, what it shows, and what can be asked of it.

    facts: the data it was drawn from: "kind", and everything the answers follow from.
    turns: (question, answer) pairs. measure: (what, how much, the same as text), by which pictures of a kind compare.
    colourful: the questions mention colours, so it must stay in colour.
    """

    image: Image.Image
    facts: Mapping[str, Any]
    turns: tuple[tuple[str, str], ...]
    measure: tuple[str, int, str]
    colourful: bool = False


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours that go together, as hex strings: background, panel, ink (text), muted ink, hairlines, accents."""

    paper: str
    panel: str
    ink: str
    muted: str
    line: str
    accents: tuple[str, ...]


THEMES = (
    Theme(
        "#fbfaf6", "#f1ede3", "#24303a", "#7b8790", "#e3dfd4", ("#2f6f8f", "#e4803b", "#5b9e7d", "#c8553d", "#8a6fae")
    ),
    Theme(
        "#ffffff", "#f2f5fb", "#1c2541", "#76809a", "#e2e8f3", ("#3d5af1", "#ff7a59", "#22b8a0", "#f2b634", "#b15fd3")
    ),
    Theme(
        "#fff7f2", "#fbe9df", "#3b2430", "#96798a", "#f0dcd2", ("#c2456a", "#f29559", "#5f6caf", "#3f9c8f", "#e0b040")
    ),
    Theme(
        "#f3f8f4", "#e2eee5", "#1e3329", "#6f8a7c", "#d6e4da", ("#2d8a5f", "#d9843b", "#3a7ca5", "#a4508b", "#b7a23c")
    ),
    Theme(
        "#131a2a", "#1d2740", "#eef2fb", "#92a0bd", "#2a3654", ("#5cc8ff", "#ffb454", "#7ee0a1", "#ff7a90", "#c39bff")
    ),
    Theme(
        "#1f1d1b", "#2c2926", "#f6efe6", "#a89c8e", "#3a3632", ("#f4a259", "#8cb8a9", "#e76f51", "#e9c46a", "#9db4e8")
    ),
)


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(10)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow was built without FreeType and cannot draw text; pip install pillow")
    # Basic layout, since the other engine is used only where its library is found and places glyphs differently.
    return font.font_variant(size=size, layout_engine=ImageFont.Layout.BASIC)


def blend(one: str, other: str, share: float) -> str:
    """The colour `share` (0 to 1) of the way from `one` to `other`, both "#rrggbb"."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


class Canvas:
    """A drawing of `width` × `height` pixels on the theme's paper."""

    def __init__(self, width: int, height: int, theme: Theme, *, background: str | None = None) -> None:
        self.width, self.height, self.theme = width, height, theme
        self.zoom = 2 if width * height < _SMOOTH_BELOW else 1
        self._image = Image.new("RGB", (width * self.zoom, height * self.zoom), background or theme.paper)
        self._draw = ImageDraw.Draw(self._image)

    @property
    def em(self) -> float:
        """A comfortable text size for this canvas."""
        return min(max(8.5, min(self.width, self.height * 1.15) / 21), 64.0)

    def finish(self) -> Image.Image:
        return self._image.reduce(self.zoom) if self.zoom > 1 else self._image

    def rect(self, box: Box, fill: str, *, radius: float = 0, outline: str | None = None, stroke: float = 0) -> None:
        x0, y0, x1, y1 = self._scaled(box)
        if x1 > x0 and y1 > y0:
            self._draw.rounded_rectangle((x0, y0, x1 - 1, y1 - 1), radius * self.zoom, fill, outline, self._px(stroke))

    def line(self, points: Sequence[Point], colour: str, stroke: float = 1) -> None:
        flat = [(x * self.zoom, y * self.zoom) for x, y in points]
        self._draw.line(flat, colour, max(1, self._px(stroke)), joint="curve")

    def polygon(self, points: Sequence[Point], fill: str) -> None:
        self._draw.polygon([(x * self.zoom, y * self.zoom) for x, y in points], fill)

    def dot(self, centre: Point, radius: float, fill: str, *, outline: str | None = None, stroke: float = 0) -> None:
        (x, y), z = centre, self.zoom
        box = ((x - radius) * z, (y - radius) * z, (x + radius) * z, (y + radius) * z)
        self._draw.ellipse(box, fill, outline, self._px(stroke))

    def wedge(self, centre: Point, radius: float, start: float, stop: float, fill: str) -> None:
        """A slice of a disc from `start` to `stop`, in turns clockwise from twelve o'clock."""
        (x, y), z = centre, self.zoom
        box = ((x - radius) * z, (y - radius) * z, (x + radius) * z, (y + radius) * z)
        self._draw.pieslice(box, start * 360 - 90, stop * 360 - 90, fill)

    def text(
        self,
        at: Point,
        text: str,
        size: float,
        colour: str,
        *,
        anchor: str = "ls",
        bold: bool = False,
        width: float = 0,
    ) -> None:
        """Writes a line of ASCII with Pillow's `anchor`, made smaller where it would be wider than `width` (0: any)."""
        font = _font(max(6, round(size * self.zoom)))
        if width and (taken := font.getlength(text)) > width * self.zoom:
            font = _font(max(6, int(font.size * width * self.zoom / taken)))
        x, y = at[0] * self.zoom, at[1] * self.zoom
        self._draw.text((x, y), text, colour, font, anchor, stroke_width=font.size * 0.025 if bold else 0)

    def extent(self, text: str, size: float) -> float:
        """How wide a line of text is, in pixels."""
        return _font(max(6, round(size * self.zoom))).getlength(text) / self.zoom

    def _px(self, length: float) -> int:
        return round(length * self.zoom)

    def _scaled(self, box: Box) -> tuple[int, int, int, int]:
        return self._px(box[0]), self._px(box[1]), self._px(box[2]), self._px(box[3])
