#!/usr/bin/env python
"""Checks shards: against their index, and for damage.

python tools/verify_shards.py --index shards/index.parquet --decode
python tools/verify_shards.py 'shards/*.tar'
"""

from typing import Annotated

import typer

from wdspack.index import Checks, verify_shards
from wdspack.index.cli import checked_table, console, progressing
from wdspack.terminal import explained, json_object


def main(
    shards: Annotated[
        list[str] | None, typer.Argument(help="Paths, urls, brace patterns, globs, …; the index's where none is given.")
    ] = None,
    index: Annotated[str | None, typer.Option(help="Url of an index to check against.")] = None,
    quick: Annotated[bool, typer.Option(help="Compare sizes and versions only; read no shard.")] = False,
    decode: Annotated[bool, typer.Option(help="Read every text and decode every image.")] = False,
    strict_end: Annotated[bool, typer.Option(help="Whether a shard must have its end-of-archive block.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    show: Annotated[int, typer.Option(min=1, help="Faults to show; all are counted.")] = 50,
    storage_options: Annotated[str, typer.Option(help="JSON for fsspec: endpoint, key, …")] = "{}",
) -> None:
    """Prints what is wrong; exit code 1 where anything is."""
    with explained(), progressing("checking") as progress:
        options = json_object("--storage-options", storage_options)
        checks = Checks(quick=quick, decode=decode, strict_end=strict_end)
        found = verify_shards(
            shards or None, index=index, checks=checks, workers=workers, storage_options=options,
            progress=progress,
        )  # fmt: skip
        checked = list(found)
    for line in checked_table(checked, show):
        console.print(line)
    if any(shard.faults for shard in checked):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
