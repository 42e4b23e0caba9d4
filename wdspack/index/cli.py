"""What `tools/index_shards.py` and `tools/verify_shards.py` show on a terminal."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wdspack.index.build import Summary
from wdspack.index.verify import Checked

console = Console()


@contextmanager
def progressing(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over shards, with the time left; gives what to call with the number done and of all."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def summary_table(summary: Summary) -> Table:
    table = Table(title=summary.url, box=box.SIMPLE_HEAD, title_justify="left", show_header=False)
    table.add_row("shards read", f"{summary.read:,}")
    table.add_row("shards as they were", f"{summary.kept:,}")
    table.add_row("samples", f"{summary.samples:,}")
    table.add_row("bytes", f"{summary.nbytes:,}")
    for reason, count in summary.faulty.most_common():
        table.add_row(f"faulty: {reason}", f"{count:,}")
    for message in summary.damaged.values():
        table.add_row("damaged", message, style="red")
    return table


def checked_table(checked: Sequence[Checked], show: int) -> Iterator[RenderableType]:
    """The first `show` faults, and what was checked and found in all."""
    faults = [fault for shard in checked for fault in shard.faults]
    if faults:
        table = Table(box=box.SIMPLE_HEAD)
        for heading in ("shard", "sample", "byte", "fault", "what"):
            table.add_column(heading, overflow="fold")
        for fault in faults[:show]:
            at = "" if fault.offset is None else f"{fault.offset:,}"
            table.add_row(fault.shard, fault.key, at, fault.kind, fault.message.removeprefix(f"{fault.shard}: "))
        yield table
    samples, nbytes = sum(shard.samples for shard in checked), sum(shard.nbytes for shard in checked)
    bad = sum(bool(shard.faults) for shard in checked)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in Counter(fault.kind for fault in faults).most_common())
    found = f"{len(faults):,} faults in {bad:,} shards: {kinds}" if faults else "nothing is wrong"
    if rewritten := [shard.shard for shard in checked if shard.rewritten]:
        which = f"{len(rewritten):,} shards ({rewritten[0]}, …)" if len(rewritten) > 1 else rewritten[0]
        yield f"note: {which} of another time or version than in the index, with the same contents; index them again"
    yield f"{len(checked):,} shards, {samples:,} samples and {nbytes:,} bytes read: {found}"
