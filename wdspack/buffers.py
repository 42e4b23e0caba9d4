"""Memory for batches, used over and over.

A batch's pixels are tens of megabytes. Fresh from the operating system each of their pages costs a fault and is
cleared: a third of the time that decoding takes.
"""

import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {torch.uint8: np.dtype(np.uint8), torch.float32: np.dtype(np.float32)}


_forks = 0  # of this process so far


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_forked)


class Private:
    """Memory of this process. content: (size,) uint8."""

    def __init__(self, size: int) -> None:
        self.content: npt.NDArray[np.uint8] = np.empty(size, np.uint8)


class Shared(Private):
    """Memory that other processes can map. content: (size,) uint8; fd: to hand over; number: no other has it.

    It has no name, so nothing of it stays behind whatever ends the processes, and it takes nothing of the little
    that containers give to /dev/shm.
    """

    _numbers = count()

    def __init__(self, size: int) -> None:
        self.number, self.fd = next(self._numbers), os.memfd_create("wdspack")
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.ftruncate(self.fd, size)
        self.content = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)


M = TypeVar("M", bound=Private)


class Buffers(Generic[M]):
    """Tensors whose memory comes back when nothing that was made of them is left: neither views nor NumPy arrays.

    What a forked child may still hold is given up instead.

    kind: `Private` or `Shared`. keep: how many buffers to keep beside those in use, the largest.
    """

    def __init__(self, kind: Callable[[int], M], *, keep: int = 1) -> None:
        self._kind, self._keep = kind, keep
        self._spare: deque[M] = deque()  # grows where a tensor dies, in whatever thread that is
        self._closed = False

    def lend(self, shape: tuple[int, ...], dtype: torch.dtype, *, extra: int = 0) -> tuple[torch.Tensor, M]:
        """A contiguous tensor, uint8 or float32, with anything in it, and the memory that it is the beginning of.

        extra: bytes that the memory has beyond the tensor, at least. Not to be called by two threads at once.
        """
        size = math.prod(shape) * dtype.itemsize
        memory = self._take(size + extra)
        # The tensor's storage owns this very array, so the array dies with the last view. By NumPy up to the last step:
        # each call of torch lets go of the GIL, and waits until it comes back.
        array = memory.content[:size].view(_DTYPES[dtype]).reshape(shape)
        weakref.finalize(array, self._take_back, memory, _forks).atexit = False
        return torch.from_numpy(array), memory

    def close(self) -> None:
        """Lets go of all memory: of what is lent, when it comes back."""
        self._closed = True
        self._spare.clear()

    def _take_back(self, memory: M, forks: int) -> None:
        if not self._closed and forks == _forks:  # else a child may have the tensor, and its memory is ours too
            self._spare.append(memory)

    def _take(self, size: int) -> M:
        spare = sorted((self._spare.popleft() for _ in range(len(self._spare))), key=lambda memory: len(memory.content))
        fitting = next((n for n, memory in enumerate(spare) if len(memory.content) >= size), None)
        # Batches differ in size: some room on top, so that the next one fits as well. What is never touched costs none.
        found = self._kind(max(1, 2 * size)) if fitting is None else spare.pop(fitting)
        self._spare.extend(spare[-self._keep :])
        return found
