"""One run at a time in an output: a lock that dies with its process, so that a killed run keeps nobody out.

Only for local outputs: object stores have no locks. Two runs of one plan there write the same shards, but the first one
to finish clears away what the other rests on.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wdspack.errors import ConfigError


@contextmanager
def alone(folder: str, name: str) -> Iterator[None]:
    """Holds the file `name` in a local folder, and removes it in the end. Raises ConfigError if another run has it."""
    path = os.path.join(folder, name)
    while True:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{folder}: another run writes here; wait for its end, or give another folder"
                ) from None
            except OSError:  # some network filesystems have no locks
                pass
            if not _is(file.fileno(), path):  # the run that held it has just removed it
                continue
            try:
                yield
            finally:
                if _is(file.fileno(), path):
                    os.remove(path)
                    with suppress(OSError):  # it has other files
                        os.rmdir(os.path.dirname(path))
            return


def _is(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
