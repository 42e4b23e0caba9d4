"""Memory for batches, used over and over.

A batch's pixels are tens of megabytes. Fresh from the operating system each of their pages costs a fault and is
cleared: a third of the time that decoding takes. Pinned memory, from which a GPU copies while the program goes on,
takes milliseconds to get.
"""

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_Bytes = npt.NDArray[np.uint8]
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {torch.uint8: np.dtype(np.uint8), torch.float32: np.dtype(np.float32)}


class Buffers:
    """Tensors whose memory comes back when nothing that was made of them is left: neither views nor NumPy arrays.

    pin: pinned memory, kept by torch's own allocator, which also waits for copies to the GPU that are under way.
    keep: how many buffers to keep beside those in use, the largest.
    """

    def __init__(self, *, pin: bool = False, keep: int = 1) -> None:
        self._pin, self._keep = pin, keep
        self._spare: deque[_Bytes] = deque()  # grows where a tensor dies, in whatever thread that is

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor, uint8 or float32, with anything in it. Not to be called by two threads at once."""
        size = math.prod(shape) * dtype.itemsize
        if self._pin or not size:
            return torch.empty(shape, dtype=dtype, pin_memory=self._pin)
        buffer = self._take(size)
        # The tensor's storage owns this very array, so the array dies with the last view. By NumPy up to the last step:
        # each call of torch gives the GIL to a decoding thread, and the consumer waits until it comes back.
        array = buffer[:size].view(_DTYPES[dtype]).reshape(shape)
        weakref.finalize(array, self._spare.append, buffer).atexit = False
        return torch.from_numpy(array)

    def _take(self, size: int) -> _Bytes:
        spare = sorted((self._spare.popleft() for _ in range(len(self._spare))), key=len)
        fitting = next((n for n, buffer in enumerate(spare) if len(buffer) >= size), None)
        # Batches differ in size: some room on top, so that the next one fits as well.
        found = np.empty(size + size // 8, np.uint8) if fitting is None else spare.pop(fitting)
        self._spare.extend(spare[-self._keep :])
        return found
