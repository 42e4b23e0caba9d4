"""Who decodes: the one that asks, threads of its process, or processes of their own (`processes`).

    Decoding ─▶ draw(rows, jobs) ─▶ memory for a batch's rows, filled job by job while the consumer goes on

Pixels are written where the model reads them, and cross no process boundary: processes draw into memory that they share
with the consumer's. Threads share the consumer's GIL with it, for which each image asks a dozen times.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wdspack import images
from wdspack.buffers import Buffers, Private
from wdspack.errors import WdspackError
from wdspack.layouts import Layout
from wdspack.types import EncodedImage

BLANK_VALUE = 255  # white: not zero once normalised (transformers takes all-zero tiles for padding)

Wait = Callable[[], None]
"""Returns when a job is done. Raises SampleError if one of its images does not decode."""


CLOSED = "the loader was closed while a batch was waited for"


class Job(NamedTuple):
    """Images whose views are the rows from start to stop."""

    start: int
    stop: int
    images: tuple[EncodedImage, ...]


@dataclass(frozen=True, slots=True)
class Renderer:
    """Draws what a model of this layout takes: uint8, or float32 if normalised already."""

    layout: Layout
    normalize: bool

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.normalize else torch.uint8

    def shape(self, rows: int) -> tuple[int, ...]:
        return (rows, *self.layout.pixel_shape)

    def draw(self, pictures: Sequence[EncodedImage], out: npt.NDArray[Any]) -> None:
        """out: the pictures' rows, contiguous. Raises SampleError for the first that does not decode."""
        start = 0
        for picture in pictures:
            rows = out[start : start + self.layout.pixel_rows(picture.grid)]
            tiles = np.empty(rows.shape, np.uint8) if self.normalize else rows
            images.render(picture.data, picture.info, picture.grid, self.layout, tiles)
            self._finish(tiles, rows)
            start += len(rows)

    def blank(self, out: npt.NDArray[Any]) -> None:
        tiles = np.empty(out.shape, np.uint8) if self.normalize else out
        tiles.fill(BLANK_VALUE)
        self._finish(tiles, out)

    def _finish(self, tiles: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        if self.normalize:
            images.normalize(torch.from_numpy(tiles), self.layout.mean, self.layout.std, out=torch.from_numpy(out))


class Decoders(ABC):
    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer

    @abstractmethod
    def draw(self, rows: int, jobs: Sequence[Job]) -> tuple[torch.Tensor, list[Wait]]:
        """Begins to draw. Returns all rows, whose jobs are done when their waits have returned; others hold anything.

        The waits are one thread's at a time.
        """

    def drawn(self, pixels: torch.Tensor) -> torch.Tensor:
        """The rows for the consumer, when all jobs are done: these, or a copy where the memory is wanted back."""
        return pixels

    def stop(self) -> None:  # noqa: B027
        """Ends what it started. Who still waits gets an error."""

    def close(self) -> None:  # noqa: B027
        """Lets go of memory and files, once stopped and when nobody waits any more."""


class Here(Decoders):
    """Draws when it is waited for."""

    def draw(self, rows: int, jobs: Sequence[Job]) -> tuple[torch.Tensor, list[Wait]]:
        pixels = torch.empty(self.renderer.shape(rows), dtype=self.renderer.dtype)
        out = pixels.numpy()  # the same memory
        return pixels, [partial(self.renderer.draw, job.images, out[job.start : job.stop]) for job in jobs]


class Threads(Decoders):
    """Threads of this process. pin: into pinned memory, kept by torch's own allocator, which waits for copies to the
    GPU that are under way before it gives memory out again."""

    def __init__(self, count: int, renderer: Renderer, *, keep: int = 1, pin: bool = False) -> None:
        super().__init__(renderer)
        self._pin = pin
        self._pool, self._buffers = single_threaded(count), Buffers(Private, keep=keep)

    def draw(self, rows: int, jobs: Sequence[Job]) -> tuple[torch.Tensor, list[Wait]]:
        shape, dtype = self.renderer.shape(rows), self.renderer.dtype
        if self._pin:
            pixels = torch.empty(shape, dtype=dtype, pin_memory=True)
        else:
            pixels, _ = self._buffers.lend(shape, dtype)
        out = pixels.numpy()
        try:
            tasks = [self._pool.submit(self.renderer.draw, job.images, out[job.start : job.stop]) for job in jobs]
        except RuntimeError as error:  # the pool takes no more
            raise WdspackError(CLOSED) from error
        return pixels, [task.result for task in tasks]

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        self._buffers.close()


def single_threaded(threads: int) -> ThreadPoolExecutor:
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
