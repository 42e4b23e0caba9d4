"""Draws the demo's conversations as a dataset that a converter reads, with a tokenizer for them; needs no network.

    python tools/draw_corpus.py corpus --samples 480
    python tools/convert_messages.py corpus/records.jsonl shards/

leaves records.jsonl, images/ and tokenizer/ in corpus/. Some samples are broken on purpose: the converter says which
and why.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from wdspack.demo.corpus import draw_corpus
from wdspack.tokenizer import train_tokenizer


def main(
    folder: Annotated[Path, typer.Argument(help="Where to.")],
    samples: Annotated[int, typer.Option(min=50, help="How many to draw.")] = 480,
    seed: Annotated[int, typer.Option(min=0, help="Of the drawings.")] = 0,
    vocabulary: Annotated[int, typer.Option(min=300, help="Of the tokenizer.")] = 4096,
) -> None:
    """Draws conversations about charts, papers and figures."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    with (folder / "records.jsonl").open("wb") as records:
        for sample in draw_corpus(seed, samples):
            names = [f"images/{sample.key}-{n}.{ending}" for n, (ending, _) in enumerate(sample.images)]
            for name, (_, data) in zip(names, sample.images, strict=True):
                (folder / name).write_bytes(data)
            record = {"id": sample.key, "messages": sample.messages, "images": names}
            line = json.dumps(record, ensure_ascii=False).encode()
            records.write((line[:-17] if sample.broken == "bad_json" else line) + b"\n")
            for message in sample.messages:
                texts += [entry["text"] for entry in message["content"] if entry["type"] == "text"]
    train_tokenizer(texts, vocab_size=vocabulary).save_pretrained(folder / "tokenizer")
    print(f"{samples} samples in {folder / 'records.jsonl'}, a tokenizer in {folder / 'tokenizer'}")


if __name__ == "__main__":
    typer.run(main)
