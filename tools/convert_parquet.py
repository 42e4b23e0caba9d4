#!/usr/bin/env python
"""Converts parquet of the Cauldron's or FineVision's form, or a dataset by the name that `load_dataset` knows.

python tools/convert_parquet.py 'hf://datasets/HuggingFaceM4/FineVision/chartqa/*.parquet' s3://bucket/chartqa/ \\
    --min-rating 3 --workers 8
python tools/convert_parquet.py HuggingFaceM4/the_cauldron shards/ --config ai2d
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from wdspack.convert import Reader, cli
from wdspack.convert.arguments import CaptionColumn, ImageColumn, Images
from wdspack.convert.readers import HubReader, ParquetReader
from wdspack.convert.readers.ratings import min_rating_of


def parquet(
    source: Annotated[
        str,
        typer.Argument(help="Parquet files: a path, folder, glob or URL (hf://, s3://, …). Else a dataset's name."),
    ],
    config: Annotated[str | None, typer.Option(help="Of a named dataset: its configuration.")] = None,
    split: Annotated[str, typer.Option(help="Of a named dataset: its split.")] = "train",
    revision: Annotated[str | None, typer.Option(help="Of a named dataset: branch, tag or commit.")] = None,
    images: Images = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    min_rating: Annotated[
        list[str] | None, typer.Option(help="Leave out exchanges rated lower: N, or ASPECT=N, repeated.")
    ] = None,
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Converts parquet files, or a dataset by name, into shards."""
    shared = {
        "images": images,
        "image_column": image_column,
        "caption_column": caption_column,
        "min_rating": min_rating_of(min_rating or []),
        "storage_options": storage_options,
    }
    if _is_parquet(source):
        return ParquetReader(urls=source, **shared)
    return HubReader(name=source, config=config, split=split, revision=revision, **shared)


def _is_parquet(source: str) -> bool:
    if "://" in source or source.endswith(".parquet") or any(wild in source for wild in "*?[{"):
        return True
    return os.path.isdir(source) and next(Path(source).rglob("*.parquet"), None) is not None


if __name__ == "__main__":
    cli.run(parquet)
