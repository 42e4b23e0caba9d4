"""Slots: which worker of which rank yields which lane's pack, and `PackedDataset`, one worker's packs one at a time.

The pack in global slot g comes from lane g mod lanes. A run that starts at slot G gives rank r of W the slots
G + r + j·W, and worker w of n every j ≡ w (mod n). With lanes a multiple of W·n, each lane belongs to one worker, and
the sequence over all slots is the same whatever W and n.

    lanes = 4, W = 2, n = 1     slot   0  1  2  3  4  5  6  7 …
                                lane   0  1  2  3  0  1  2  3
                                rank   0  1  0  1  0  1  0  1
"""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from wdspack import shm
from wdspack.assemble import assemble
from wdspack.bookmark import Bookmark
from wdspack.config import DataConfig
from wdspack.decode import Decoding
from wdspack.decoders import Here, Renderer
from wdspack.errors import ConfigError, WdspackError
from wdspack.lane import Lane, Packed
from wdspack.ledger import Ledger
from wdspack.run import Run, resolve
from wdspack.state import Delivered, check_form
from wdspack.storage import Access

logger = logging.getLogger("wdspack")


@dataclass(frozen=True, slots=True)
class Slot:
    """What a worker yields: a pack, or None from a lane that has ended.

    storage: what the worker counted at the storage since the slot before (`Ledger.storage`).
    """

    lane: int
    packed: Packed | None
    storage: Counter[str]


def slots(
    run: Run,
    *,
    rank: int,
    world_size: int,
    worker: int,
    workers: int,
    start: int,
    bookmarks: Mapping[int, Bookmark],
    access: Access,
) -> Iterator[Slot]:
    """This worker's slots, in order, for ever: an ended lane goes on giving empty ones, so that the others keep theirs.

    start: the global slot G at which all ranks start. bookmarks: of the lanes that have begun. access: of this process,
    which all lanes share.
    """
    lanes: dict[int, Iterator[Packed]] = {}
    slot = start + rank + worker * world_size
    try:
        while True:
            number = slot % run.lanes
            if number not in lanes:
                lanes[number] = iter(Lane(run, number, bookmarks.get(number), access=access))
            packed = next(lanes[number], None)
            yield Slot(number, packed, access.news())
            slot += world_size * workers
    finally:
        for lane in lanes.values():
            lane.close()  # type: ignore[attr-defined]  # generators


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else of torch.distributed, else of the launcher's environment, else 0 of 1.

    Raises:
        ConfigError: only one of the two is given, or rank is not below world_size.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank} but world_size={world_size}: give both or neither")
    if rank is None or world_size is None:
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            env = os.environ
            try:
                rank, world_size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
            except ValueError as error:
                raise ConfigError(
                    f"RANK={env.get('RANK')!r} and WORLD_SIZE={env.get('WORLD_SIZE')!r} in the environment must be "
                    "whole numbers; launch with torchrun, or give rank and world_size"
                ) from error
    if world_size < 1:
        raise ConfigError(f"world_size={world_size}: it must be at least 1")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} with world_size={world_size}: rank must be from 0 to {world_size - 1}")
    return rank, world_size


def choose_lanes(lanes: int | None, world_size: int, workers: int) -> int:
    """`lanes`, or one for each worker of each rank. Raises ConfigError when workers cannot share the lanes evenly."""
    streams = world_size * max(1, workers)
    if lanes is None:
        if streams > 1:
            logger.warning(
                "lanes=None: this run has %d lanes, one for each of %d ranks × %d workers, and can only be resumed on "
                "a shape that divides %d; set lanes to a number with many divisors to change shape freely",
                streams, world_size, max(1, workers), streams,
            )  # fmt: skip
        return streams
    if lanes % streams:
        below, above = lanes // streams * streams, -(-lanes // streams) * streams
        near = f"{below} or {above}" if below else f"{above} or {above + streams}"
        raise ConfigError(
            f"lanes={lanes} but {world_size} ranks × {max(1, workers)} workers need a multiple of {streams}; "
            f"use lanes={near}"
        )
    return lanes


class PackedDataset(IterableDataset[dict[str, Any]]):
    """The packs of one rank, one at a time, decoded where it is iterated.

    Iterate it as it is, or give it to torch's DataLoader or torchdata's StatefulDataLoader with `batch_size=None`:
    each worker then yields the packs of its own lanes. `make_loader` does the same faster, since pixels cross no
    process boundary, and makes batches. A pack is a dict; its fields are tabulated in the README.

    rank, world_size: see `place`. Iterating again after a break goes on from the last pack yielded.

    Raises:
        ConfigError: `lanes` is not a multiple of world_size × workers, or there are no shards.
    """

    def __init__(self, config: DataConfig, *, rank: int | None = None, world_size: int | None = None) -> None:
        super().__init__()
        self.rank, self.world_size = place(rank, world_size)
        self._lanes = config.lanes  # None: as many as there turn out to be workers
        self._run = resolve(config, lanes=choose_lanes(config.lanes, self.world_size, 1))
        self._state: Mapping[str, Any] | None = None
        self._delivered: Delivered | None = None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer with the layout's special tokens added."""
        return self._run.tokenizer

    @property
    def ledger(self) -> Ledger:
        """What became of the samples behind the packs yielded so far in this process."""
        return self._now().ledger

    def state_dict(self) -> dict[str, Any]:
        """JSON-serializable; exact to the last pack yielded in this process."""
        return self._now().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on with the very next pack. Raises ResumeError when the state does not fit."""
        check_form(state)
        self._lanes = self._lanes or int(state["lanes"])
        self._run = self._run.with_lanes(self._lanes)
        self._run.check_identity(state["identity"])
        self._state, self._delivered = state, None

    def _now(self) -> Delivered:
        """The books of this process: a worker's own lanes, or all lanes of the rank."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if self._delivered is None:
            self._run = self._run.with_lanes(choose_lanes(self._lanes, self.world_size, workers))
            start = self._state["slot"] if self._state else 0
            first, step = start + self.rank + worker * self.world_size, self.world_size * workers
            own = {lane % self._run.lanes for lane in range(first, first + self._run.lanes, step)}
            self._delivered = Delivered(self._run, own, self._state)
        return self._delivered

    def __getstate__(self) -> dict[str, Any]:
        _refuse_second_split()  # on the way to a spawned worker, which would not know
        return self.__dict__

    def __iter__(self) -> Iterator[dict[str, Any]]:
        _refuse_second_split()
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        delivered = self._now()
        marks = delivered.restart()
        live = set(delivered.own) - {lane for lane, mark in marks.items() if mark.ended}
        access = Access(self._run.config.reading)
        stream = slots(
            self._run,
            rank=self.rank,
            world_size=self.world_size,
            worker=worker,
            workers=workers,
            start=delivered.slot,
            bookmarks=marks,
            access=access,
        )
        while live:
            try:
                slot = next(stream)
            except WdspackError:
                delivered.storage.update(access.news())  # what was tried before it was given up
                raise
            delivered.storage.update(slot.storage)
            pack = self._finish(slot.packed, delivered) if slot.packed else {}
            pack = shm.shared(pack) if info else pack
            delivered.slot += self.world_size * workers  # not before: an image may have failed under on_error="raise"
            if slot.packed is None or slot.packed.last:
                live.discard(slot.lane)
            if slot.packed and slot.packed.samples:
                yield pack
        if len(delivered.own) == self._run.lanes:
            delivered.check_end()

    def _finish(self, packed: Packed, delivered: Delivered) -> dict[str, Any]:
        decoders = Here(Renderer(self._run.config.layout, normalize=False))
        pixels, (decoded,) = Decoding(self._run, [packed.samples], decoders).result()
        mark = delivered.deliver(packed, decoded.failed)
        return {**assemble(self._run, decoded.samples, mark), "pixel_values": pixels}


def _refuse_second_split() -> None:
    """accelerate (and Trainer, by it) gives a DataLoader's packs out from rank 0, or splits them a second time."""
    if (accelerate := sys.modules.get("accelerate")) is None:
        return
    processes = accelerate.PartialState._shared_state.get("num_processes", 1)
    if processes > 1:
        raise ConfigError(
            f"PackedDataset under accelerate with {processes} processes: prepare() would split a DataLoader's packs a "
            "second time, and most would never be read; give prepare() a loader of wdspack.make_loader instead"
        )
