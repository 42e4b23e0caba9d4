"""What stands in a shard, as a person would want to see it: no tokenizer, no config."""

from collections.abc import Iterator, Sequence
from itertools import islice

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from wdspack import images, records, shards, storage, tar
from wdspack.errors import SampleError
from wdspack.types import RawSample

LONGEST = 600  # characters of a turn that are shown


def first_samples(urls: str | Sequence[str], count: int, *, strict_end: bool = True) -> Iterator[RawSample]:
    """The first samples of these shards, in order. Raises ConfigError or ShardError as streaming would."""

    def read() -> Iterator[RawSample]:
        for url in shards.expand_urls(urls):
            with storage.open_shard(url) as stream:
                yield from tar.TarReader(stream, strict_end=strict_end)

    return islice(read(), count)


def describe(raw: RawSample) -> RenderableType:
    """One sample: its files, the sizes of its images, its turns, or what is wrong with it."""
    lines = [Text(f"{raw.url} · byte {raw.offset:,} · {raw.nbytes:,} bytes", style="dim")]
    for extension, data in raw.files.items():
        lines.append(Text(f"  .{extension:<10} {len(data):>12,} bytes  {_image_size(extension, data)}", style="cyan"))
    border = "green"
    try:
        conversation = records.conversation_from(raw)
        for message in conversation.messages:
            said = "".join(f"⟨image {part + 1}⟩ " if isinstance(part, int) else part for part in message.parts)
            shown = said if len(said) <= LONGEST else f"{said[:LONGEST]}… ({len(said):,} characters)"
            lines.append(Text.assemble((f"{message.role}: ", "bold"), shown))
        for data in conversation.images:
            images.probe(data)
    except SampleError as error:
        border = "red"
        lines.append(Text(f"would be dropped ({error.reason}): {error}", style="red"))
    return Panel(Group(*lines), title=raw.key, title_align="left", border_style=border)


def _image_size(extension: str, data: bytes) -> str:
    if extension.rsplit(".", 1)[-1] not in records.IMAGE_EXTENSIONS:
        return ""
    try:
        info = images.probe(data)
    except SampleError as error:
        return f"({error.reason})"
    return f"{info.width} × {info.height}"
