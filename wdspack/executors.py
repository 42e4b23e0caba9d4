"""Engines that do tasks elsewhere: (function, tasks) → results, as they are done, whatever the order.

All have the same results: a task's outcome does not depend on where it is done.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from wdspack.errors import ConfigError, WdspackError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Run(Protocol):
    """Does tasks by a picklable function. What a task raises leaves through the iterator."""

    def __call__(self, function: Callable[[Task], Result], tasks: Iterable[Task], /) -> Iterator[Result]: ...


class Executor(Protocol):
    @property
    def workers(self) -> int:
        """Tasks it can do at a time."""

    def started(self) -> AbstractContextManager[Run]:
        """What does tasks, until the block is left; those that have not begun by then are not."""


class LocalExecutor:
    """Processes of this machine, of which this one is one: it works while the others import what they need.

    They are started afresh, not forked: clients of object stores do not survive a fork. None outlives this process.
    """

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"workers={workers}: must be 1 or more")
        self.workers = workers

    @contextmanager
    def started(self) -> Iterator[Run]:
        """Raises WdspackError if a worker dies."""
        if self.workers == 1:
            yield map
            return
        context, others = multiprocessing.get_context("spawn"), self.workers - 1
        with ProcessPoolExecutor(others, context, initializer=_follow) as pool:
            for _ in range(others):
                pool.submit(os.getpid)  # so that they import what they need, while the dataset is looked at
            try:
                yield partial(_by_pool, pool, 2 * others)  # one each to do, one each to go on with
            except BrokenProcessPool as error:
                message = f"one of {self.workers} worker processes died, killed perhaps, or out of memory"
                advice = "take fewer workers or smaller shards and run the same command: finished shards are kept"
                raise WdspackError(f"{message}; {advice}") from error
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


class RayExecutor:
    """A Ray cluster that is there already. Dataset and output must be reachable from all its nodes.

    address: of the cluster; "auto" finds the one this machine belongs to.
    """

    def __init__(self, address: str = "auto") -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError("executor='ray' needs ray: pip install 'wdspack[ray]'") from error
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, logging_level="WARNING")
            except (ConnectionError, ValueError) as error:
                raise ConfigError(f"ray_address={address!r}: {error}; start one with `ray start --head`") from error
        self._ray = ray

    @property
    def workers(self) -> int:
        """CPUs of the cluster by now: nodes come and go."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @contextmanager
    def started(self) -> Iterator[Run]:
        """Ray does a task again where a node died. Raises WdspackError if that does not help."""
        yield partial(_by_ray, self._ray, self)


def _by_pool(
    pool: ProcessPoolExecutor, most: int, function: Callable[[Task], Result], tasks: Iterable[Task], /
) -> Iterator[Result]:
    """most: tasks that the pool is to have at a time; what is beyond them is done here."""
    waiting = iter(tasks)
    running: set[Future[Result]] = set()
    while True:
        running |= {pool.submit(function, task) for task in islice(waiting, most - len(running))}
        if mine := list(islice(waiting, 1)):
            yield function(*mine)
            done = {future for future in running if future.done()}
        elif running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
        else:
            return
        running -= done
        for future in done:
            yield future.result()


def _by_ray(
    ray: Any, cluster: RayExecutor, function: Callable[[Task], Result], tasks: Iterable[Task], /
) -> Iterator[Result]:
    waiting = iter(tasks)
    call, shared = ray.remote(_call), ray.put(function)  # sent to each node once
    running: list[Any] = []
    try:
        while True:
            running += [call.remote(shared, task) for task in islice(waiting, 2 * cluster.workers - len(running))]
            if not running:
                return
            done, running = ray.wait(running)
            for result in done:
                yield _got(ray, result)
    finally:
        for result in running:
            ray.cancel(result)


def _call(function: Callable[[Task], Result], task: Task) -> Result:
    return function(task)


def _got(ray: Any, result: Any) -> Any:
    try:
        return ray.get(result)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        message = f"a Ray worker failed ({type(error).__name__}: {str(error)[:500]})"
        raise WdspackError(f"{message}; run the same command again: finished shards are kept") from error


def _follow() -> None:
    """Ends this worker when its parent is gone: kill -9 leaves no word, and a second run may be about to begin."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_its_end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_its_end, daemon=True).start()
