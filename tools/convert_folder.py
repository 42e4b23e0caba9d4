#!/usr/bin/env python
"""Converts a folder of images with a .txt (caption) or .json (any known form) beside each.

python tools/convert_folder.py photos/ shards/ --caption-prompt 'Describe the image.'
"""

from typing import Annotated

import typer

from wdspack.convert import Reader, cli
from wdspack.convert.readers import FolderReader


def folder(
    source: Annotated[str, typer.Argument(help="The folder: a path or URL; subfolders are read, too.")],
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Converts a folder of images with texts beside them into shards."""
    return FolderReader(folder=source, storage_options=storage_options)


if __name__ == "__main__":
    cli.run(folder)
