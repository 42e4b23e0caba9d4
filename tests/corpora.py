"""Small corpora for tests: every text is unique, so a pack can be read back and its samples recognised."""

import hashlib
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from PIL import Image

WORDS = [
    "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heron", "iris", "jade", "kelp", "lotus", "maple",
    "north", "olive", "pearl", "quartz",
]  # fmt: skip


def training_texts() -> Iterator[str]:
    rng = random.Random(0)
    for _ in range(300):
        yield " ".join(rng.choices(WORDS, k=12)) + f" number {rng.randrange(10000)}. What is it? It is this."


def picture(rng: random.Random, kind: str = "png", size: tuple[int, int] | None = None) -> bytes:
    """A flat colour with a bar: small, and different for every draw."""
    width, height = size or (rng.randint(8, 90), rng.randint(8, 90))
    image = Image.new("RGB", (width, height), tuple(rng.randrange(256) for _ in range(3)))
    image.paste(tuple(rng.randrange(256) for _ in range(3)), (0, 0, max(1, width // 2), max(1, height // 3)))
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def broken_picture(rng: random.Random) -> bytes:
    """A PNG whose header is sound and whose pixels end early: found out only by decoding."""
    noise = Image.frombytes("RGB", (64, 64), rng.randbytes(64 * 64 * 3))
    out = io.BytesIO()
    noise.save(out, "png")
    return out.getvalue()[:3000]


def digest(pack: Mapping[str, Any], *, urls: bool = True) -> str:
    """Of every tensor, and where each segment came from; without `urls`, from whichever folder or bucket."""
    keys = [(url if urls else url.rpartition("/")[2], key) for url, key in pack["keys"]]
    total = hashlib.sha256(repr(keys).encode())
    for name, value in sorted(pack.items()):
        if isinstance(value, torch.Tensor):
            total.update(f"{name} {tuple(value.shape)} {value.dtype}".encode() + value.numpy().tobytes())
    return total.hexdigest()


class Shards:
    """Shards of generated samples under a folder.

    counts: samples in each shard. images: most images in a sample. words: most words in an answer. broken_image,
    bad_json: share of samples with either fault. Samples are called s000000, s000001, … across the shards;
    `answers[key]` is what the assistant says in it, `faults[key]` what is wrong with it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        counts: Sequence[int],
        seed: int = 0,
        images: int = 2,
        words: int = 40,
        broken_image: float = 0.0,
        bad_json: float = 0.0,
        name: str = "shard",
        suffix: str = ".tar",
        size: tuple[int, int] | None = None,
    ) -> None:
        rng = random.Random(f"{name}/{seed}")
        self.answers: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self.urls: list[str] = []
        number = 0
        for shard, count in enumerate(counts):
            path = folder / f"{name}-{shard:04d}{suffix}"
            self.urls.append(str(path))
            with wds.TarWriter(str(path), mtime=0) as writer:
                for _ in range(count):
                    key = f"{name[0]}{number:06d}"
                    number += 1
                    n = rng.randint(0, images)
                    answer = f"{key} " + " ".join(rng.choices(WORDS, k=rng.randint(1, words)))
                    content = [{"type": "image"}] * n + [{"type": "text", "text": f"What is {key}?"}]
                    chat = {
                        "messages": [
                            {"role": "user", "content": content},
                            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
                        ]
                    }
                    sample: dict[str, object] = {"__key__": key, "json": json.dumps(chat).encode()}
                    for image in range(n):
                        sample[f"{image}.png"] = picture(rng, size=size)
                    if rng.random() < bad_json:
                        sample["json"] = b'{"messages": ['
                        self.faults[key] = "bad_json"
                    elif n and rng.random() < broken_image:
                        sample["0.png"] = broken_picture(rng)
                        self.faults[key] = "broken_image"
                    self.answers[key] = answer
                    writer.write(sample)

    @property
    def sound(self) -> set[str]:
        return self.answers.keys() - self.faults.keys()
