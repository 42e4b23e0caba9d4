#!/usr/bin/env python
"""What streaming from an object store reaches: against raw range requests and s3fs, and from a cold start.

    python tools/bench_storage.py [--shards 40 --megabytes 64 --rounds 3] [--blocks 2,4,8] [--prefetch 64]

A real S3 server on loopback, behind a proxy (a process of its own) that adds 30 ms + exp(10 ms) to each answer's first
byte and lets 85 MB/s through each connection. In every round, each in a fresh process and in turn:

    raw       20 range requests of 5 MB in flight, straight from the client library, their bodies thrown away
    wdspack   shard after shard by `Successive`, as a lane reads them, default settings
    s3fs      `s3fs.open` at its defaults, 100 kB at a time (the first shard only)

Memory is the peak of the process's resident set over what it was before the first request. Then a cold start: 512
shards, a new process, until its first pack is there, and what that time is spent on; and what is requested for shards
that several lanes share.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_proxy import FaultProxy
from rich.console import Console
from rich.table import Table

from wdspack.serve import S3Server

READ = 100_000  # bytes a consumer reads at a time
RAW, AT_ONCE = 5_000_000, 20


def raw(urls: list[str], options: dict[str, Any], size: int, _: dict[str, Any]) -> dict[str, Any]:
    """As many ranges in flight as there are, over all shards, by s3fs's own client."""
    import fsspec
    from fsspec.asyn import get_loop

    fs = fsspec.filesystem("s3", **options, config_kwargs={"max_pool_connections": 64})
    fs.info(urls[0])
    begin = baseline()

    async def one(limit: asyncio.Semaphore, url: str, start: int) -> int:
        async with limit:
            bucket, key, _ = fs.split_path(url)
            stop = min(size, start + RAW)
            answer = await fs._s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
            return len(await answer["Body"].read())

    async def every() -> int:
        limit = asyncio.Semaphore(AT_ONCE)
        return sum(await asyncio.gather(*(one(limit, url, at) for url in urls for at in range(0, size, RAW))))

    return begin(asyncio.run_coroutine_threadsafe(every(), get_loop()).result())


def wdspack(urls: list[str], options: dict[str, Any], _: int, settings: dict[str, Any]) -> dict[str, Any]:
    from wdspack.config import Reading
    from wdspack.storage import Access, Successive, stat_shard
    from wdspack.storage.access import Budget

    if "block" in settings:
        Budget.LARGEST = settings.pop("block")
    access, total = Access(Reading(**settings)), 0
    stat_shard(urls[0], storage_options=options)  # connects
    finish = baseline()
    shards = Successive(iter(urls), storage_options=options, access=access)
    for url in urls:
        with shards.open(url) as stream:
            while data := stream.read(READ):
                total += len(data)
    return finish(total) | dict(access.counts)


def s3fs(urls: list[str], options: dict[str, Any], _: int, __: dict[str, Any]) -> dict[str, Any]:
    import fsspec

    fs, total = fsspec.filesystem("s3", **options), 0
    fs.info(urls[0])
    finish = baseline()
    with fs.open(urls[0]) as file:
        while data := file.read(READ):
            total += len(data)
    return finish(total)


def baseline() -> Callable[[int], dict[str, Any]]:
    """Starts the clock; what it returns stops it and tells MB/s, CPU s a GB, and the MB that memory grew by at most."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, begun, used = _memory("VmRSS"), time.perf_counter(), time.process_time()

    def finish(nbytes: int) -> dict[str, Any]:
        seconds = time.perf_counter() - begun
        cpu = (time.process_time() - used) / nbytes * 1e9
        return {"nbytes": nbytes, "rate": nbytes / seconds / 1e6, "memory": _memory("VmHWM") - before, "cpu": cpu}

    return finish


def _memory(field: str) -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1e3


def first_pack(urls: list[str], options: dict[str, Any], _: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the start of the interpreter's work to the first pack, part by part."""
    marks: list[tuple[str, float]] = [("", time.perf_counter())]
    mark = lambda name: marks.append((name, time.perf_counter()))  # noqa: E731
    import wdspack
    from wdspack.run import resolve

    mark("import")
    config = wdspack.DataConfig(
        sources=wdspack.Source(urls=urls[0], storage_options=options),
        tokenizer=settings["tokenizer"], layout=wdspack.TileLayout(tile=64, max_side=128, tokens_per_tile=4),
        seq_len=4096, max_images=64, lanes=8, buffer_size=settings["buffer"], max_drop_share=1.0,
    )  # fmt: skip
    resolve(config, lanes=8)
    mark("list the shards, load the tokenizer")
    loader = wdspack.make_loader(config, num_workers=settings["workers"])
    mark("the same again, in make_loader")
    batch = next(iter(loader))
    mark("workers, the first buffer, decoding")
    assert batch["input_ids"].shape == (1, 4096)
    storage = dict(loader.ledger.storage)
    loader.close()
    parts = {name: end - begun for (_, begun), (name, end) in itertools.pairwise(marks)}
    return {"seconds": marks[-1][1] - marks[0][1], "parts": parts, "storage": storage}


def shared(urls: list[str], options: dict[str, Any], _: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Bytes requested for one epoch, by lanes that share a left-over shard."""
    import wdspack

    config = wdspack.DataConfig(
        sources=wdspack.Source(urls=urls[: settings["shards"]], storage_options=options),
        tokenizer=settings["tokenizer"], layout=wdspack.TileLayout(tile=64, max_side=128, tokens_per_tile=4),
        lanes=settings["lanes"], buffer_size=64, epochs=1, max_images=64, max_drop_share=1.0,
    )  # fmt: skip
    loader = wdspack.make_loader(config)
    for _batch in loader:
        pass
    return {"nbytes": loader.ledger.storage["bytes"], "requests": loader.ledger.storage["requests"]}


TASKS = {task.__name__: task for task in (raw, wdspack, s3fs, first_pack, shared)}


def run(task: str, urls: list[str], options: dict[str, Any], size: int = 0, **settings: Any) -> dict[str, Any]:
    """The task in a process of its own."""
    given = json.dumps([task, urls, options, size, settings])
    done = subprocess.run([sys.executable, __file__, "--task", given], stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_samples(folder: Path, shards: int, per_shard: int) -> tuple[list[str], str, int]:
    """Shards of captioned noise, about 40 kB a sample, and a tokenizer: their names, its folder, their bytes."""
    import io

    from PIL import Image

    from wdspack import convert
    from wdspack.tokenizer import train_tokenizer

    rng, pictures = random.Random(0), []
    for _ in range(20):
        out = io.BytesIO()
        Image.frombytes("RGB", (110, 110), rng.randbytes(110 * 110 * 3)).save(out, "png")
        pictures.append(out.getvalue())
    samples = (
        (f"s{n:06d}", {"png": rng.choice(pictures), "txt": f"number {n} of many".encode()})
        for n in range(shards * per_shard)
    )
    paths = convert.write_shards(samples, folder / "shards", per_shard=per_shard)
    train_tokenizer((f"number {n} of many" for n in range(500)), vocab_size=400).save_pretrained(folder / "tokenizer")
    return paths, str(folder / "tokenizer"), sum(os.path.getsize(path) for path in paths)


def serve_proxy(upstream: str) -> None:
    with FaultProxy(upstream, first_byte=0.030, jitter=0.010, rate=85e6) as proxy:
        print(proxy.endpoint, flush=True)
        sys.stdin.read()  # until whoever started it is done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--megabytes", type=int, default=64, help="of each shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", default="", help="further sizes of a block to try, in MiB")
    parser.add_argument("--prefetch", default="", help="further values of prefetch_bytes to try, in MiB")
    parser.add_argument("--kind", default="juicefs", help="of server: juicefs or seaweedfs")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--proxy", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.proxy:
        return serve_proxy(args.proxy)
    if args.task:
        task, urls, options, size, settings = json.loads(args.task)
        print(json.dumps(TASKS[task](urls, options, size, settings)))
        return None

    console, size = Console(), args.megabytes << 20
    with tempfile.TemporaryDirectory() as name, S3Server(Path(name) / "server", kind=args.kind) as server:
        folder = Path(name)
        (folder / "large").mkdir()
        block = random.Random(0).randbytes(1 << 20)
        for n in range(args.shards):
            (folder / f"large/{n:03d}.bin").write_bytes(block * args.megabytes)
        large = server.upload(folder / "large", "large/")
        with subprocess.Popen(
            [sys.executable, __file__, "--proxy", server.endpoint],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as proxy:  # fmt: skip
            assert proxy.stdin
            assert proxy.stdout
            options = server.storage_options | {"endpoint_url": proxy.stdout.readline().strip()}
            tries: list[tuple[str, str, dict[str, int]]] = [("raw", "raw", {}), ("wdspack", "wdspack", {})]
            tries += [
                (f"wdspack, blocks of {n} MiB", "wdspack", {"block": int(n) << 20}) for n in args.blocks.split(",") if n
            ]
            tries += [
                (f"wdspack, prefetch_bytes {n} MiB", "wdspack", {"prefetch_bytes": int(n) << 20})
                for n in args.prefetch.split(",")
                if n
            ]
            tries += [("s3fs.open", "s3fs", {})]
            found: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in tries}
            for _ in range(args.rounds):
                for title, task, settings in tries:
                    found[title].append(run(task, large, options, size, **settings))
            table = Table(title=f"{args.shards} shards of {args.megabytes} MiB, {args.rounds} rounds; medians")
            for column in (
                "",
                "MB/s",
                "of raw",
                "of s3fs.open",
                "CPU s a GB",
                "requests a GB",
                "bytes requested",
                "memory, MB",
            ):
                table.add_column(column, justify="right")
            rate = {title: statistics.median(r["rate"] for r in results) for title, results in found.items()}
            for title, results in found.items():
                last = results[-1]
                table.add_row(
                    title, f"{rate[title]:.0f}", f"{rate[title] / rate['raw']:.2f}",
                    f"{rate[title] / rate['s3fs.open']:.1f}",
                    f"{statistics.median(r['cpu'] for r in results):.2f}",
                    f"{last['requests'] / last['nbytes'] * 1e9:.0f}" if "requests" in last else "",
                    f"{last['bytes'] / last['nbytes']:.3f}" if "bytes" in last else "",
                    f"{max(r['memory'] for r in results):.0f}",
                )  # fmt: skip
            console.print(table)

            paths, tokenizer, total = write_samples(folder, 512, 12)
            urls = server.upload(Path(paths[0]).parent, "samples/")
            cold = run(
                "first_pack",
                [f"s3://{server.bucket}/samples/*.tar"],
                options,
                tokenizer=tokenizer,
                buffer=256,
                workers=2,
            )
            console.print(
                f"first pack of {len(urls)} shards ({total / 1e6:.0f} MB) after {cold['seconds']:.2f} s: "
                + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cold["parts"].items())
                + f"; storage: {cold['storage']}", highlight=False,
            )  # fmt: skip
            for shards, lanes in ((8, 4), (9, 4), (11, 4)):
                used = run("shared", urls, options, tokenizer=tokenizer, shards=shards, lanes=lanes)
                whole = sum(os.path.getsize(path) for path in paths[:shards])
                console.print(f"{shards} shards, {lanes} lanes: {used['nbytes'] / whole:.3f} × their bytes requested")
            proxy.stdin.close()
    return None


if __name__ == "__main__":
    main()
