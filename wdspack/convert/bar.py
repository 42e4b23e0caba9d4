"""The progress bar of a conversion: rows done, rate and time left of each pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from wdspack.terminal import errors


class _Rate(ProgressColumn):
    """Rows a second of this run; rows done by an earlier one do not count."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} rows/s" if task.speed else "")


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error; gives what `convert` is to call."""
    bar_and_counts = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate()
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(*bar_and_counts, *times, console=errors, speed_estimate_period=300) as bar:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, rows: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=rows, completed=done)
            bar.update(tasks[what], completed=done)

        yield report
