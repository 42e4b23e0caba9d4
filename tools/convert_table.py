#!/usr/bin/env python
"""Converts CSV or TSV of image paths and captions.

python tools/convert_table.py captions.csv shards/ --images photos/ --path-column file --caption-column title
"""

from typing import Annotated

import typer

from wdspack.convert import Reader, cli
from wdspack.convert.arguments import CaptionColumn, Images
from wdspack.convert.readers import TableReader


def table(
    source: Annotated[str, typer.Argument(help="CSV or TSV: a path, folder, glob or URL.")],
    images: Images = None,
    path_column: Annotated[str | None, typer.Option(help="Column of paths. (default: path, image, …)")] = None,
    caption_column: CaptionColumn = None,
    delimiter: Annotated[str | None, typer.Option(help="Between fields. (default: a tab for .tsv, else ',')")] = None,
    quote: Annotated[str, typer.Option(help="Around fields; '' where quotes are plain characters.")] = '"',
    header: Annotated[str | None, typer.Option(help="A,B,…: names of columns that the file does not give.")] = None,
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Converts CSV or TSV of image paths and captions into shards."""
    return TableReader(
        urls=source,
        images=images,
        path=path_column,
        caption=caption_column,
        delimiter=delimiter,
        quote=quote,
        header=header.split(",") if header else None,
        storage_options=storage_options,
    )


if __name__ == "__main__":
    cli.run(table)
