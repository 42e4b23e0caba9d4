"""Packing a list of sizes at once, by any strategy, and what to say of the result.

[(tokens, images, tiles), …] ──pack_all──▶ [[index, …], …] ──summarize──▶ Summary (fill, drops, balance)
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import NamedTuple

from wdspack.errors import ConfigError
from wdspack.packing import baselines
from wdspack.packing.budget import Balance, Budget, total
from wdspack.packing.rolling import RollingPacker, priority
from wdspack.types import Size

BASELINES = MappingProxyType(
    {
        "naive": baselines.naive,
        "constrained": baselines.constrained,
        "greedy": baselines.greedy,
        "ffd": baselines.ffd,
        "bfd": baselines.bfd,
        "balanced_greedy": baselines.balanced_greedy,
    }
)
STRATEGIES = (*BASELINES, "rolling")


def pack_all(
    sizes: Iterable[Sequence[int]],
    seq_len: int = 4096,
    max_images: int | None = None,
    max_tiles: int | None = None,
    balance: Balance = "images",
    strategy: str = "rolling",
    buffer_size: int = 1024,
    seed: int = 0,
    shuffle: bool = True,
) -> list[list[int]]:
    """Groups of indices into sizes, one group a pack.

    sizes: (tokens, images, tiles) of each sample, in arrival order.
    seq_len, max_images, max_tiles: limits of a pack; a sample that exceeds one on its own is in no group. In a group of
        `naive` only the samples keep them: that is a batch, not a pack.
    balance: what `rolling` gives every pack nearly the same number of.
    strategy: "rolling", or to compare "naive", "constrained", "greedy", "ffd", "bfd", "balanced_greedy".
    buffer_size, seed, shuffle: of `rolling`: samples held, and whether they leave in a seeded order or as they arrive.

    Raises ConfigError on a setting that is not allowed, or a size that is no sample's.
    """
    budget = Budget(seq_len=seq_len, max_images=max_images, max_tiles=max_tiles, balance=balance)
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy={strategy!r} is not known; use one of {', '.join(STRATEGIES)}")
    checked = _checked(sizes)
    usable = [index for index, size in enumerate(checked) if not budget.excess(*size)]
    if strategy != "rolling":
        groups = BASELINES[strategy]([checked[index] for index in usable], budget)
        return [[usable[index] for index in group] for group in groups]

    packer = RollingPacker[int](budget, buffer_size=buffer_size)
    packs = []
    for arrival, index in enumerate(usable):
        packer.push(checked[index], priority(seed, 0, arrival, buffer_size, shuffle), index)
        if packer.full:
            packs.append(packer.pop())
    while packer:
        packs.append(packer.pop())
    return packs


class Spread(NamedTuple):
    """How a count differs between packs."""

    min: float
    mean: float
    max: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What packing made of a list of samples.

    packs: groups. samples: in them. tokens: of those samples, padding not counted.
    capacity: tokens that the groups take with their padding; a group of `naive` takes samples × longest.
    fill: tokens / capacity. bound: the fewest packs that could hold the samples, over packs (0 without packs).
    dropped: samples in no group, by reason.
    images, tiles: a pack. work: sum of length² over the samples of a pack, what attention costs.
    """

    packs: int
    samples: int
    tokens: int
    capacity: int
    bound: float
    dropped: Mapping[str, int]
    images: Spread
    tiles: Spread
    work: Spread

    @property
    def fill(self) -> float:
        return self.tokens / self.capacity if self.capacity else 0.0

    @property
    def padding(self) -> float:
        """The share of the capacity that is padding."""
        return 1 - self.fill if self.capacity else 0.0


def summarize(
    sizes: Iterable[Sequence[int]], groups: Sequence[Sequence[int]], budget: Budget, strategy: str = "rolling"
) -> Summary:
    """Measures the groups that `pack_all` made of sizes by that strategy; raises ConfigError where it would."""
    checked = _checked(sizes)
    members = [[checked[index] for index in group] for group in groups]
    reasons = (budget.excess(*size) for size in checked)
    packed = [size for group in members for size in group]
    tokens, images, tiles = total([Size(0, 0, 0), *packed])
    if strategy == "naive":
        capacity = sum(len(group) * max(group).tokens for group in members)
    else:
        capacity = len(groups) * budget.seq_len
    need = [tokens / budget.seq_len]
    need += [count / limit for count, limit in ((images, budget.max_images), (tiles, budget.max_tiles)) if limit]
    return Summary(
        packs=len(groups),
        samples=len(packed),
        tokens=tokens,
        capacity=capacity,
        bound=max(need) / max(1, len(groups)),
        dropped=Counter(reason for reason in reasons if reason),
        images=_spread([sum(size.images for size in group) for group in members]),
        tiles=_spread([sum(size.tiles for size in group) for group in members]),
        work=_spread([sum(size.tokens**2 for size in group) for group in members]),
    )


def _checked(sizes: Iterable[Sequence[int]]) -> list[Size]:
    checked = [Size(*map(int, size)) for size in sizes]
    for index, size in enumerate(checked):
        if size.tokens < 1 or size.images < 0 or size.tiles < 0:
            raise ConfigError(f"sizes[{index}]={tuple(size)}, but a sample has 1 token or more, and no negative count")
    return checked


def _spread(counts: list[int]) -> Spread:
    return Spread(min(counts), fmean(counts), max(counts), pstdev(counts)) if counts else Spread(0, 0, 0, 0)
