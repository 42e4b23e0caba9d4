"""The images of some packs, decoded into one tensor, each sample's by one task of a thread pool.

The tensor is allocated once and filled in place, already normalised if asked for: pixels are written where the model
reads them. An image that cannot be decoded costs its own sample only: the sample's rows are cut out afterwards.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wdspack import images
from wdspack.buffers import Buffers
from wdspack.errors import SampleError
from wdspack.run import Run
from wdspack.types import EncodedImage, Sample

BLANK_VALUE = 255  # white: not zero once normalised (transformers takes all-zero tiles for padding)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of one pack.

    samples: those whose images could all be decoded. rows: its rows of the tensor. failed: the other samples, why.
    """

    samples: tuple[Sample, ...]
    rows: slice
    failed: tuple[tuple[Sample, SampleError], ...]


@dataclass(slots=True)
class _Part:
    """The rows of one sample; a blank image has no sample."""

    start: int
    stop: int
    sample: Sample | None = None
    task: Future[None] | None = None
    error: SampleError | None = None


class Decoding:
    """Starts decoding when made; `result` waits for it.

    groups: the samples of each pack. executor: None decodes here and now. buffers: where the tensor's memory is from.
    """

    def __init__(
        self,
        run: Run,
        groups: Sequence[Sequence[Sample]],
        *,
        normalize: bool,
        executor: Executor | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self._run, self._normalize = run, normalize
        layout, row = run.config.layout, 0
        self._packs: list[list[_Part]] = []
        for samples in groups:
            parts = []
            for sample in samples:
                start = row
                row += sum(layout.pixel_rows(image.grid) for image in sample.images)
                parts.append(_Part(start, row, sample))
            if needs_blank(run, samples):
                start = row
                row += layout.pixel_rows(layout.blank())
                parts.append(_Part(start, row))
            self._packs.append(parts)
        dtype = torch.float32 if normalize else torch.uint8
        shape = row, *layout.pixel_shape
        self._pixels = buffers.empty(shape, dtype) if buffers else torch.empty(shape, dtype=dtype)
        self._rows: npt.NDArray[Any] = self._pixels.numpy()  # the same memory
        for part in (part for parts in self._packs for part in parts):
            self._start(part, executor)

    def result(self) -> tuple[torch.Tensor, list[Decoded]]:
        """All rows, (ΣN, …), and what became of each pack."""
        for part in (part for parts in self._packs for part in parts):
            if part.task is not None:
                try:
                    part.task.result()
                except SampleError as error:
                    part.error = error
        if any(part.error for parts in self._packs for part in parts):
            self._compact()
        return self._pixels, self._packs_left()

    def expected(self) -> tuple[torch.Tensor, list[Decoded]]:
        """What `result` will say if every image decodes; the rows are not there yet."""
        return self._pixels, self._packs_left()

    def _packs_left(self) -> list[Decoded]:
        decoded = []
        for parts in self._packs:
            kept = [part for part in parts if part.error is None]
            failed = tuple((p.sample, p.error) for p in parts if p.sample is not None and p.error is not None)
            samples = tuple(part.sample for part in kept if part.sample is not None)
            rows = slice(kept[0].start, kept[-1].stop) if kept else slice(0, 0)
            decoded.append(Decoded(samples, rows, failed))
        return decoded

    def cancel(self) -> None:
        """Gives up what has not begun."""
        for task in (part.task for parts in self._packs for part in parts if part.task is not None):
            task.cancel()

    def _start(self, part: _Part, executor: Executor | None) -> None:
        if part.sample is not None and executor is not None:
            part.task = executor.submit(self._draw, part)
            return
        try:
            self._draw(part)
        except SampleError as error:
            part.error = error

    def _draw(self, part: _Part) -> None:
        row = part.start
        for image in part.sample.images if part.sample is not None else (None,):
            rows = self._run.config.layout.pixel_rows(image.grid) if image is not None else part.stop - part.start
            self._write(self._rows[row : row + rows], image)
            row += rows

    def _write(self, out: npt.NDArray[Any], image: EncodedImage | None) -> None:
        layout = self._run.config.layout
        tiles = np.empty(out.shape, np.uint8) if self._normalize else out
        if image is None:
            tiles.fill(BLANK_VALUE)
        else:
            images.render(image.data, image.info, image.grid, layout, tiles)
        if self._normalize:
            images.normalize(torch.from_numpy(tiles), layout.mean, layout.std, out=torch.from_numpy(out))

    def _compact(self) -> None:
        """Cuts failed samples' rows out; a pack left without images gets the blank one it may need."""
        pieces, row = [], 0
        for parts in self._packs:
            kept = [part for part in parts if part.error is None]
            if len(kept) < len(parts) and needs_blank(self._run, [p.sample for p in kept if p.sample is not None]):
                layout = self._run.config.layout
                blank = self._pixels.new_empty((layout.pixel_rows(layout.blank()), *layout.pixel_shape))
                self._write(blank.numpy(), None)
                kept.append(_Part(0, 0))
                parts.append(kept[-1])
            for part in kept:
                piece = blank if part.sample is None and part.stop == 0 else self._pixels[part.start : part.stop]
                pieces.append(piece)
                part.start, part.stop = row, row + len(piece)
                row += len(piece)
        self._pixels = torch.cat(pieces) if pieces else self._pixels[:0]


def decode_pool(threads: int) -> ThreadPoolExecutor:
    """Threads that decode side by side, each with one thread of torch's own.

    By default every one of them would start a team as large as the machine for each copy, and the teams would wait
    for each other, spinning: that takes more CPU than decoding. torch's setting is each thread's own from its first use
    on, and what later threads begin with: so all threads are started here, and the setting is put back.
    """
    ours = torch.get_num_threads()
    pool, started = ThreadPoolExecutor(threads, thread_name_prefix="wdspack-decode"), Barrier(threads)

    def start() -> None:
        torch.get_num_threads()  # takes on the default; were that left for later, it would undo the next line
        torch.set_num_threads(1)
        started.wait()  # so that no thread takes two of these tasks

    try:
        for task in [pool.submit(start) for _ in range(threads)]:
            task.result()
    finally:
        torch.set_num_threads(ours)
    return pool


def needs_blank(run: Run, samples: Sequence[Sample]) -> bool:
    """A pack without images gets a blank one where the config requires images (a filler too)."""
    return run.config.require_image and not any(sample.images for sample in samples)
