"""The packing strategies side by side on a user's own samples."""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from rich import box
from rich.table import Table

from wdspack.bookmark import Cursor
from wdspack.config import DataConfig
from wdspack.errors import ConfigError, SampleError, ShardError
from wdspack.index.build import default_place
from wdspack.index.sizes import IndexedSizes
from wdspack.index.table import Index
from wdspack.ledger import Counts
from wdspack.packing import STRATEGIES, Budget, pack_all, summarize
from wdspack.run import Run, resolve
from wdspack.source import SourceReader
from wdspack.storage import Access
from wdspack.types import Sample, Size

logger = logging.getLogger("wdspack")

ENDLESS = 1 << 30  # tokens


def measured(config: DataConfig) -> Iterator[tuple[Sample | None, str]]:
    """Every sample of one epoch, whatever its length, in storage order; (None, reason) for one that is faulty.

    A shard that is lost under on_error="skip" is one (None, reason), too.

    Raises ConfigError or ShardError as streaming would.
    """
    run = _limitless(config)
    for number, urls in enumerate(run.shards):
        yield from _read(run, number, urls)


def measured_sizes(
    config: DataConfig, index: str | None = "auto", *, origins: Counter[str] | None = None
) -> Iterator[tuple[Size | None, str]]:
    """The sizes that `measured` finds, from an index where there is one that is fresh; a lost shard comes in its place.

    index: url of an index of all sources' shards; "auto" looks for `index.parquet` in the folder of each source's
        shards; None reads every shard. Shards that it does not know as they are now are read.
    origins: counts the shards by where their sizes came from: "index", or read for the reason "no_index",
        "not_indexed", "changed", "damaged" or "markers" (see `IndexedSizes.fault`).

    Raises ConfigError or ShardError as streaming would, and where an index that was asked for by name is unusable.
    """
    run, origins = _limitless(config), Counter() if origins is None else origins
    for number, urls in enumerate(run.shards):
        with ExitStack() as closing:
            known = _indexed(run, number, index, closing)
            for url in urls:
                fault = known.fault(url) if known else "no_index"
                origins[fault or "index"] += 1
                if known and not fault:
                    yield from known.shard(url)
                else:
                    for sample, reason in _read(run, number, (url,)):
                        yield sample.size if sample else None, reason


def _limitless(config: DataConfig) -> Run:
    """One epoch in storage order, in which no sample is too long."""
    limitless = {"seq_len": ENDLESS, "max_images": None, "max_tiles": None, "require_image": False}
    return resolve(config.replace(epochs=1, shuffle=False, on_long="drop", **limitless), lanes=1)


def _read(run: Run, number: int, urls: Sequence[str]) -> Iterator[tuple[Sample | None, str]]:
    """Samples of some shards of source `number`, or (None, reason) for each that is faulty and each shard lost."""
    counts, prompt = Counts(), run.config.source_list[number].caption_prompt
    access = Access(run.config.reading)
    reader = SourceReader(run.config, number, urls, lane=0, lanes=1, cursor=Cursor(), counts=counts, access=access)
    with closing(reader):
        while (found := reader.next()) is not None:
            try:
                yield run.measurer(*found, prompt), ""
            except SampleError as error:
                yield None, error.reason
    lost = {reason: n for reason, n in counts.shards.items() if reason.startswith("lost_")}
    yield from ((None, f"shard_{reason}") for reason, n in lost.items() for _ in range(n))


def _indexed(run: Run, number: int, index: str | None, closing: ExitStack) -> IndexedSizes | None:
    """The index of a source; None, with a warning, where there is none to be used."""
    if index is None:
        return None
    try:
        url = default_place(run.shards[number]) if index == "auto" else index
        options = run.config.source_list[number].storage_options
        return IndexedSizes(closing.enter_context(Index(url, storage_options=options)), run, number)
    except (ConfigError, ShardError) as error:
        if index != "auto":
            raise
        if not (isinstance(error, ShardError) and error.reason == "missing"):
            logger.warning("the index is not used, shards are read: %s", error)
        return None


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
