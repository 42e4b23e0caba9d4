"""The ways of batching that the rolling packer is compared with, each on a whole list of sizes.

Each takes sizes that fit the budget one by one (`naive` and `constrained` have no budget of packs), in arrival order,
and gives groups of indices into them.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from wdspack.packing.budget import Budget
from wdspack.types import Size

NAIVE_BATCH = 8  # samples
NUM_SEQUENCES, DELTA = 8, 5  # as the published packing ships

Groups = list[list[int]]
Rank = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]


def naive(sizes: Sequence[Size], budget: Budget) -> Groups:  # noqa: ARG001
    """Batches of NAIVE_BATCH samples in arrival order, every sample padded to the longest of its batch."""
    return [list(range(start, min(start + NAIVE_BATCH, len(sizes)))) for start in range(0, len(sizes), NAIVE_BATCH)]


def constrained(sizes: Sequence[Size], budget: Budget) -> Groups:  # noqa: ARG001
    """One sample a row, padded to seq_len."""
    return [[index] for index in range(len(sizes))]


def greedy(sizes: Sequence[Size], budget: Budget) -> Groups:
    """Next fit: a new pack wherever a sample does not fit the last one."""
    groups: Groups = []
    tokens = images = tiles = 0
    for index, size in enumerate(sizes):
        tokens, images, tiles = tokens + size.tokens, images + size.images, tiles + size.tiles
        if not groups or budget.excess(tokens, images, tiles):
            groups.append([])
            tokens, images, tiles = size
        groups[-1].append(index)
    return groups


def ffd(sizes: Sequence[Size], budget: Budget) -> Groups:
    """First fit decreasing, over all samples: longest first, each into the first pack with room for it."""
    return _into_bins(sizes, _longest_first(sizes), budget, lambda room: np.arange(len(room)))


def bfd(sizes: Sequence[Size], budget: Budget) -> Groups:
    """Best fit decreasing, over all samples: longest first, each into the fullest pack with room for it."""
    return _into_bins(sizes, _longest_first(sizes), budget, lambda room: room)


def balanced_greedy(sizes: Sequence[Size], budget: Budget) -> Groups:
    """The knapsack that nanoVLM's ConstantLengthDataset publishes, after the balanced packing of Eagle 2.

    1. Gather samples until they have the tokens of NUM_SEQUENCES packs.
    2. Open the fewest packs that could hold these, and DELTA more.
    3. Longest first, put each into the emptiest pack with room for it; where there is none, open one.
    4. Emit all packs but the empty ones, and start again.
    """
    groups: Groups = []
    start = tokens = 0
    for index, size in enumerate(sizes):
        tokens += size.tokens
        if tokens >= NUM_SEQUENCES * budget.seq_len or index == len(sizes) - 1:
            flushed = sizes[start : index + 1]
            packs = ceil(tokens / budget.seq_len) + DELTA
            bins = _into_bins(flushed, _longest_first(flushed), budget, lambda room: -room, packs)
            groups += [[start + each for each in group] for group in bins if group]
            start, tokens = index + 1, 0
    return groups


def _longest_first(sizes: Sequence[Size]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda index: -sizes[index].tokens)


def _into_bins(sizes: Sequence[Size], order: list[int], budget: Budget, rank: Rank, bins: int = 0) -> Groups:
    """Puts each size into the bin of lowest rank (from the room in tokens, (bins,)) that holds it, or into a new one.

    Vectorised over the bins: 40,000 samples take a second or two.
    """
    limits = [limit if limit is not None else 2**62 for limit in (budget.seq_len, budget.max_images, budget.max_tiles)]
    room = np.repeat(np.array(limits, dtype=np.int64)[:, None], bins + len(sizes), axis=1)  # (3, bins)
    groups: Groups = [[] for _ in range(bins)]
    for index in order:
        size = np.array(sizes[index], dtype=np.int64)
        opened = room[:, : len(groups)]
        fits = np.flatnonzero((opened >= size[:, None]).all(axis=0))
        if len(fits):
            chosen = int(fits[rank(opened[0, fits]).argmin()])
        else:
            chosen = len(groups)
            groups.append([])
        groups[chosen].append(index)
        room[:, chosen] -= size
    return groups
