"""What a process does whose parent is gone: it ends, whatever it is waiting for.

A worker of torch's DataLoader looks for its parent only while it waits for work. One that is handing over bytes to a
pipe that nobody reads any more waits for ever.
"""

import multiprocessing
import os
import threading
import time

_LOOK = 2.0  # seconds between two looks


def end_with_parent() -> None:
    """Has this process, started by multiprocessing, end within seconds of its parent. Starts a thread."""
    threading.Thread(target=_watch, args=(os.getppid(),), name="wdspack-orphan", daemon=True).start()


def _watch(parent: int) -> None:
    starter = multiprocessing.parent_process()  # under forkserver it is not the one that forked
    # A fork's siblings inherit what tells that its starter is gone, hence the first question too.
    while os.getppid() == parent and (starter is None or starter.is_alive()):
        time.sleep(_LOOK)
    os._exit(1)
