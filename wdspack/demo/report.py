"""The report: plain values in, one self-contained HTML page out (no scripts, no requests, light and dark).

    Report(strategies, ledger, lengths, packs, samples, …) ──render_report──▶ str

Whatever a value says is text: the template escapes all of it, and a content security policy forbids the rest.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from math import log2
from typing import NamedTuple

import jinja2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from wdspack.compare import StrategyRow

Span = tuple[int, int]
"""[start, stop) in tokens."""

_THUMBNAIL = 240  # pixels
_STEPS: list[int] = [digit * 10**power for power in range(12) for digit in (1, 2, 3, 4, 5, 6, 8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """What became of the samples of one source; read = packed + dropped + held, or the page says that it is not."""

    source: str
    read: int
    packed: int
    dropped: Mapping[str, int]
    held: int = 0

    @property
    def balanced(self) -> bool:
        return self.read == self.packed + sum(self.dropped.values()) + self.held


class Segment(NamedTuple):
    """A sample's place in a pack, [start, stop) in tokens."""

    key: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PackStrip:
    """One pack, in tokens: its segments, which of their tokens are images and which are trained on."""

    seq_len: int
    segments: tuple[Segment, ...]
    images: tuple[Span, ...] = ()
    supervised: tuple[Span, ...] = ()

    @property
    def padding_from(self) -> int:
        return self.segments[-1].stop if self.segments else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCard:
    """One sample. images: as encoded in the shard. turns: (role, text). dropped: why it was, None if it was packed."""

    key: str
    images: Sequence[bytes] = ()
    turns: Sequence[tuple[str, str]] = ()
    tokens: int | None = None
    dropped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that the page shows; a part that is empty is left out.

    headline: figures for the top of the page, name → figure. lengths: (text tokens, image tokens) of every sample.
    """

    title: str
    subtitle: str = ""
    headline: Mapping[str, str] = field(default_factory=dict)
    strategies: Sequence[StrategyRow] = ()
    ledger: Sequence[LedgerRow] = ()
    lengths: Sequence[tuple[int, int]] = ()
    packs: Sequence[PackStrip] = ()
    samples: Sequence[SampleCard] = ()
    notes: Sequence[str] = ()


def render_report(report: Report) -> str:
    """The page, as one string of HTML."""
    dropped = [row.dropped for row in report.strategies] + [row.dropped for row in report.ledger]
    reasons = sorted({reason for by_reason in dropped for reason in by_reason})
    seq_len = max((strip.seq_len for strip in report.packs), default=0)
    return _template().render(
        report=report,
        tint={reason: i % 6 for i, reason in enumerate(reasons)},
        histogram=_histogram(report.lengths),
        seq_len=seq_len,
    )


def strip_from_pack(
    segment_ids: npt.NDArray[np.integer],
    labels: npt.NDArray[np.integer],
    is_image_token: npt.NDArray[np.bool_],
    keys: Sequence[str],
) -> PackStrip:
    """A strip from a pack's tensors, all (L,): segment_ids 1…S with 0 for padding, labels −100 where unsupervised.

    keys: (S,), the samples' names in order. Raises ValueError where there are not as many keys as segments.
    """
    bounds = [0, *(np.flatnonzero(np.diff(segment_ids)) + 1).tolist(), len(segment_ids)]
    spans = [span for span in pairwise(bounds) if segment_ids[span[0]] != 0]
    segments = tuple(Segment(key, *span) for key, span in zip(keys, spans, strict=True))
    return PackStrip(len(segment_ids), segments, runs(is_image_token), runs(labels != -100))


def runs(mask: npt.NDArray[np.bool_]) -> tuple[Span, ...]:
    """The stretches of True in a (L,) mask."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def thumbnail(data: bytes) -> str | None:
    """An encoded image as a small JPEG in a data: URI, None where it cannot be decoded."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (2 * _THUMBNAIL, 2 * _THUMBNAIL))
            upright = ImageOps.exif_transpose(image).convert("RGBA")
    except Exception:  # whatever a codec objects to, the page shows that there is no picture
        return None
    upright.thumbnail((_THUMBNAIL, _THUMBNAIL))
    flat = Image.new("RGB", upright.size, "white")
    flat.paste(upright, mask=upright)
    file = io.BytesIO()
    flat.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


class _Bin(NamedTuple):
    """Samples whose length is from `low` up to, not including, `high`, and their tokens."""

    low: int
    high: int
    samples: int
    text: int
    image: int

    @property
    def tokens(self) -> int:
        return self.text + self.image


def _histogram(lengths: Sequence[tuple[int, int]]) -> list[_Bin]:
    """Bins of half an octave, from the shortest sample to the longest."""
    octaves = [int(2 * log2(max(text + image, 1))) for text, image in lengths]
    bins = list[_Bin]()
    for octave in range(min(octaves, default=0), max(octaves, default=-1) + 1):
        inside = [length for length, at in zip(lengths, octaves, strict=True) if at == octave]
        text, image = sum(text for text, _ in inside), sum(image for _, image in inside)
        bins.append(_Bin(round(2 ** (octave / 2)), round(2 ** ((octave + 1) / 2)), len(inside), text, image))
    return bins


def _ceiling(value: int) -> int:
    """The next number that four gridlines divide into round ones."""
    return next(step * 4 for step in _STEPS if step * 4 >= value)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1000:,.0f}k"


def _covered(spans: Sequence[Span], segment: tuple[str, int, int]) -> int:
    """How many tokens of a segment the spans cover."""
    return sum(max(0, min(stop, segment[2]) - max(start, segment[1])) for start, stop in spans)


@lru_cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "thumbnail": thumbnail,
        "covered": _covered,
        "octaves_above": lambda value, low: log2(max(value, 1) / low),
        "ceiling": _ceiling,
        "short": _short,
        "number": lambda value: f"{value:,}",
        "percent": lambda share: f"{share:.1%}",
        "words": lambda name: name.replace("_", " "),
    }
    return environment.from_string(files(__package__).joinpath("report.html.j2").read_text("utf-8"))
