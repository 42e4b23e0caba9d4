"""The command line: `wdspack demo`, `wdspack inspect`, `wdspack compare`."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

import wdspack
from wdspack.terminal import explained

app = typer.Typer(
    help="Streams image-text tar shards into dense packs for training vision-language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for shards, tokenizer, data.yaml and report.html.")] = Path(
        "wdspack-demo"
    ),
    samples: Annotated[int, typer.Option(min=50, help="Samples to draw.")] = 480,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes to stream with.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of the drawings and the order.")] = 0,
    storage: Annotated[
        Literal["local", "s3"], typer.Option(help="Stream from this disk, or from an S3 server started for it.")
    ] = "local",
) -> None:
    """Draws a corpus, streams and packs it, compares strategies, and writes a report to look at."""
    from wdspack.demo.run import run_demo

    with explained():
        report = run_demo(out, samples=samples, workers=workers, seed=seed, console=console, storage=storage)
    console.print(f"open {report} in a browser; {out / 'data.yaml'} is the config of this run", highlight=False)
    if storage == "s3":
        console.print(
            f"{out / 'data-s3.yaml'} streams from the bucket: serve it again with `python tools/serve_s3.py --folder "
            f"{out / 's3'}`, and export what that prints",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def inspect(
    shards: Annotated[list[str], typer.Argument(help="Paths, urls, brace patterns, globs, folders or manifests.")],
    count: Annotated[int, typer.Option(min=1, help="Samples to show.")] = 5,
    strict_end: Annotated[bool, typer.Option(help="Whether a shard must have its end-of-archive block.")] = True,
) -> None:
    """Shows the first samples of any shards: files, image sizes, turns, and what is wrong with them."""
    from wdspack.inspect import describe, first_samples

    with explained():
        shown = 0
        for raw in first_samples(shards, count, strict_end=strict_end):
            console.print(describe(raw))
            shown += 1
        if not shown:
            raise wdspack.WdspackError(f"{', '.join(shards)}: no sample in these shards")


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(help="YAML file of a DataConfig.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Measure this many samples only.")] = None,
    index: Annotated[
        str, typer.Option(help='Url of an index; "auto": index.parquet beside the shards; "none": read every shard.')
    ] = "auto",
) -> None:
    """Packs your own samples by every strategy and prints what comes of it, side by side."""
    from wdspack.compare import compare as run
    from wdspack.compare import measured_sizes, table

    with explained():
        plan = wdspack.load_config(config)
        sizes, faulty, origins = [], Counter[str](), Counter[str]()
        found = measured_sizes(plan, None if index == "none" else index, origins=origins)
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console) as progress:
            task = progress.add_task("measuring")
            for number, (size, reason) in enumerate(islice(found, limit), 1):
                progress.update(task, description=f"measuring: {number:,} samples")
                if size is None:
                    faulty[reason] += 1
                else:
                    sizes.append(size)
        read = {reason: n for reason, n in origins.items() if reason != "index"}
        why = f" ({', '.join(f'{reason} {n:,}' for reason, n in sorted(read.items()))})" if read else ""
        console.print(f"sizes: {origins['index']:,} shards from the index, {sum(read.values()):,} read{why}")
        console.print(table(run(plan, sizes), plan, len(sizes), faulty))


def main() -> None:
    """What `python -m wdspack` and the `wdspack` command run."""
    app()
