"""The demo from end to end: draw a corpus, write shards, make a tokenizer, stream, pack, compare, report.

draw_corpus ─▶ shards/ (─▶ a bucket) ─▶ make_loader (two workers) ─▶ packs ─┐
                  └─────▶ measured ─▶ compare ──────────────────────────────┴─▶ tables on the terminal, report.html
"""

import posixpath
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import wdspack
from wdspack.compare import compare, measured, table
from wdspack.demo.corpus import DemoSample, draw_corpus, write_shards
from wdspack.demo.report import LedgerRow, PackStrip, Report, SampleCard, render_report, strip_from_pack
from wdspack.serve import S3Server
from wdspack.types import Sample

Storage = Literal["local", "s3"]

SHOWN = 24  # packs and samples in the report
_VOCABULARY = 4096


@dataclass(frozen=True, slots=True)
class _Streamed:
    """What came of streaming: strips of the first packs, the books, seconds in all and until the first pack."""

    strips: list[PackStrip]
    ledger: wdspack.Ledger
    seconds: float
    first: float


def run_demo(
    folder: Path, *, samples: int, workers: int, seed: int, console: Console, storage: Storage = "local"
) -> Path:
    """Leaves shards/, tokenizer/, data.yaml and report.html in `folder`; returns the report's path.

    storage: "s3" uploads the shards to a local S3 server, streams them from there, and leaves the server's data in s3/
    and data-s3.yaml as well, for when it runs again. Raises ConfigError if no server is installed.
    """
    folder = folder.resolve()  # so that data.yaml can be used from anywhere
    server = S3Server(folder / "s3") if storage == "s3" else None
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    columns = TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        drawing = progress.add_task("drawing samples", total=samples)
        drawn: list[DemoSample] = []
        for sample in draw_corpus(seed, samples):
            drawn.append(sample)
            progress.advance(drawing)
        urls = write_shards(drawn, folder / "shards")
        config = _configure(folder, drawn, seed, workers)
        measuring = progress.add_task("measuring", total=samples)
        found: dict[str, Sample] = {}
        faulty: Counter[str] = Counter()
        for measured_sample, reason in measured(config):
            progress.advance(measuring)
            if measured_sample is None:
                faulty[reason] += 1
            else:
                found[measured_sample.key] = measured_sample
        streaming = progress.add_task(f"streaming, {workers} workers", total=samples)
        with server or nullcontext():
            stored = config if server is None else _uploaded(config, folder, server)
            streamed = _stream(stored, workers, lambda done: progress.update(streaming, completed=done))

    sizes = [sample.size for sample in found.values()]
    rows = compare(config, sizes)
    ledger = streamed.ledger
    rate, tokens = ledger.total.read / streamed.seconds, ledger.tokens / streamed.seconds
    console.print(table(rows, config, len(sizes), faulty))
    console.print(str(ledger), highlight=False)
    console.print(
        f"{rate:,.0f} samples/s, {tokens:,.0f} tokens/s with {workers} workers "
        f"(decoded and packed; {streamed.seconds:.1f} s, of which {streamed.first:.1f} s to the first pack)"
    )
    report = Report(
        title="wdspack demo",
        subtitle=f"{samples} samples in {len(urls)} shards, drawn with seed {seed} and streamed from "
        f"{_from(stored)}; packs of {config.seq_len:,} tokens",
        headline={
            "fill of a pack": f"{ledger.fill(config.seq_len):.1%}",
            "packs": f"{ledger.packs:,}",
            "samples a second": f"{rate:,.0f}",
            "tokens a second": f"{tokens:,.0f}",
        },
        strategies=rows,
        ledger=[
            LedgerRow(source=name, read=c.read, packed=c.packed, dropped=c.dropped, held=c.held)
            for name, c in ledger.sources.items()
        ],
        lengths=[_split(sample) for sample in found.values()],
        packs=streamed.strips,
        samples=list(_cards(drawn, found, config)),
        notes=[
            "Everything but the times is the same in every run.",
            "Broken samples were broken on purpose: real corpora have them. No strategy gets to see them.",
        ],
    )  # fmt: skip
    path = folder / "report.html"
    path.write_text(render_report(report), encoding="utf-8")
    return path


def _configure(folder: Path, drawn: Sequence[DemoSample], seed: int, workers: int) -> wdspack.DataConfig:
    """A tokenizer of the corpus' own, and a data.yaml that any other command can use."""
    from wdspack.tokenizer import train_tokenizer

    train_tokenizer(_texts(drawn), vocab_size=_VOCABULARY).save_pretrained(folder / "tokenizer")
    plan = {
        "sources": {"urls": str(folder / "shards" / "*.tar"), "name": "demo"},
        "tokenizer": str(folder / "tokenizer"),
        "layout": {"type": "tile", "tile": 256, "max_side": 512, "tokens_per_tile": 64, "upscale": False},
        "seq_len": 4096,
        "max_images": 18,
        "buffer_size": 256,
        "lanes": 12,
        "seed": seed,
        "epochs": 1,
    }
    (folder / "data.yaml").write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    return wdspack.load_config(folder / "data.yaml").replace(lanes=max(1, workers))


def _uploaded(config: wdspack.DataConfig, folder: Path, server: S3Server) -> wdspack.DataConfig:
    """The same run from a bucket, and data-s3.yaml for it, which leaves endpoint and keys to the environment."""
    urls = server.upload(folder / "shards", prefix="shards/")  # by name: an earlier demo may have left others
    plan = yaml.safe_load((folder / "data.yaml").read_text("utf-8"))
    plan["sources"]["urls"] = urls
    (folder / "data-s3.yaml").write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    (source,) = config.source_list
    return config.replace(sources=replace(source, urls=tuple(urls), storage_options=server.storage_options))


def _from(config: wdspack.DataConfig) -> str:
    (source,) = config.source_list
    endpoint = source.storage_options.get("endpoint_url")
    return f"{posixpath.dirname(source.urls[0])} of an S3 server at {endpoint}" if endpoint else "the local disk"


def _texts(drawn: Iterable[DemoSample]) -> Iterator[str]:
    for sample in drawn:
        for message in sample.messages:
            yield from (entry["text"] for entry in message["content"] if entry["type"] == "text")


def _stream(config: wdspack.DataConfig, workers: int, progress: Callable[[int], None]) -> _Streamed:
    loader = wdspack.make_loader(config, batch_size=None, num_workers=workers)
    image_id = loader.tokenizer.convert_tokens_to_ids(config.layout.image_token)
    strips: list[PackStrip] = []
    start, first = time.perf_counter(), 0.0
    for pack in loader:
        first = first or time.perf_counter() - start
        ledger = loader.ledger
        progress(ledger.total.packed + ledger.total.dropped.total())
        if len(strips) < SHOWN:
            ids, keys = pack["input_ids"].numpy(), [key for _, key in pack["keys"]]
            strips.append(strip_from_pack(pack["segment_ids"].numpy(), pack["labels"].numpy(), ids == image_id, keys))
    seconds = time.perf_counter() - start
    ledger = loader.ledger
    progress(ledger.total.packed + ledger.total.dropped.total())
    return _Streamed(strips, ledger, seconds, first)


def _split(sample: Sample) -> tuple[int, int]:
    """(text tokens, image tokens)"""
    image = sum(image.grid.length for image in sample.images)
    return sample.size.tokens - image, image


def _cards(drawn: Sequence[DemoSample], found: dict[str, Sample], config: wdspack.DataConfig) -> Iterator[SampleCard]:
    """Samples spread over the corpus, a few of the broken and the over-long among them."""
    broken = [sample for sample in drawn if sample.broken][: SHOWN // 6]
    sound = [sample for sample in drawn if not sample.broken]
    chosen = [*sound[:: max(1, len(sound) // (SHOWN - len(broken)))][: SHOWN - len(broken)], *broken]
    for sample in sorted(chosen, key=lambda sample: sample.key):
        tokens = found[sample.key].size.tokens if sample.key in found else None
        long = tokens is not None and tokens > config.seq_len
        turns = [
            (message["role"], " ".join(entry.get("text", "▢") for entry in message["content"]))
            for message in sample.messages
        ]
        yield SampleCard(
            key=sample.key,
            images=[data for _, data in sample.images],
            turns=turns,
            tokens=tokens,
            dropped=sample.broken or ("too_long" if long else None),
        )
