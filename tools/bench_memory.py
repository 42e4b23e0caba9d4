#!/usr/bin/env python
"""What the samples in the buffer add to the memory of a process that packs.

    python tools/bench_memory.py [--records FOLDER]

A lane with a buffer of 1,024 samples and one with a buffer of 1 are filled in processes of their own; the figure is
the difference of their private memory (USS) once the first pack is out. FOLDER holds records.jsonl and images; without
it the demo's corpus is drawn. Samples are repeated until there are enough.
"""

import argparse
import subprocess
import sys
import tempfile
from itertools import chain, repeat
from pathlib import Path

import wdspack
from wdspack import convert
from wdspack.demo.corpus import draw_corpus
from wdspack.tokenizer import train_tokenizer

SAMPLES = 1600


def private_megabytes() -> float:
    """Memory of this process that no other shares."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


def fill(shards: str, tokenizer: str, buffer_size: int) -> None:
    from wdspack.lane import Lane
    from wdspack.run import resolve

    config = wdspack.DataConfig(
        sources=shards, tokenizer=tokenizer, layout=wdspack.TileLayout(tile=512, max_side=1024), seq_len=16384,
        buffer_size=buffer_size, max_drop_share=1.0,
    )  # fmt: skip
    lane = Lane(resolve(config, lanes=1), 0)
    packed = next(iter(lane))
    samples = [sample for _, sample in lane._packer] + list(packed.samples)
    compressed = sum(len(image.data) for sample in samples for image in sample.images) / 1e6
    print(len(samples), compressed, private_megabytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, help="folder with records.jsonl and images")
    parser.add_argument("--fill", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fill:
        fill(args.fill[0], args.fill[1], int(args.fill[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        drawn = convert.chat_records(args.records) if args.records else ((s.key, s.files()) for s in draw_corpus())
        samples = list(drawn)
        copies = chain.from_iterable(repeat(samples, -(-SAMPLES // len(samples))))
        keyed = ((f"{number:06d}", files) for number, (_, files) in enumerate(copies))
        convert.write_shards(keyed, folder)
        train_tokenizer([files["json"].decode(errors="replace") for _, files in samples]).save_pretrained(folder)
        del samples
        figures = []
        for buffer_size in (1, 1024):
            command = [sys.executable, __file__, "--fill", f"{folder}/*.tar", folder, str(buffer_size)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            held, compressed, private = int(out[0]), float(out[1]), float(out[2])
            figures.append(private)
            print(
                f"buffer_size {buffer_size}: {held:,} samples, {compressed:.1f} MB of images, {private:.0f} MB private"
            )
        print(f"1,024 buffered samples add {figures[1] - figures[0]:.0f} MB")


if __name__ == "__main__":
    main()
