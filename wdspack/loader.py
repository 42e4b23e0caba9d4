"""The loader: batches of a rank, and the state of what was delivered.

    Stream ─▶ the oldest batch in flight ─▶ deliver (ledger, bookmarks) ─▶ stamp ─▶ batch

State is updated before a batch is handed over, from the bookmarks that came with its packs: what is only prefetched
does not exist yet.
"""

import logging
import multiprocessing
import time
import weakref
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import distributed

from wdspack.batch import stamp
from wdspack.config import DataConfig
from wdspack.cores import cores_of_rank, default_decoders, default_workers
from wdspack.dataset import choose_lanes, place
from wdspack.errors import ConfigError
from wdspack.ledger import Ledger
from wdspack.run import resolve
from wdspack.state import Delivered, check_form
from wdspack.stream import Settings, Stream
from wdspack.timing import Stopwatch, Timing, Waits

logger = logging.getLogger("wdspack")


def make_loader(
    config: DataConfig,
    *,
    batch_size: int | None = 1,
    num_workers: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    process_group: Any = None,
    normalize: bool = True,
    prefetch: int | None = None,
    prefetch_factor: int = 16,
    decoders: int | None = None,
    pin_memory: bool | None = None,
    multiprocessing_context: str | None = None,
) -> "Loader":
    """A loader of this rank's packs.

    batch_size: packs in a batch; None gives packs one by one, with uint8 pixels. num_workers: processes that read,
    tokenize and pack; 0 does so in a thread of this process; None takes what suits the cores (see `cores`), 1 where
    `lanes` is None. rank, world_size: as given, else of torch.distributed, else of the launcher's environment (RANK,
    WORLD_SIZE), else 0 of 1. process_group: where world_size is not that of the default group, the group (gloo) of the
    ranks that share the data, for finite runs to end in step.
    normalize: float32 pixels as the vision tower takes them; False leaves uint8 for `wdspack.normalize`.
    prefetch: batches being decoded ahead; None takes 4, or 2 where pixels are normalised and so four times as large.
    prefetch_factor: packs that each worker prepares ahead. decoders: processes that decode, or threads where
    num_workers is 0; None takes one for each core of the rank, 16 at the most. pin_memory: whether a batch is in pinned
    memory; None does so where there is CUDA. multiprocessing_context: "fork", "spawn" or "forkserver".

    Raises:
        ConfigError: an argument that cannot be, `lanes` not a multiple of world_size × workers, or no shards.
    """
    for name, value, low in (
        ("batch_size", 1 if batch_size is None else batch_size, 1),
        ("num_workers", 0 if num_workers is None else num_workers, 0),
        ("prefetch", 1 if prefetch is None else prefetch, 1),
        ("prefetch_factor", prefetch_factor, 1),
        ("decoders", 1 if decoders is None else decoders, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
            raise ConfigError(f"make_loader({name}={value!r}): it must be a whole number of at least {low}")
    methods = (None, *multiprocessing.get_all_start_methods())
    if multiprocessing_context not in methods:
        raise ConfigError(
            f"make_loader(multiprocessing_context={multiprocessing_context!r}): it must be one of "
            + ", ".join(map(repr, methods))
        )
    rank, world_size = place(rank, world_size)
    normalize = normalize and batch_size is not None
    cores = cores_of_rank()
    workers = default_workers(cores, config.lanes, world_size) if num_workers is None else num_workers
    return Loader(
        config,
        (rank, world_size),
        Settings(
            batch_size=batch_size,
            num_workers=workers,
            process_group=process_group,
            normalize=normalize,
            prefetch=prefetch or (2 if normalize else 4),
            prefetch_factor=prefetch_factor,
            decoders=decoders or default_decoders(cores),
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            multiprocessing_context=multiprocessing_context,
        ),
    )


class Loader:
    """Iterates over batches (or packs). Made by `make_loader`.

    `iter(loader)` after a break goes on from the last batch delivered; after the end of a finite run it is empty.
    It is no DataLoader and has no length: accelerate's `prepare` and transformers' Trainer leave it as it is, and the
    ranks are split here, once.
    """

    def __init__(self, config: DataConfig, rank_of: tuple[int, int], settings: Settings) -> None:
        self.rank, self.world_size = rank_of
        self._settings = settings
        self._run = resolve(config, lanes=choose_lanes(config.lanes, self.world_size, settings.num_workers))
        self._delivered = Delivered(self._run, self._own(0))
        self._group = settings.process_group
        self._stream: Stream | None = None
        self._stopwatch = Stopwatch()
        self._ended = False

    @property
    def tokenizer(self) -> Any:
        """The tokenizer with the layout's special tokens added."""
        return self._run.tokenizer

    @property
    def ledger(self) -> Ledger:
        """What became of the samples behind the batches delivered so far on this rank (a copy)."""
        return self._delivered.ledger

    @property
    def timing(self) -> Timing:
        """What this rank's consumer waited for so far, in seconds; also in the log, every minute."""
        return self._stopwatch.timing

    def state_dict(self) -> dict[str, Any]:
        """JSON-serializable; exact to the last batch delivered. `merge_states` joins those of all ranks."""
        return self._delivered.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next batch is the very next one, on this or any other world size and number of workers.

        Raises:
            ResumeError: the state is of another run (what differs is named) or misses lanes of this rank (named).
        """
        check_form(state)
        run = self._run
        if run.config.lanes is None:
            streams = self.world_size * max(1, self._settings.num_workers)
            run = run.with_lanes(choose_lanes(state["lanes"], self.world_size, streams // self.world_size))
        delivered = Delivered(run, self._own(int(state["slot"]), run.lanes), state)
        self.close()
        self._run, self._delivered, self._ended = run, delivered, False

    def close(self) -> None:
        """Stops workers and threads; iterating starts them again."""
        self._stopwatch.stop()
        if self._stream is not None:
            # The next stream may be started by another thread while this one ends.
            closer, self._stream = self._closer, None
            closer()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        stream = self._stream
        try:
            with self._stopwatch.batch() as waits:
                if stream is None:
                    stream = self._stream = self._start()
                return self._next(stream, waits)  # not self._stream: another thread may close the loader
        except BaseException:
            if stream is not None:
                self._delivered.storage.update(stream.in_vain)
            self.close()  # the next call goes on from what was delivered
            raise

    def _next(self, stream: Stream, waits: Waits) -> dict[str, Any]:
        stream.waited = 0.0
        batch = stream.next()
        waits.packs, begun = stream.waited, time.monotonic()
        made, outcomes = batch.result()
        waits.decoding = time.monotonic() - begun
        workers = max(1, self._settings.num_workers)
        waits.storage = sum(step.storage["waited_ms"] for step in batch.steps) / 1000 / workers
        delivered, marks, rest = self._delivered.copy(), [], iter(outcomes)
        for step in batch.steps:
            outcome = next(rest) if step.is_pack else None
            delivered.slot = step.slot
            delivered.storage.update(step.storage)
            if step.filler:
                delivered.filler(step.lane)
            mark = delivered.deliver(step.packed, outcome.failed if outcome else ()) if step.packed else b""
            if outcome is not None:
                marks.append(mark)
        self._delivered = delivered
        if not marks:
            if self._ended:
                logger.warning(
                    "this loader has delivered all of epochs=%s and gives nothing more; for several passes set epochs, "
                    "and iterate once", self._run.config.epochs,
                )  # fmt: skip
            elif self.world_size == 1:
                delivered.check_end()
            self._ended = True
            raise StopIteration
        return stamp(made, marks)

    def _own(self, slot: int, lanes: int | None = None) -> set[int]:
        """This rank's lanes, when all ranks start at a slot."""
        lanes = lanes or self._run.lanes
        return {lane % lanes for lane in range(slot + self.rank, slot + self.rank + lanes, self.world_size)}

    def _start(self) -> Stream:
        config, workers = self._run.config, max(1, self._settings.num_workers)
        each = self._run.lanes // self.world_size // workers
        logger.info(
            "%d lanes: each of %d workers holds %d × %d samples (%.1f GB at 100 kB a sample)",
            self._run.lanes, workers, each, config.buffer_size, each * config.buffer_size * 1e-4,
        )  # fmt: skip
        if config.epochs is not None and self.world_size > 1 and self._group is None:
            self._group = self._agreeing_group()
        stream = Stream(self._run, self._delivered, self.rank, self.world_size, self._group, self._settings)
        # In the thread that drops the loader, or at exit. Left to itself a stream, part of a cycle, is collected by any
        # thread, its own ones too; and those must not be inside C++ code when the interpreter goes down.
        self._closer = weakref.finalize(self, stream.close)
        return stream

    def _agreeing_group(self) -> Any:
        """A gloo group of our own, over which ranks tell each other which lanes live."""
        if not (distributed.is_available() and distributed.is_initialized()):
            logger.warning(
                "rank %d of %d without torch.distributed: ranks of this finite run may end at different steps; "
                "initialise torch.distributed before iterating to have them end together",
                self.rank, self.world_size,
            )  # fmt: skip
            return None
        if distributed.get_world_size() != self.world_size:
            raise ConfigError(
                f"world_size={self.world_size}, but torch.distributed has {distributed.get_world_size()} ranks: give "
                "make_loader the process_group (gloo) of the ranks that share the data"
            )
        return distributed.new_group(backend="gloo")
