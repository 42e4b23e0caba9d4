#!/usr/bin/env python
"""How fast samples become shards, against Python's `tarfile` writing the same bytes, and with two workers.

    python tools/bench_convert.py [--samples 20000] [--repeats 5]

The dataset is parquet with embedded JPEGs, carried unchanged. `tarfile` is given the samples in memory, on one core;
conversion reads, checks and rewrites them. Each repeat does all three in turn; ratios are of one repeat, so that a
busy machine hurts both sides. Two workers are compared with one twice: by their rates in the second half, when both
have started, and by whole runs, in which the second process imports what it needs for about half a second of CPU.
"""

import argparse
import io
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from wdspack.convert import LocalExecutor, Options, Record, convert
from wdspack.convert.readers import ParquetReader

PER_SHARD = 250


def make_dataset(path: Path, samples: int) -> None:
    """Rows as in the Cauldron: an image of about 5 kB, and one question with its answer."""
    rng = random.Random(0)
    pictures = []
    for _ in range(64):
        out = io.BytesIO()
        Image.frombytes("RGB", (48, 48), rng.randbytes(48 * 48 * 3)).save(out, "JPEG", quality=90)
        pictures.append(out.getvalue())
    rows = [
        {
            "images": [{"bytes": pictures[number % 64], "path": None}],
            "texts": [
                {"user": f"What is picture {number}?", "assistant": "Noise, " * rng.randint(1, 20), "source": "bench"}
            ],
        }
        for number in range(samples)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1000)


def by_tarfile(samples: list[dict[str, bytes]], folder: str) -> None:
    os.makedirs(folder)
    for first in range(0, len(samples), PER_SHARD):
        with tarfile.open(f"{folder}/shard-{first // PER_SHARD:06d}.tar", "w") as tar:
            for number in range(first, min(first + PER_SHARD, len(samples))):
                for extension, data in sorted(samples[number].items()):
                    member = tarfile.TarInfo(f"{number:09d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def convert_by(reader: ParquetReader, workers: int, rates: list[float]) -> Callable[[str], object]:
    """A conversion that also tells its rate in the second half, when all workers have started."""

    def work(folder: str) -> None:
        seen: list[tuple[float, int]] = []
        convert(
            reader, folder, Options(per_shard=PER_SHARD), executor=LocalExecutor(workers),
            progress=lambda _, done, __: seen.append((time.perf_counter(), done)),
        )  # fmt: skip
        (began, before), (ended, after) = seen[len(seen) // 2], seen[-1]
        rates.append((after - before) / (ended - began))

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parquet = Path(folder, "rows.parquet")
        make_dataset(parquet, args.samples)
        reader = ParquetReader(urls=str(parquet))
        rows = (row for part in reader.parts() for row in reader.read(part, 0, part.rows))
        samples = [dict(row.files) for row in rows if isinstance(row, Record)]
        one_rates: list[float] = []
        two_rates: list[float] = []
        ways = {
            "tarfile": lambda out: by_tarfile(samples, out),
            "one worker": convert_by(reader, 1, one_rates),
            "two workers": convert_by(reader, 2, two_rates),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(args.repeats):
            for name, work in ways.items():
                began = time.perf_counter()
                work(f"{folder}/{name}-{repeat}")
                times[name].append(time.perf_counter() - began)
        written = [Path(folder, f"{name}-0", "shard-000000.tar").read_bytes() for name in ways]
        assert written[0] == written[1] == written[2], "they write the same"
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        print(f"{name:<12} {middle:6.2f} s ({spread}), {args.samples / middle:,.0f} samples/s")
    compare("one worker's time over tarfile's", times["one worker"], times["tarfile"])
    compare("two workers over one: rate in the second half", two_rates, one_rates)
    compare("two workers over one: whole runs", times["one worker"], times["two workers"])


def compare(what: str, these: list[float], those: list[float]) -> None:
    ratios = [this / that for this, that in zip(these, those, strict=True)]
    print(f"{what}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
