#!/usr/bin/env python
"""Indexes shards: where every sample stands, how large its images are, and how many tokens its text is.

python tools/index_shards.py 'shards/*.tar' --tokenizer HuggingFaceTB/SmolLM2-360M-Instruct --layout smolvlm
"""

from typing import Annotated

import typer

from wdspack.index import index_shards
from wdspack.index.cli import console, progressing, summary_table
from wdspack.index.wording import NAMED, named_layouts
from wdspack.terminal import explained, json_object


def main(
    shards: Annotated[list[str], typer.Argument(help="Paths, urls, brace patterns, globs, folders or manifests.")],
    out: Annotated[str | None, typer.Option(help="Url of the index; index.parquet beside the shards.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Name or path; without it no tokens are counted.")] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help=f"Whose wording tokens are counted for: {', '.join(NAMED)}; repeatable.")
    ] = None,
    caption_prompt: Annotated[str, typer.Option(help="As the source's caption_prompt.")] = "",
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    afresh: Annotated[bool, typer.Option(help="Read every shard, also those that are as they were.")] = False,
    storage_options: Annotated[str, typer.Option(help="JSON for fsspec: endpoint, key, …")] = "{}",
) -> None:
    """Reads what is new or has changed since the last time; exit code 1 where shards are damaged."""
    with explained(), progressing("indexing") as progress:
        options = json_object("--storage-options", storage_options)
        summary = index_shards(
            shards, out, tokenizer=tokenizer, layouts=named_layouts(layout or ["smolvlm"] * bool(tokenizer)),
            caption_prompt=caption_prompt, workers=workers, afresh=afresh, storage_options=options,
            progress=progress,
        )  # fmt: skip
    console.print(summary_table(summary))
    if summary.damaged:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
