"""What runs while a loader is iterated: workers, the thread that fetches from them, and decoding ahead.

    workers: processes        one thread        the consumer's thread        decoders: processes
    Lane ─▶ Slot (encoded) ─▶ queue ──────────▶ steps ─▶ compose ─▶ Decoding ─▶ decode, resize, normalise
                                                          ▲  fillers, skips        into the batch's memory

A thread (sender) tells the decoders what to draw, another (maker) waits for them and makes the batch of it.
Workers hand over compressed images and tokens, so pixels cross no process boundary. Whatever ranks must agree on (who
still has packs, in a finite run) is asked in the consumer's thread, without waiting for the answer until the batch that
needs it is due: the ranks are in step there anyway.
"""

import gc
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from wdspack import shm
from wdspack.batch import make, pinned
from wdspack.bookmark import Bookmark
from wdspack.dataset import Slot, slots
from wdspack.decode import Decoded, Decoding
from wdspack.decoders import Decoders, Renderer, Threads
from wdspack.errors import WdspackError
from wdspack.lane import Packed
from wdspack.orphans import end_with_parent
from wdspack.processes import Processes
from wdspack.run import Run
from wdspack.state import Delivered
from wdspack.storage import Access
from wdspack.types import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How the loader works; nothing in it changes what it yields but the form."""

    batch_size: int | None
    num_workers: int
    process_group: Any
    normalize: bool
    prefetch: int
    prefetch_factor: int
    decoders: int
    pin_memory: bool
    multiprocessing_context: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One of this rank's slots. slot: the global slot from which all ranks go on after it. storage: of `Slot`."""

    lane: int
    packed: Packed | None
    filler: bool
    slot: int
    storage: Counter[str]

    @property
    def is_pack(self) -> bool:
        return self.filler or bool(self.packed and self.packed.samples)


Made: TypeAlias = tuple[dict[str, Any], list[Decoded]]
"""The packs, but for their bookmarks, and what became of each when its images were decoded."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some steps and what is made of the packs among them; at the end of a run, steps without any pack.

    drawing: what is being made of them, once the decoders have been told.
    """

    steps: tuple[Step, ...]
    drawing: Future[Future[Made]]

    def result(self) -> Made:
        """Waits for it. Raises WdspackError if the loader is closed meanwhile."""
        try:
            return self.drawing.result().result()
        except CancelledError:
            raise WdspackError("the loader was closed while a batch was waited for") from None


class Stream:
    """Everything that runs while a loader is iterated, and is thrown away when it stops."""

    def __init__(
        self, run: Run, delivered: Delivered, rank: int, world_size: int, group: Any, settings: Settings
    ) -> None:
        self._run, self._rank, self._world_size, self._group = run, rank, world_size, group
        self._settings, self._pid = settings, os.getpid()
        marks = delivered.restart()
        self._slot = delivered.slot
        self._live = set(delivered.own) - {lane for lane, mark in marks.items() if mark.ended}
        loader = DataLoader(
            _Slots(run, rank, world_size, delivered.slot, marks),
            batch_size=None,
            num_workers=settings.num_workers,
            collate_fn=_as_it_is,
            prefetch_factor=settings.prefetch_factor if settings.num_workers else None,
            multiprocessing_context=settings.multiprocessing_context if settings.num_workers else None,
            generator=torch.Generator(),  # DataLoader would draw from the global one
        )
        self._queue: queue.Queue[Slot | _Failure] = queue.Queue(maxsize=2 * (settings.batch_size or 1))
        self._stopped = stop = threading.Event()
        # Forked processes start here, before the threads.
        self._decoders = _decoders(run, settings)
        try:
            self._items = items = shm.started(lambda: iter(loader), settings.num_workers)
        except BaseException:
            self._decoders.stop()
            self._decoders.close()
            raise
        self._feeder = threading.Thread(
            target=_feed, args=(items, self._queue, stop), name="wdspack-feeder", daemon=True
        )
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="wdspack-sender")
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="wdspack-maker")
        self._feeder.start()
        self.waited = 0.0  # seconds that `next` stood still for want of packs, since it was last set to zero
        self._patient = False  # whether `_steps` may block
        self._steps_left = self._steps()
        self._partial: list[Step] = []
        self._in_flight: deque[Batch] = deque()
        self._done = False
        self.in_vain: Counter[str] = Counter()  # of `Ledger.storage`, when `next` has raised

    def next(self) -> Batch:
        """The next batch, its decoding begun."""
        while not self._done and len(self._in_flight) < self._settings.prefetch:
            self._patient = not self._in_flight
            if (batch := self._compose()) is None:
                break
            self._in_flight.append(batch)
        return self._in_flight.popleft() if self._in_flight else self._batch()

    def close(self) -> None:
        """Ends threads and workers. Once; whoever made the stream sees to it, also at exit."""
        if os.getpid() != self._pid:  # a fork's copy: they are not its own
            return
        self._stopped.set()
        self._decoders.stop()
        for thread in (self._sender, self._maker):
            thread.shutdown(wait=True, cancel_futures=True)
        self._in_flight.clear()
        self._decoders.close()
        if self._feeder is not threading.current_thread():  # which may be the one to collect a forgotten loader
            self._feeder.join(timeout=10)  # at most one item's work, unless workers hang, or have not even started
        # Now, however long an exception keeps its frames.
        if shutdown := getattr(self._items, "_shutdown_workers", None):
            shutdown()

    def _compose(self) -> Batch | None:
        """The next batch, or None when that cannot be without waiting."""
        size = self._settings.batch_size or 1
        while (packs := sum(step.is_pack for step in self._partial)) < size:
            try:
                step = next(self._steps_left)
            except StopIteration:
                self._done = True
                if packs:
                    self._partial += [self._step(None, filler=True) for _ in range(size - packs)]
                break
            if step is None:
                return None
            self._partial.append(step)
        return self._batch()

    def _batch(self) -> Batch:
        steps, self._partial = tuple(self._partial), []
        groups = [step.packed.samples if step.packed else () for step in steps if step.is_pack]
        # In threads, since whatever is left for the consumer's own is time that the consumer waits.
        return Batch(steps, self._sender.submit(self._draw, groups))

    def _draw(self, groups: Sequence[Sequence[Sample]]) -> Future[Made]:
        return self._maker.submit(self._make, Decoding(self._run, groups, self._decoders))

    def _make(self, decoding: Decoding) -> Made:
        pixels, packs = decoding.result()
        made = make(self._run, pixels, packs, batched=self._settings.batch_size is not None)
        return pinned(made) if self._settings.pin_memory else made, packs

    def _steps(self) -> Iterator[Step | None]:
        """This rank's slots in order; None where going on would mean waiting and `_patient` is False.

        In a finite run over several ranks, a slot that some ranks fill and this one does not is a filler, and one that
        no rank fills is passed over. A pack says whether it is its lane's last, so one exchange before each round of
        the lanes tells everybody who will fill which slot in it; only in the first round, in which a lane may turn out
        empty, there is one for every slot.
        """
        shared = self._group is not None
        everyone, first_round = self._live, True
        while shared or self._live:
            if shared and not first_round:
                everyone = yield from self._agree(self._live)
                if not everyone:
                    return
            for _ in range(self._run.lanes // self._world_size):
                slot = yield from self._take()
                there = bool(slot.packed and slot.packed.samples)
                if shared and first_round:
                    everyone = yield from self._agree({slot.lane} if there else set())
                peers = {(self._slot + rank) % self._run.lanes for rank in range(self._world_size)}
                if slot.packed is None or slot.packed.last:
                    self._live.discard(slot.lane)
                yield self._step(slot, filler=shared and not there and not peers.isdisjoint(everyone))
                if not shared and not self._live:
                    return
            first_round = False

    def _step(self, slot: Slot | None, *, filler: bool) -> Step:
        lane = (self._slot + self._rank) % self._run.lanes
        self._slot += self._world_size
        packed, storage = (slot.packed, slot.storage) if slot else (None, Counter[str]())
        return Step(lane, packed, filler, self._slot, storage)

    def _take(self) -> Generator[None, None, Slot]:
        while True:
            begun, found = time.monotonic(), None
            with suppress(queue.Empty):
                found = self._queue.get(block=self._patient, timeout=1)
            self.waited += time.monotonic() - begun
            if found is None:
                if self._stopped.is_set():
                    raise WdspackError("the loader was closed while a batch was waited for")
                if not self._patient:
                    yield None
                continue
            if isinstance(found, _Failure):
                self.in_vain = found.storage
                raise found.error
            return found

    def _agree(self, lanes: set[int]) -> Generator[None, None, set[int]]:
        """The union of all ranks' lanes."""
        flags = torch.zeros(self._run.lanes, dtype=torch.uint8)
        flags[sorted(lanes)] = 1
        work = distributed.all_reduce(flags, distributed.ReduceOp.MAX, group=self._group, async_op=True)
        while not self._patient and not work.is_completed():
            yield None
        work.wait()
        return set(flags.nonzero().flatten().tolist())


def _decoders(run: Run, settings: Settings) -> Decoders:
    """Processes, but threads where all of the loader is to be in this process."""
    renderer = Renderer(run.config.layout, settings.normalize)
    if settings.num_workers and Processes.supported:
        return Processes(settings.decoders, renderer, keep=settings.prefetch, context=settings.multiprocessing_context)
    return Threads(settings.decoders, renderer, keep=settings.prefetch, pin=settings.pin_memory)


class _Slots(IterableDataset[Slot]):
    """What a worker process iterates: its slots, and, in its place, an error."""

    def __init__(self, run: Run, rank: int, world_size: int, start: int, bookmarks: dict[int, Bookmark]) -> None:
        self._run, self._rank, self._world_size = run, rank, world_size
        self._start, self._bookmarks = start, bookmarks

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        access = Access(self._run.config.reading)
        if info:
            end_with_parent()
            gc.freeze()  # what was imported stays; going through it at every collection took 5 % of the time
        try:
            yield from slots(
                self._run,
                rank=self._rank,
                world_size=self._world_size,
                worker=worker,
                workers=workers,
                start=self._start,
                bookmarks=self._bookmarks,
                access=access,
            )
        except WdspackError as error:  # whole, where DataLoader would wrap its text
            yield _Failure(error, access.news())


@dataclass(frozen=True, slots=True)
class _Failure:
    """storage: what was counted there since the last slot, in vain."""

    error: BaseException
    storage: Counter[str] = field(default_factory=Counter)


def _as_it_is(item: Any) -> Any:
    return item


def _feed(items: Iterator[Any], into: "queue.Queue[Any]", stop: threading.Event) -> None:
    """Moves items into a queue until told to stop; an error goes the same way."""
    try:
        for item in items:
            if not _put(into, item, stop):
                return
        error: BaseException = WdspackError("a worker stopped before its lanes had ended")
    except BaseException as caught:
        error = caught
    _put(into, _Failure(error), stop)


def _put(into: "queue.Queue[Any]", item: Any, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            into.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
