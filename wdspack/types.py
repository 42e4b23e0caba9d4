"""The values that travel down the pipeline, frozen and without behaviour.

RawSample ──records──▶ Conversation ──chat──▶ Encoded ─┐
(tar bytes)            (messages, images)     (tokens) ├─▶ Sample ──packing──▶ [Sample, …] ──assemble──▶ pack
                       image header ──layout──▶ Grid ──┘
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Size(NamedTuple):
    """What packing knows of a sample: `tokens` (image tokens included), `images`, `tiles`."""

    tokens: int
    images: int
    tiles: int


class Grid(NamedTuple):
    """What a layout makes of one image.

    rows, cols: the tile grid; 0 × 0 or 1 × 1 for an image that is not split (for NativeLayout: its patch grid).
    tiles: vision-tower inputs, the global tile included. tokens: placeholders, one for each feature of the tower.
    length: all tokens that the image takes in input_ids, its row, column and start markers included.
    """

    rows: int
    cols: int
    tiles: int
    tokens: int
    length: int


@dataclass(frozen=True, slots=True)
class RawSample:
    """One sample as its shard holds it: the members that share a key, undecoded.

    files: extension (lower case, all of it: "0.jpg") → contents, in archive order.
    offset, nbytes: where its members stand in the (decompressed) archive: from the first header (a PAX or GNU
        extension header, where the member has one) through the padding of the last.
    next_offset: where the next sample's first header starts; reading can go on from there.
    ordinal: number of the sample in its shard, from 0.
    ignored: members passed over since the sample before, by reason ("no_extension", "meta", "not_a_file").
    """

    url: str
    key: str
    files: Mapping[str, bytes]
    offset: int
    nbytes: int
    next_offset: int
    ordinal: int
    ignored: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. parts: text (str) or the number of an image in the conversation (int), in reading order."""

    role: str
    parts: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of a sample and the encoded images they mention; every image is mentioned exactly once, in order."""

    messages: tuple[Message, ...]
    images: tuple[bytes, ...]


class ImageInfo(NamedTuple):
    """An image's header: size in pixels as displayed (EXIF orientation applied), the EXIF orientation 1–8."""

    width: int
    height: int
    orientation: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation as tokens.

    input_ids: (T,) int32, image placeholders expanded.
    supervised: (T,) bool, True on what the assistant says and on its end-of-turn token.
    """

    input_ids: npt.NDArray[np.int32]
    supervised: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image still compressed, with what was measured from its header."""

    data: bytes
    info: ImageInfo
    grid: Grid


class Place(NamedTuple):
    """Where a sample stands: enough to read it again. shard is its number in the source's shard list."""

    source: int
    epoch: int
    shard: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured sample, as the packing buffer holds it: tokens, and images still encoded (never pixels)."""

    url: str
    key: str
    place: Place
    encoded: Encoded
    images: tuple[EncodedImage, ...]
    truncated: bool = False

    @property
    def size(self) -> Size:
        return Size(len(self.encoded.input_ids), len(self.images), sum(image.grid.tiles for image in self.images))
