"""The command line: `wdspack demo`, `wdspack inspect`, `wdspack compare`."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

import wdspack

app = typer.Typer(
    help="Streams image-text tar shards into dense packs for training vision-language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@contextmanager
def _explained() -> Iterator[None]:
    """An error that says what to do needs no traceback."""
    try:
        yield
    except (wdspack.WdspackError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
        Console(stderr=True).print(str(error), markup=False, highlight=False)
        raise typer.Exit(1) from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for shards, tokenizer, data.yaml and report.html.")] = Path(
        "wdspack-demo"
    ),
    samples: Annotated[int, typer.Option(min=50, help="Samples to draw.")] = 480,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes to stream with.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of the drawings and the order.")] = 0,
) -> None:
    """Draws a corpus, streams and packs it, compares strategies, and writes a report to look at."""
    from wdspack.demo.run import run_demo

    with _explained():
        report = run_demo(out, samples=samples, workers=workers, seed=seed, console=console)
    console.print(f"open {report} in a browser; {out / 'data.yaml'} is the config of this run", highlight=False)


@app.command()
def inspect(
    shards: Annotated[list[str], typer.Argument(help="Paths, urls, brace patterns, globs, folders or manifests.")],
    count: Annotated[int, typer.Option(min=1, help="Samples to show.")] = 5,
    strict_end: Annotated[bool, typer.Option(help="Whether a shard must have its end-of-archive block.")] = True,
) -> None:
    """Shows the first samples of any shards: files, image sizes, turns, and what is wrong with them."""
    from wdspack.inspect import describe, first_samples

    with _explained():
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
) -> None:
    """Packs your own samples by every strategy and prints what comes of it, side by side."""
    from wdspack.compare import compare as run
    from wdspack.compare import measured, table

    with _explained():
        plan = wdspack.load_config(config)
        sizes, faulty = [], Counter[str]()
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console) as progress:
            task = progress.add_task("measuring")
            for number, (sample, reason) in enumerate(islice(measured(plan), limit), 1):
                progress.update(task, description=f"measuring: {number:,} samples")
                if sample is None:
                    faulty[reason] += 1
                else:
                    sizes.append(sample.size)
        console.print(table(run(plan, sizes), plan, len(sizes), faulty))


def main() -> None:
    """What `python -m wdspack` and the `wdspack` command run."""
    app()
