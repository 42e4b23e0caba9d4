"""Many shards at once, results in order."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from wdspack.executors import LocalExecutor

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(work: Callable[[Job], Result], jobs: Iterable[Job], *, workers: int) -> Iterator[Result]:
    """`work` of each job, in the order of the jobs.

    workers: processes; 1 works here, in this process. Raises as `LocalExecutor` does, and what `work` raises.
    """
    with LocalExecutor(workers).started() as run:
        early: dict[int, Result] = {}
        following = 0
        for number, result in run(partial(_numbered, work), enumerate(jobs)):
            early[number] = result
            while following in early:
                yield early.pop(following)
                following += 1


def _numbered(work: Callable[[Job], Result], job: tuple[int, Job]) -> tuple[int, Result]:
    return job[0], work(job[1])
