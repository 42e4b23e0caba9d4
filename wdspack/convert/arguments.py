"""Options that several converters' command lines share: annotations for their parameters."""

from typing import Annotated

import typer

Images = Annotated[str | None, typer.Option(help="Folder or URL of the images. (default: the source's folder)")]
ImageColumn = Annotated[str | None, typer.Option(help="Column of images. (default: images or image)")]
CaptionColumn = Annotated[str | None, typer.Option(help="Column of captions, where there are no conversations.")]
