"""The rolling buffer: sizes in, packs out one at a time; what did not fit waits for a later pack.

    push ──▶ window: the first WINDOW by priority ──▶ pop: the first ones + an exact completion ──▶ one pack
                 ▲ refilled from
             heap: the rest of the buffer

The trade-off: an exact search over the first few dozen samples instead of a rough one over all of them. It costs the
same whatever the size of the buffer, keeps samples in nearly their order, and bounds how long any of them waits.
"""

import heapq
from bisect import insort
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil
from typing import Generic, TypeVar

from wdspack.errors import ConfigError
from wdspack.hashing import mix64, uniform
from wdspack.packing.budget import Budget, Totals, plus, total
from wdspack.packing.subset import closest_subset
from wdspack.types import Size

T = TypeVar("T")

PACKING_VERSION = 2  # part of a run's identity: raise it when the same samples would make other packs

# One setting for all data, measured with tools/bench_packing.py. Each trades fill and balance for time.
WINDOW = 96  # candidates of a pack: among fewer, the sizes that balance needs are sometimes used up
# Padding costs all layers of the model, so little of it is worth being on the aim. But all ranks wait for the heaviest
# pack of a step: 1 % too much, by more than one image or tile, is as bad as 2 % padding.
OFF_AIM, OVER_AIM = 0.03, 2.0  # price of the whole aim, in packs
# Where there are so many images (or tiles) that their limit decides how many packs there will be, padding costs nothing
# and an image less than the limit costs its share of a pack: images come first, tokens second.
SCARCE = 4.0  # instead of OFF_AIM
EACH, LEAST = 18, 48  # candidates looked at for each sample of a mean pack, at least and up to WINDOW
CHOICE = 4  # mean samples that the search is to choose; those before them are taken in order
GRAIN = 1 / 585  # of a pack: what rounding the tokens of all samples chosen for it may cost
SLACK = 1 / 2048  # of a pack: padding that is not worth searching on for
OVERDUE = 2  # buffers between the first priority and the newest: no search then, the samples leave in order
BINDING = 0.8  # of a limit: where a mean pack has as much of images or tiles, the limit decides what fits


def priority(seed: int, lane: int, arrival: int, buffer_size: int, shuffle: bool) -> float:
    """When a sample should leave, counted in arrivals: its own number, or when shuffling up to a buffer later."""
    return arrival + (uniform(_lane_key(seed, lane), arrival) * buffer_size if shuffle else 0)


_lane_key = lru_cache(maxsize=1024)(mix64)


class RollingPacker(Generic[T]):
    """Packs samples, one pack at a time.

    Which pack comes next depends on the budget, the buffer size, the held samples and `totals`, and on nothing else:
    a packer that is given those totals and is pushed the held samples (`iter`, in its order, with the priorities they
    had) goes on with the very same packs.

    No sample waits long. Where priorities come from `priority`, with the samples pushed as arrivals, and the packer is
    popped whenever it is full, fewer than four buffers arrive between a sample's entering and its leaving, whatever
    the sizes: after at most three it is overdue, at most a buffer is before it, and only those leave until it does.
    """

    def __init__(self, budget: Budget, *, buffer_size: int, totals: Totals | None = None) -> None:
        """buffer_size: samples held before a pack should leave. totals: those of the packer that this one continues.

        Raises ConfigError on a buffer_size below 1.
        """
        if buffer_size < 1:
            raise ConfigError(f"buffer_size={buffer_size}, but packing needs 1 sample or more to choose from; try 1024")
        self.budget, self.buffer_size, self.totals = budget, buffer_size, totals or Totals()
        self._held = Size(0, 0, 0)
        self._items: dict[int, tuple[float, T]] = {}  # push order → (priority, item), in that order
        self._window: list[tuple[float, int, Size]] = []  # (priority, push order, size), sorted
        self._rest: list[tuple[float, int, Size]] = []  # the same, all behind the window, as a heap
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        """The held samples, in the order they were pushed."""
        return (item for _, item in self._items.values())

    @property
    def full(self) -> bool:
        """Whether it is time to pop."""
        return len(self._items) >= self.buffer_size

    def push(self, size: Size, priority: float, item: T) -> None:
        """Holds a sample. A lower priority leaves first; of equal ones the one that was pushed first.

        Raises ValueError where the sample fits no pack: ask `budget.excess` before.
        """
        if reason := self.budget.excess(*size):
            raise ValueError(f"{size} is {reason} for {self.budget}; drop the sample before packing")
        entry = (priority, self._pushed, size)
        self._items[self._pushed] = (priority, item)
        self._pushed += 1
        self._held = plus(self._held, size)
        if len(self._window) < WINDOW or entry < self._window[-1]:
            insort(self._window, entry)
            if len(self._window) > WINDOW:
                heapq.heappush(self._rest, self._window.pop())
        else:
            heapq.heappush(self._rest, entry)

    def pop(self) -> list[T]:
        """Removes one pack: at least one sample, in order of priority.

        1. Aim at the mean number of images (or tiles) of a pack, or at their limit where they are more.
        2. Take the first sample, and those after it in order while there stays room for CHOICE mean samples.
        3. Complete them with the best subset of the rest of the window, exact to GRAIN of a pack.

        Where the first sample is overdue: instead take samples in order for as long as they fit.

        Raises IndexError where nothing is held.
        """
        if not self._window:
            raise IndexError("pop from an empty packer; push a sample first")
        axis, aim, price = self._aim()
        # A pack of few samples must not cost more of each than a pack of many: fewer candidates are looked at.
        width = max(LEAST, int(EACH * self.budget.seq_len * len(self._items) / self._held[0]))
        sizes = [size for _, _, size in self._window[:width]]
        newest, _ = next(reversed(self._items.values()))
        overdue = newest - self._window[0][0] >= OVERDUE * self.buffer_size
        head = self._head(sizes, axis, aim, overdue)
        picks = [] if overdue else self._picks(total(sizes[:head]), sizes[head:], axis, aim, price)

        leaving = [*range(head), *(head + pick for pick in picks)]
        pack = [self._items.pop(self._window[index][1])[1] for index in leaving]
        for index in reversed(leaving):
            del self._window[index]
        while self._rest and len(self._window) < WINDOW:
            self._window.append(heapq.heappop(self._rest))
        packs, *packed = self.totals
        gone = total(sizes[index] for index in leaving)
        self.totals = Totals(packs + 1, *plus(packed, gone))
        held = self._held
        self._held = Size(held[0] - gone[0], held[1] - gone[1], held[2] - gone[2])
        return pack

    def _aim(self) -> tuple[int, float, float]:
        """What to search over (1 images, 2 tiles), how much of it a full pack has, and the price of having less.

        Half way between the mean of all samples so far and the mean of those held: the first differs little between
        lanes, the second gives back what earlier packs took too much of. A hard limit comes before balance: where the
        other of the two nearly reaches its limit, and is nearer to it, the search is over that one.
        """
        arrived, share = plus(self.totals[1:], self._held), self.budget.seq_len / 2
        means = [share * a / arrived[0] + share * h / self._held[0] for a, h in zip(arrived, self._held, strict=True)]
        limits = (self.budget.seq_len, self.budget.max_images, self.budget.max_tiles)
        used = [0.0 if limit is None else mean / max(limit, 1) for mean, limit in zip(means, limits, strict=True)]
        axis, other = (1, 2) if self.budget.balance == "images" else (2, 1)
        if used[other] > max(used[axis], BINDING):
            axis = other
        scarcity = max(used[1], used[2])
        return axis, means[axis] / max(1.0, scarcity), OFF_AIM if scarcity < 1 else SCARCE

    def _head(self, sizes: Sequence[Size], axis: int, aim: float, overdue: bool) -> int:
        """How many samples of the window to take from its start without choosing; at least 1."""
        count, sums = len(self._items), sizes[0]
        for head in range(1, len(sizes)):
            sums = plus(sums, sizes[head])
            room, lack = self.budget.seq_len - sums[0], aim - sums[axis]
            ample = room * count >= CHOICE * self._held[0] and lack * count >= CHOICE * self._held[axis]
            if not (ample or overdue) or self.budget.excess(*sums):
                return head
        return len(sizes)

    def _picks(self, taken: Size, sizes: Sequence[Size], axis: int, aim: float, price: float) -> list[int]:
        """Indices of the sizes that complete a pack which has `taken` already.

        The search knows nothing of the budget off its axis: where its answer breaks that it is asked again, without
        the sample that has most of it.
        """
        if not sizes:
            return []
        seq_len = self.budget.seq_len
        room = seq_len - taken.tokens
        # Where few samples are to be chosen, their tokens need not be counted one by one: the search costs in
        # proportion to what it counts to.
        choices = max(room, 1) * len(self._items) / self._held[0]
        grain = max(1, int(GRAIN * seq_len / choices))
        columns = list(zip(*sizes, strict=True))
        tokens = list(columns[0]) if grain == 1 else [-(-size // grain) for size in columns[0]]
        cap = ceil(aim * 9 / 8 + 0.5)  # one-sided: the heaviest pack of a step is the one that all ranks wait for
        limit = self.budget.max_images if axis == 1 else self.budget.max_tiles
        cap = cap if limit is None else min(cap, limit)
        while True:
            picks = closest_subset(
                tokens,
                columns[axis],
                room=room // grain,
                bare=(room - (0 if taken.images else self.budget.blank)) // grain,
                cap=max(0, cap - taken[axis]),
                aim=aim - taken[axis],
                unit=price * seq_len / max(aim, 1) / grain,
                over=OVER_AIM * seq_len / max(aim, 1) / grain,
                slack=int(SLACK * seq_len) // grain,
            )
            if picks and self.budget.excess(*total([taken, *(sizes[pick] for pick in picks)])):
                costly = max(picks, key=lambda pick: (sizes[pick][3 - axis], sizes[pick]))
                tokens[costly] = seq_len + 1  # fits nowhere
            else:
                return picks
