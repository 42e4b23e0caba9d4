#!/usr/bin/env python
"""How fast the loader is, against the floor: what decoding, resizing, tokenizing and reading alone would take.

    python tools/bench_pipeline.py [--records FOLDER] [--s3] [--rounds 3] [--samples 2970]
    … --slow 10          memory with a consumer that takes ten times as long as the loader
    … --epochs 20        memory after each of so many passes
    … --consumer 1.2     share of the time that a consumer waits which sleeps 1.2 times as long as the loader takes
    … --beside           what a decoder at work does to a pure-Python loop
    … --scaling          one core, then two
    … --profile          where the CPU seconds go
    … --peers            a row each for webdataset, megatron-energon and mosaicml-streaming (pipeline_peers.py)
    … --decoders N --workers N --prefetch N --normalize   instead of the defaults; with float32 pixels

Tiles of 512, longest side 1,024 (small images are not enlarged), 64 tokens a tile, packs of 4,096 tokens and 18 images,
2 packs a batch, uint8 pixels, buffer of 256. Without --records the demo's corpus is drawn; FOLDER holds records.jsonl
and images, of which samples with an image over 6 megapixels, or more than 20 images, are left out. Samples are repeated
until there are enough. Every figure is from a fresh process (pipeline_parts.py); the floor and the loader take turns,
and the table shows medians. CPU seconds are those of all processes a 1,000 samples; memory is the peak of their PSS;
"bound" is the fill that the two budgets would allow if samples were a fluid.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

from wdspack import convert
from wdspack.demo.corpus import draw_corpus
from wdspack.serve import S3Server
from wdspack.tokenizer import train_tokenizer

PARTS = Path(__file__).with_name("pipeline_parts.py")
PEERS = Path(__file__).with_name("pipeline_peers.py")


def run(task: str, settings: dict[str, Any], script: Path = PARTS, *, every: float = 2.0) -> dict[str, Any]:
    """A task's figures, and "peak": the most MB that its processes held at once (PSS).

    every: seconds between two looks. One takes 30 ms of a core, which the task has to share.
    """
    command = [sys.executable, "-W", "ignore", str(script), task, json.dumps(settings)]
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_pss, _tree(process.pid))))
            with suppress(subprocess.TimeoutExpired):
                process.wait(every)
        assert process.stdout
        out = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{task} failed")
    return json.loads(out.splitlines()[-1]) | {"peak": peak}


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _pss(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    return 0.0


def write_corpus(folder: Path, records: Path | None, count: int) -> tuple[list[str], str]:
    """Shards of `count` samples, and a tokenizer's path."""
    if records:
        samples = [files for _, files in convert.chat_records(records) if _usable(files)]
    else:
        samples = [sample.files() for sample in draw_corpus()]
    keyed = ((f"{n:06d}", files) for n, files in enumerate(islice(chain.from_iterable(repeat(samples)), count)))
    urls = convert.write_shards(keyed, folder / "shards", per_shard=max(1, count // 12))
    train_tokenizer([files["json"].decode(errors="replace") for files in samples]).save_pretrained(folder / "tokenizer")
    return urls, str(folder / "tokenizer")


def _usable(files: convert.Files) -> bool:
    images = [data for name, data in files.items() if name != "json"]
    sizes = [Image.open(io.BytesIO(data)).size for data in images]
    return len(images) <= 20 and all(width * height <= 6e6 for width, height in sizes)


def end_to_end(
    console: Console, places: dict[str, dict[str, Any]], base: dict[str, Any], rounds: int, peers: Sequence[str] = ()
) -> None:
    floors: list[dict[str, float]] = []
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (*places, *peers)}
    for peer in peers:
        run("prepare", base | {"peer": peer}, PEERS)
    for _ in range(rounds):
        floors.append(run("floor", base | {"cores": 1}))
        for name, place in places.items():
            found[name].append(run("product", base | place))
        for peer in peers:
            found[peer].append(run(peer, base, PEERS))
            theirs, ours = found[peer][-1]["sizes"], found["local"][-1]["sizes"]
            if theirs != ours:
                raise SystemExit(f"{peer} delivered {theirs} tokens and images, the product {ours}: not the same work")
    parts = {name: statistics.median(floor[name] for floor in floors) for name in floors[0] if name != "peak"}
    total, cores = sum(parts.values()), len(os.sched_getaffinity(0))
    console.print(
        f"floor: {total:.2f} CPU s a 1,000 samples, {1000 * cores / total:.0f} samples/s on {cores} cores ("
        + ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items()) + ")", highlight=False,
    )  # fmt: skip
    table = Table(title=f"medians of {rounds}")
    columns = (
        "samples/s",
        "of the floor",
        "CPU s",
        "floor's share",
        "tokens/s",
        "fill",
        "bound",
        "peak MB",
        "first batch s",
    )
    for column in ("", *columns, "import s", "waited"):
        table.add_column(column, justify="right")
    for name, results in found.items():
        middle = {key: statistics.median(r[key] for r in results) for key in results[0] if _is_number(results[0][key])}
        tokens, images = results[0]["sizes"]
        most = tokens / 4096 / max(tokens / 4096, images / 18)
        table.add_row(
            name, f"{middle['rate']:.0f}", f"{middle['rate'] * total / 1000 / cores:.2f}", f"{middle['cpu']:.2f}",
            f"{total / middle['cpu']:.2f}", f"{middle['tokens']:,.0f}", f"{middle['fill']:.1%}", f"{most:.1%}",
            f"{middle['peak']:.0f}", f"{middle['first']:.1f}",
            *(() if name in peers else (f"{middle['import']:.2f}", f"{middle['waited']:.0%}")),
        )  # fmt: skip
    console.print(table)
    console.print(found[list(places)[-1]][-1]["timing"], highlight=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--samples", type=int, default=2970)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizer", help="a path or a name; by default one is made of the texts")
    for name in ("decoders", "workers", "prefetch", "epochs"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("slow", "consumer"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("s3", "beside", "scaling", "profile", "normalize", "peers"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = S3Server(folder / "server") if args.s3 else None
        with server or nullcontext():
            urls, tokenizer = write_corpus(folder, args.records, args.samples)
            base = {
                "urls": urls, "tokenizer": args.tokenizer or tokenizer, "samples": args.samples,
                "decoders": args.decoders, "workers": args.workers, "normalize": args.normalize,
                "prefetch": args.prefetch, "folder": name,
            }  # fmt: skip
            places: dict[str, dict[str, Any]] = {"local": {}}
            if server:
                places["S3"] = {"urls": server.upload(folder / "shards"), "storage": server.storage_options}
            if args.profile:
                return _print_profile(console, run("stages", base))
            if args.beside:
                found = run("beside", base | {"cores": 2})
                return console.print(f"a loop beside a decoder is slowed by {found['slowed']:.1%}")
            if args.scaling:
                results = [[run("product", base | {"cores": n})["rate"] for n in (1, 2)] for _ in range(args.rounds)]
                one, two = (statistics.median(column) for column in zip(*results, strict=True))
                return console.print(f"one core {one:.0f} samples/s, two {two:.0f}: {two / one:.2f} times")
            if args.epochs:
                found = run("product", base | {"epochs": args.epochs}, every=0.3)
                after = ", ".join(f"{megabytes:.0f}" for megabytes in found["memory"])
                return console.print(f"MB after each pass: {after}; peak of all processes {found['peak']:.0f} MB")
            if factor := args.slow or args.consumer:
                free = run("product", base)
                slow = base | {"pause": factor * free["batch"], "batches": 100 if args.slow else None}
                slowed = run("product", slow, every=0.3 if args.slow else 2.0)
                return console.print(
                    f"a consumer that sleeps {factor:g} × {free['batch']:.3f} s a batch waits {slowed['waited']:.1%} "
                    f"of the time after 20 batches; peak {slowed['peak']:.0f} MB\n{slowed['timing']}", highlight=False,
                )  # fmt: skip
            end_to_end(console, places, base, args.rounds, ("webdataset", "energon", "mosaicml") if args.peers else ())
    return None


def _print_profile(console: Console, parts: dict[str, float]) -> None:
    del parts["peak"]
    total = sum(seconds for name, seconds in parts.items() if not name.startswith("("))
    table = Table(title="CPU s a 1,000 samples, one thread")
    for column in ("stage", "CPU s", "share"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for name, seconds in parts.items():
        table.add_row(name, f"{seconds:.2f}", f"{seconds / total:.1%}")
    console.print(table)


if __name__ == "__main__":
    main()
