#!/usr/bin/env python
"""Converts conversations with `messages`, or LLaVA's and ShareGPT's `conversations`: JSON or JSONL, and images.

python tools/convert_messages.py records.jsonl shards/ --workers 8 --shuffle 0
"""

from typing import Annotated

import typer

from wdspack.convert import Reader, cli
from wdspack.convert.arguments import Images
from wdspack.convert.readers import ChatReader


def messages(
    source: Annotated[str, typer.Argument(help="JSON or JSONL: a path, URL, glob or brace pattern.")],
    images: Images = None,
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Converts conversations with `messages`, or LLaVA's and ShareGPT's `conversations`, into shards."""
    return ChatReader(urls=source, images=images, storage_options=storage_options)


if __name__ == "__main__":
    cli.run(messages)
