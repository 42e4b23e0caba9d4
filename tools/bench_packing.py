"""Measures packing: fill, balance and cost of every strategy, on four kinds of data.

    python tools/bench_packing.py                     all tables, in about a minute
    python tools/bench_packing.py --sizes my_data.py  the same, with sizes(name, n, seed) of that file

Four kinds, at a pack of 4,096 tokens (SmolVLM's layout: 64 tokens a tile and a marker, 512-pixel tiles):

short    captions: a few hundred tokens, every image one tile
mixed    instructions: images up to 1,024 px, 2 × 2 tiles and the whole; a tenth text only, a tenth 2 to 4 images
docs     pages: images up to 2,048 px, 4 × 4 tiles and the whole; few samples fit a pack
binding  short, but more images: with at most 18 of them a pack, images run out as often as tokens do

fill is tokens over capacity (for `naive`, whose batches have no fixed length, over its padded batches); bound is the
fewest packs that could do over the packs; us is CPU time a sample, of the fastest of --repeat runs.
"""

import argparse
import math
import runpy
import time
from collections.abc import Callable
from itertools import takewhile
from statistics import fmean
from typing import Any

import numpy as np

from wdspack.packing import STRATEGIES, Budget, Summary, pack_all, summarize

KINDS = ("short", "mixed", "docs", "binding")
SEQ_LEN = 4096
Sizes = list[tuple[int, int, int]]
Source = Callable[[str, int, int], Sizes]


def drawn(name: str, n: int, seed: int) -> Sizes:
    """Text of log-normal length (median 120 tokens, σ 1, at most 3,000), images of log-normal aspect ratio (σ 0.4)."""
    rng = np.random.default_rng([KINDS.index(name), seed])
    side = {"short": 1, "mixed": 2, "docs": 4, "binding": 1}[name]  # tiles along the longer side
    text = np.clip(rng.lognormal(math.log(120), 1.0, n), 16, 3000).astype(int)
    if name == "binding":
        images = rng.choice([0, 1, 2], p=[1 / 6, 1 / 3, 1 / 2], size=n)
    else:
        images = rng.choice([0, 1, 2, 3, 4], p=[0.1, 0.8, 0.04, 0.03, 0.03], size=n)
    short_side = np.exp(-np.abs(rng.normal(0, 0.4, (n, 4))))  # of an image whose longer side is 1
    grid = side * np.ceil(side * short_side).astype(int)
    tiles = ((grid + (grid > 1)) * (np.arange(4) < images[:, None])).sum(axis=1)
    return [(int(t + 65 * k), int(i), int(k)) for t, i, k in zip(text, images, tiles, strict=True)]


def timed(data: Sizes, repeat: int, settings: dict[str, Any]) -> tuple[list[list[int]], float]:
    """The packs, and the CPU time of the fastest run, in µs a sample."""
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        groups = pack_all(data, SEQ_LEN, **settings)
        seconds.append(time.process_time() - start)
    return groups, min(seconds) / len(data) * 1e6


def row(label: str, summary: Summary, micros: float) -> str:
    drops = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items()) or "none"
    least, mean, most, std = summary.images
    images = f"{least:.0f}/{mean:.1f}/{most:.0f} ±{std:.2f}"
    ratios = f"{summary.fill:>9.4f}{summary.bound:>9.5f}"
    return f"  {label:<18}{summary.packs:>6}{ratios}  {images:<18}{micros:>6.1f}   {drops}"


def compare(source: Source, n: int, seed: int, repeat: int) -> None:
    """Every strategy on every kind; rolling in arrival order and with a large buffer, too."""
    runs: dict[str, dict[str, Any]] = {strategy: {"strategy": strategy} for strategy in STRATEGIES}
    runs |= {"rolling, in order": {"shuffle": False}, "rolling, 16,384": {"buffer_size": 16_384}}
    for name in KINDS:
        data, limits = source(name, n, seed), {"max_images": 18 if name == "binding" else None}
        print(f"\n{name}: {n:,} samples, {fmean(size[0] for size in data):.0f} tokens on average")
        print("  strategy           packs     fill    bound  images a pack        us   dropped")
        for label, settings in runs.items():
            groups, micros = timed(data, repeat, limits | settings)
            budget = Budget(seq_len=SEQ_LEN, **limits)
            print(row(label, summarize(data, groups, budget, settings.get("strategy", "rolling")), micros), flush=True)


def balance(source: Source, lanes: int, per_lane: int, seed: int) -> None:
    """The packs of one step, side by side: every lane packs samples of its own, step s is the s-th pack of each.

    Over the steps at which every lane still reads (its last buffer is not in the packs yet), the heaviest pack over
    the mean pack; fill is over all packs, the last ones of each lane included.
    """
    data = source("mixed", lanes * per_lane, seed)
    print(f"\nmixed on {lanes} lanes of {per_lane:,} samples: heaviest pack of a step over the mean pack of the step")
    print("  packing                    images   tiles   tiles, 99 %   all steps: tiles   fill")
    for label, settings in {
        "rolling, balance=images": {"balance": "images"},
        "rolling, balance=tiles": {"balance": "tiles"},
        "balanced_greedy": {"strategy": "balanced_greedy"},
    }.items():
        packs: list[list[tuple[int, int]]] = []
        steady, tokens = [], 0
        for lane in range(lanes):
            own = data[lane::lanes]
            groups = pack_all(own, SEQ_LEN, seed=lane, **settings)
            tokens += sum(own[index][0] for group in groups for index in group)
            packs.append([(sum(own[i][1] for i in group), sum(own[i][2] for i in group)) for group in groups])
            out = np.cumsum([len(group) for group in groups])
            steady.append(sum(1 for _ in takewhile(lambda count: count <= per_lane - 1024, out)))
        every = np.array([lane[: min(map(len, packs))] for lane in packs])  # (lanes, steps, 2)
        ratio = every.max(axis=0) / every.mean(axis=0)
        images, tiles = ratio[: min(steady)].T
        fill = tokens / SEQ_LEN / sum(map(len, packs))
        print(
            f"  {label:<24}{images.mean():>9.3f}{tiles.mean():>8.3f}{np.quantile(tiles, 0.99):>14.3f}"
            f"{ratio[:, 1].mean():>19.3f}{fill:>7.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure fill, balance and cost of packing.")
    parser.add_argument("--sizes", metavar="PATH", help="a Python file with sizes(name, n, seed); default: drawn here")
    parser.add_argument("--samples", type=int, default=40_000, help="of each kind (default 40,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the sizes (default 0)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of which the fastest counts (default 1)")
    parser.add_argument("--lanes", type=int, default=64, help="lanes side by side; 0: no such table (default 64)")
    parser.add_argument("--per-lane", type=int, default=3_000, help="samples of a lane, over 1,024 (default 3,000)")
    arguments = parser.parse_args()
    source: Source = runpy.run_path(arguments.sizes)["sizes"] if arguments.sizes else drawn
    compare(source, arguments.samples, arguments.seed, arguments.repeat)
    if arguments.lanes:
        balance(source, arguments.lanes, arguments.per_lane, arguments.seed)


if __name__ == "__main__":
    main()
