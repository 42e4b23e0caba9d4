#!/usr/bin/env python
"""Makes WebDataset shards into others: of another size, order, or keys, filtered, recompressed, made canonical.

python tools/reshard.py 's3://bucket/laion-{00000..00511}.tar' s3://bucket/laion-512/ --canonical --shuffle 0 \\
    --image-format webp --max-side 512 --quality 85 --workers 8
"""

from typing import Annotated

import typer

from wdspack.convert import Reader, cli
from wdspack.convert.readers import ShardsReader


def reshard(
    source: Annotated[str, typer.Argument(help="Shards: a path, folder, glob, brace pattern, manifest or URL.")],
    canonical: Annotated[
        bool,
        typer.Option(
            "--canonical", help="Check samples and write chat messages; else carry their files, images checked."
        ),
    ] = False,
    unclosed: Annotated[bool, typer.Option("--unclosed", help="Take shards without end-of-archive marker.")] = False,
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Makes WebDataset shards into others."""
    return ShardsReader(urls=source, canonical=canonical, strict_end=not unclosed, storage_options=storage_options)


if __name__ == "__main__":
    cli.run(reshard)
