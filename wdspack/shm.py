"""Shared memory: what worker processes keep in /dev/shm, and what to do where a container gives too little of it.

A loader's workers hand over bytes through pipes, and its decoders draw into memory without a name; only the semaphores
of the workers' queues lie in /dev/shm, 4 KB each. A `PackedDataset` in torch's DataLoader hands over tensors, and they
lie there until they are used. Docker gives a container 64 MB, and torch moves tensors there in a thread: if that fails,
the DataLoader waits for ever.
"""

import errno
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from wdspack.errors import ConfigError

T = TypeVar("T")

FOLDER = "/dev/shm"
_REFUSED = {errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOSYS}


def started(start: Callable[[], T], workers: int) -> T:
    """What `start` returns, which starts worker processes. Raises ConfigError if they cannot have semaphores."""
    try:
        return start()
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise ConfigError(
            f"num_workers={workers}: the workers' queues cannot be made ({error}); {_room()}; {_ADVICE}, or take "
            "num_workers=0"
        ) from error


def shared(pack: dict[str, Any]) -> dict[str, Any]:
    """The same pack, its tensors moved to shared memory here and now, where a failure can be told.

    Raises ConfigError if they do not fit.
    """
    for name, value in pack.items():
        if isinstance(value, torch.Tensor) and value.numel():
            try:
                value.share_memory_()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                raise ConfigError(
                    f"{name} of {value.nbytes:,} bytes does not fit into shared memory, through which DataLoader's "
                    f"workers hand over packs ({error}); {_room()}; {_ADVICE}, take fewer workers, or take "
                    "wdspack.make_loader, which needs next to none"
                ) from error
    return pack


_ADVICE = "start the container with more (docker run --shm-size=1g or --ipc=host; shm_size in a compose file)"


def _room() -> str:
    try:
        disk = shutil.disk_usage(FOLDER)
    except OSError as error:
        return f"{FOLDER} cannot be used ({error.strerror})"
    return f"{disk.free:,} of {disk.total:,} bytes are free in {FOLDER}"
