"""The command line that all converters share: a tool gives a function that makes a Reader, and gets the rest.

    def messages(source: Annotated[str, typer.Argument()], *, storage_options: Options = None) -> Reader: ...
    run(messages)    →    tool.py SOURCE OUTPUT [its options] [shared options]

Its parameters are typer's. One called `storage_options` is no option of its own: it is what reads the source.
"""

import inspect
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from wdspack.convert import plan
from wdspack.convert.recode import adapted
from wdspack.convert.rows import Reader
from wdspack.convert.run import convert
from wdspack.errors import ConfigError
from wdspack.executors import Executor, LocalExecutor, RayExecutor
from wdspack.images import MAX_PIXELS
from wdspack.terminal import errors, explained, json_object

Options = Mapping[str, Any] | None


def run(build: Callable[..., Reader]) -> None:
    """Runs the tool whose Reader `build` makes, with the arguments of this process."""
    application(build)()


def application(build: Callable[..., Reader]) -> typer.Typer:
    """The tool as a typer application: `build`'s parameters, then the shared ones; `build`'s docstring is its help."""
    own = [p for p in inspect.signature(build, eval_str=True).parameters.values() if p.name != "storage_options"]
    reads_storage = "storage_options" in inspect.signature(build).parameters
    common = list(inspect.signature(shared, eval_str=True).parameters.values())[1:]

    def command(**given: Any) -> None:
        mine = {parameter.name: given.pop(parameter.name) for parameter in own}

        def reader(options: Options, for_output: Options, output: str) -> Reader:
            if options is None:  # an object store's keys are for no other
                near = {_protocol(path) for path in (mine.get("source"), mine.get("images")) if path}
                options = for_output if _protocol(output) in near else {}
            return build(**mine, **({"storage_options": options} if reads_storage else {}))

        with explained():
            shared(reader, **given)

    order = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own + common]
    command.__doc__ = build.__doc__
    command.__signature__ = inspect.Signature(order)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in order}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    return app


def shared(
    make_reader: Callable[[Options, Options, str], Reader],
    output: Annotated[str, typer.Argument(help="Folder for the shards: a path or URL.")],
    per_shard: Annotated[int | None, typer.Option(min=1, help="Rows of a shard.")] = None,
    shard_size: Annotated[str | None, typer.Option(help="About how large a shard is to be. (default: 256MB)")] = None,
    shuffle: Annotated[int | None, typer.Option(metavar="SEED", help="Shuffle all rows by this seed.")] = None,
    key: Annotated[Literal["row", "id"], typer.Option(help="Call samples by row number or by id.")] = "row",
    name: Annotated[str, typer.Option(help="Shards are called NAME-000000.tar and on.")] = "shard",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
    caption_prompt: Annotated[str, typer.Option(help="What the user asks where a row has but a caption.")] = "",
    check_images: Annotated[
        Literal["header", "decode"], typer.Option(help="Look at images' headers, or decode them to find cut ones, too.")
    ] = "header",
    max_image_pixels: Annotated[int, typer.Option(min=1, help="Reject images of more pixels, unread.")] = MAX_PIXELS,
    where: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="Keep rows it says yes to.")] = None,
    image_format: Annotated[
        Literal["jpg", "png", "webp"] | None, typer.Option(help="Encode other images anew.")
    ] = None,
    max_side: Annotated[int | None, typer.Option(min=1, help="Shrink larger images to so many pixels.")] = None,
    quality: Annotated[int, typer.Option(min=1, max=100, help="Of images that are encoded anew.")] = 90,
    tokenizer: Annotated[str | None, typer.Option(help="Count text tokens: a hub name or path.")] = None,
    max_rejects: Annotated[str, typer.Option(help="Stop if more rows cannot be used: a count or share.")] = "5%",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check every row, write nothing.")] = False,
    executor: Annotated[Literal["local", "ray"], typer.Option(help="What does the work.")] = "local",
    workers: Annotated[int, typer.Option(min=1, help="Processes of the local executor, with this one.")] = 1,
    ray_address: Annotated[str, typer.Option(help="The Ray cluster.")] = "auto",
    spill: Annotated[str | None, typer.Option(help="Where a shuffle lays rows by. (default: within OUTPUT)")] = None,
    memory: Annotated[str, typer.Option(help="Rows a worker holds before it lays them by.")] = "256MB",
    storage_options: Annotated[str | None, typer.Option(metavar="JSON", help="For OUTPUT's filesystem.")] = None,
    source_options: Annotated[
        str | None, typer.Option(metavar="JSON", help="For the source's. (default: those for OUTPUT, if of one kind)")
    ] = None,
    summary: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the totals here, as JSON.")] = None,
) -> None:
    """Converts what the reader reads, with a progress bar, and a table in the end."""
    if summary and not summary.parent.is_dir():
        raise ConfigError(f"--summary {summary}: there is no folder {summary.parent}; make it, or name another file")
    writing = json_object("--storage-options", storage_options)
    reading = None if source_options is None else json_object("--source-options", source_options)
    reader = adapted(
        make_reader(reading, writing, output),
        caption_prompt=caption_prompt,
        check_images=check_images,
        max_image_pixels=max_image_pixels,
        image_format=image_format,
        max_side=max_side,
        quality=quality,
        where=where,
    )
    options = plan.Options(
        per_shard=per_shard,
        shard_size=None if shard_size is None else _bytes("--shard-size", shard_size),
        shuffle=shuffle,
        key=key,
        name=name,
        limit=limit,
        tokenizer=tokenizer,
    )
    engine: Executor = LocalExecutor(workers) if executor == "local" else RayExecutor(ray_address)
    from wdspack.convert.bar import progress  # not for workers, which import this module as the tool's

    began = time.perf_counter()
    with progress() as report:
        found = convert(
            reader,
            output,
            options,
            executor=engine,
            storage_options=writing,
            max_rejects=_count_or_share(max_rejects),
            dry_run=dry_run,
            spill=spill,
            memory=_bytes("--memory", memory),
            progress=report,
        )
    seconds = time.perf_counter() - began
    errors.print(found.table())
    errors.print(f"{seconds:,.1f} s, {found.rows / seconds:,.0f} rows/s" + ("; nothing written" if dry_run else ""))
    if summary:
        summary.write_text(json.dumps(found.to_dict() | {"seconds": seconds, "output": output}, indent=1) + "\n")


def _protocol(path: Any) -> str:
    """ "s3://bucket/key" → "s3"; of paths "file"."""
    return str(path).partition("://")[0] if "://" in str(path) else "file"


def _bytes(option: str, text: str) -> int:
    """ "256MB" → 256_000_000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(I?)B?", text.strip().upper())
    if match is None:
        raise ConfigError(f"{option} {text!r}: must be a size, such as 256MB or 1GiB")
    unit = 1024 if match[3] else 1000
    return round(float(match[1]) * float(unit) ** " KMGT".index(match[2] or " "))


def _count_or_share(text: str) -> int | float:
    """ "100" → 100, "5%" → 0.05, "0.05" → 0.05."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text) if "." in text else int(text)
    except ValueError:
        raise ConfigError(f"--max-rejects {text!r}: must be a count or a share, such as 100, 5% or 0.05") from None
