"""How a layout's images stand in the text: all that a sample's text tokens depend on besides its tokenizer.

    tokens of a sample = text tokens (tokenizer, wording) + Σ tokens of its images (tokenizer, layout, width and height)

An image is one placeholder until the text has been encoded; so the text's tokens are the same whatever the sizes of
its images, of tiles and of grids.
"""

import re
from dataclasses import dataclass

from wdspack.chat import ChatEncoder
from wdspack.errors import ConfigError
from wdspack.hashing import digest
from wdspack.layouts import FixedLayout, Layout, NativeLayout, TileLayout
from wdspack.types import Conversation

GRID_MARKER = re.compile(r"<row_\d+_col_\d+>")

NAMED: dict[str, Layout] = {
    "smolvlm": TileLayout(),
    "nanovlm": TileLayout(style="nanovlm"),
    "fixed": FixedLayout(),
    "native": NativeLayout(),
}
"""A layout of each wording, as tools name them."""


@dataclass(frozen=True)
class Wording:
    """name: "smolvlm", "nanovlm", "fixed" or "native". digest: equal ones count the same tokens in a text, save one
    that spells a grid marker: how many of these a tokenizer knows depends on the layout's sides. tokens: digest of all.
    """

    name: str
    digest: str
    tokens: str


def wording(layout: Layout) -> Wording:
    """What of a layout concerns texts."""
    tokens = sorted(token for token in layout.special_tokens if not GRID_MARKER.fullmatch(token))
    prefixes = [layout.prefix(index, count) for count in (1, 2, 3) for index in range(count)]
    named = next(name for name, other in NAMED.items() if _kind(other) == _kind(layout))
    return Wording(named, digest(layout.image_token, *prefixes, *tokens), digest(*sorted(layout.special_tokens)))


def text_tokens(encoder: ChatEncoder, layout: Layout, conversation: Conversation) -> int:
    """A conversation's tokens besides its images'. Raises SampleError as `ChatEncoder.encode` does."""
    blank, count = layout.blank(), len(conversation.images)
    encoded = encoder.encode(conversation, [blank] * count)
    return len(encoded.input_ids) - count * len(encoder.image_ids(blank))


def named_layouts(names: list[str]) -> tuple[Layout, ...]:
    """Layouts by name. Raises ConfigError for an unknown one."""
    if unknown := [name for name in names if name not in NAMED]:
        raise ConfigError(f"layout {', '.join(unknown)}: it must be one of {', '.join(NAMED)}")
    return tuple(NAMED[name] for name in names)


def _kind(layout: Layout) -> tuple[str, str]:
    return type(layout).__name__, layout.style if isinstance(layout, TileLayout) else ""
