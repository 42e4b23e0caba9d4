#!/usr/bin/env python
"""Converts a MosaicML MDS directory.

python tools/convert_mds.py s3://bucket/mds/train/ shards/ --workers 8
"""

from typing import Annotated

import typer

from wdspack.convert import Reader, cli
from wdspack.convert.arguments import CaptionColumn, ImageColumn, Images
from wdspack.convert.readers import MdsReader


def mds(
    source: Annotated[str, typer.Argument(help="The folder with index.json, or one of such folders: a path or URL.")],
    images: Images = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Converts a MosaicML MDS directory into shards."""
    return MdsReader(
        folder=source,
        images=images,
        image_column=image_column,
        caption_column=caption_column,
        storage_options=storage_options,
    )


if __name__ == "__main__":
    cli.run(mds)
