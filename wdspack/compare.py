"""The packing strategies side by side on a user's own samples."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from wdspack.bookmark import Cursor
from wdspack.config import DataConfig
from wdspack.errors import SampleError
from wdspack.ledger import Counts
from wdspack.packing import STRATEGIES, Budget, pack_all, summarize
from wdspack.run import resolve
from wdspack.source import SourceReader
from wdspack.types import Sample, Size

ENDLESS = 1 << 30  # tokens


def measured(config: DataConfig) -> Iterator[tuple[Sample | None, str]]:
    """Every sample of one epoch, whatever its length, in storage order; (None, reason) for one that is faulty.

    A shard that is lost under on_error="skip" is one (None, reason), too.

    Raises ConfigError or ShardError as streaming would.
    """
    limitless = {"seq_len": ENDLESS, "max_images": None, "max_tiles": None, "require_image": False}
    plan = config.replace(epochs=1, shuffle=False, on_long="drop", **limitless)
    run = resolve(plan, lanes=1)
    for number, (source, urls) in enumerate(zip(plan.source_list, run.shards, strict=True)):
        counts = Counts()
        reader = SourceReader(plan, number, urls, lane=0, lanes=1, cursor=Cursor(), counts=counts)
        while (found := reader.next()) is not None:
            try:
                yield run.measurer(*found, source.caption_prompt), ""
            except SampleError as error:
                yield None, error.reason
        lost = {reason: n for reason, n in counts.shards.items() if reason.startswith("lost_")}
        yield from ((None, f"shard_{reason}") for reason, n in lost.items() for _ in range(n))


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """What came of one strategy.

    chosen: it is the one that streaming uses.

    fill, padding: shares of all packs' tokens. dropped: samples that fit no pack, by reason. images_*: a pack.
    micros: microseconds of packing a sample.
    """

    name: str
    packs: int
    fill: float
    padding: float
    dropped: Mapping[str, int]
    images_min: int
    images_mean: float
    images_max: int
    micros: float

    @property
    def chosen(self) -> bool:
        return self.name == "rolling"


def compare(config: DataConfig, sizes: Sequence[Size], strategies: Sequence[str] = STRATEGIES) -> list[StrategyRow]:
    """Packs these sizes by each strategy, within the config's budgets."""
    rows = []
    budget = Budget(
        seq_len=config.seq_len, max_images=config.max_images, max_tiles=config.max_tiles, balance=config.balance
    )
    for strategy in strategies:
        start = time.perf_counter()
        groups = pack_all(
            sizes, config.seq_len, config.max_images, config.max_tiles, config.balance, strategy, config.buffer_size,
            config.seed, config.shuffle,
        )  # fmt: skip
        micros = (time.perf_counter() - start) * 1e6 / max(1, len(sizes))
        made = summarize(sizes, groups, budget, strategy)
        images = made.images
        rows.append(
            StrategyRow(
                strategy, made.packs, made.fill, made.padding, made.dropped,
                int(images.min), images.mean, int(images.max), micros,
            )
        )  # fmt: skip
    return rows


def table(rows: Sequence[StrategyRow], config: DataConfig, samples: int, faulty: Mapping[str, int]) -> Table:
    """For the terminal. samples: measured. faulty: those that no strategy gets to see, by reason."""
    limits = f", at most {config.max_images} images" * (config.max_images is not None)
    reasons = ": " * bool(faulty) + ", ".join(f"{reason} {n:,}" for reason, n in sorted(faulty.items()))
    shown = Table(
        title=f"{samples:,} samples into packs of {config.seq_len:,} tokens{limits}",
        caption=f"besides {sum(faulty.values()):,} faulty samples{reasons}",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    shown.add_column("strategy", no_wrap=True)
    for heading in ("packs", "fill", "padding", "dropped", "images/pack", "µs/sample"):
        shown.add_column(heading, justify="right")
    for row in rows:
        dropped = ", ".join(f"{reason} {n:,}" for reason, n in sorted(row.dropped.items())) or "none"
        shown.add_row(
            row.name, f"{row.packs:,}", f"{row.fill:.1%}", f"{row.padding:.1%}", dropped,
            f"{row.images_min}/{row.images_mean:.1f}/{row.images_max}", f"{row.micros:.1f}",
            style="bold" if row.chosen else "",
        )  # fmt: skip
    return shown
