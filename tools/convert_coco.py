#!/usr/bin/env python
"""Converts COCO's captions or instances: an annotations file and a folder of images.

python tools/convert_coco.py annotations/captions_train2017.json shards/ --images train2017/ --workers 8
"""

from typing import Annotated

import typer

from wdspack.convert import Reader, cli
from wdspack.convert.arguments import Images
from wdspack.convert.readers import CocoReader


def coco(
    source: Annotated[str, typer.Argument(help="captions_….json or instances_….json: a path or URL.")],
    images: Images = None,
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Converts COCO's captions or instances into shards."""
    return CocoReader(url=source, images=images, storage_options=storage_options)


if __name__ == "__main__":
    cli.run(coco)
