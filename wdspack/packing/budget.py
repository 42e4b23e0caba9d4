"""What a pack may hold, and the running counts that balance is measured against."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from wdspack.errors import ConfigError
from wdspack.types import Size

Balance = Literal["images", "tiles"]


class Totals(NamedTuple):
    """Integer sums over the packs that have left: all that a packer remembers of the past."""

    packs: int = 0
    tokens: int = 0
    images: int = 0
    tiles: int = 0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of one pack.

    seq_len: tokens, hard.
    max_images, max_tiles: hard; None is no limit.
    balance: which of the two every pack should carry nearly the same number of.
    blank: tokens that a pack without any image leaves free, for the blank image that is put there later.

    Raises ConfigError on a limit that no sample could meet.
    """

    seq_len: int
    max_images: int | None = None
    max_tiles: int | None = None
    balance: Balance = "images"
    blank: int = 0

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ConfigError(f"seq_len={self.seq_len}, but a pack has 1 token or more; use the model's context length")
        for name in ("max_images", "max_tiles"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ConfigError(f"{name}={limit}, but a limit is at least 0; use None for no limit")
        if self.balance not in get_args(Balance):
            raise ConfigError(f"balance={self.balance!r} is not known; use one of {', '.join(get_args(Balance))}")
        if not 0 <= self.blank < self.seq_len:
            raise ConfigError(
                f"blank={self.blank}, but a blank image may take 0 to {self.seq_len - 1} of seq_len={self.seq_len} "
                "tokens; use a longer seq_len or a smaller image"
            )

    def excess(self, tokens: int, images: int, tiles: int) -> str | None:
        """Why one pack may not carry this much, in one word for the ledger; None where it may.

        For a sample on its own this is the reason that it fits no pack.
        """
        if tokens > self.seq_len - (0 if images else self.blank):
            return "too_long"
        if self.max_images is not None and images > self.max_images:
            return "too_many_images"
        if self.max_tiles is not None and tiles > self.max_tiles:
            return "too_many_tiles"
        return None


def total(sizes: Iterable[Size]) -> Size:
    """The sum of one or more sizes, budget by budget."""
    tokens, images, tiles = map(sum, zip(*sizes, strict=True))
    return Size(tokens, images, tiles)


def plus(a: Sequence[int], b: Sequence[int]) -> Size:
    """The sum of two sizes, at a fifth of the time that `total` takes."""
    return Size(a[0] + b[0], a[1] + b[1], a[2] + b[2])
