#!/usr/bin/env python
"""What a restore costs near the start of an epoch and near its end: time to the first pack, and bytes read.

    python tools/bench_resume.py [--samples 20000]

One lane over generated shards is run to a tenth and to nine tenths of its epoch and saved there; then it is restored
from either state in turn, several times. Bytes are what the process asked the kernel for while the held samples were
read again, against the held samples' own; what the stream reads ahead of its cursor is not counted.
"""

import argparse
import io
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

import wdspack
from wdspack import convert
from wdspack.bookmark import NBYTES, Bookmark
from wdspack.lane import Lane
from wdspack.run import resolve
from wdspack.tokenizer import train_tokenizer


def samples(count: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """One noisy JPEG (about 40 kB) and two sentences each."""
    rng = random.Random(0)
    pictures = []
    for _ in range(50):
        out = io.BytesIO()
        Image.frombytes("RGB", (80, 60), rng.randbytes(80 * 60 * 3)).resize((320, 240)).save(out, "jpeg", quality=90)
        pictures.append(out.getvalue())
    for number in range(count):
        words = " ".join(str(rng.randrange(1000)) for _ in range(rng.randint(5, 120)))
        turns = [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": words}]},
        ]
        yield f"{number:08d}", {"json": json.dumps({"messages": turns}).encode(), "jpg": rng.choice(pictures)}


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls = convert.write_shards(samples(args.samples), folder, per_shard=500)
        train_tokenizer(str(number) for number in range(1000)).save_pretrained(folder)
        config = wdspack.DataConfig(
            sources=urls, tokenizer=folder, layout=wdspack.TileLayout(tile=256, max_side=512), seq_len=4096, epochs=1
        )
        run = resolve(config, lanes=1)
        marks: dict[str, Bookmark] = {}
        for packed in Lane(run, 0):
            mark = Bookmark.from_bytes(packed.bookmark)
            read = mark.ledger.total.read
            for name, share in (("a tenth", 0.1), ("nine tenths", 0.9)):
                if name not in marks and read >= share * args.samples:
                    marks[name] = mark
        seconds: dict[str, list[float]] = {name: [] for name in marks}
        for _ in range(args.repeats):
            for name, mark in marks.items():
                start, before = time.perf_counter(), bytes_read()
                lane = Lane(run, 0, mark)
                restored = bytes_read() - before
                next(iter(lane))
                seconds[name].append(time.perf_counter() - start)
                if len(seconds[name]) == 1:
                    own = int(mark.held[:, NBYTES].sum())
                    print(
                        f"{name} into the epoch: {len(mark.held):,} held samples of {own / 1e6:.1f} MB, "
                        f"{restored / 1e6:.1f} MB read ({restored / own:.2f} times), state {len(mark.to_text()):,} B"
                    )
        start, end = (statistics.median(values) for values in seconds.values())
        print(
            f"time to the first pack: {start:.2f} s near the start, {end:.2f} s near the end, ratio {end / start:.2f}"
        )


if __name__ == "__main__":
    main()
