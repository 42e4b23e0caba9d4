"""The real samples of the shared corpus, streamed, packed, conserved, and fed to a model."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from test_model import LAYOUT, tiny_smolvlm

import wdspack
from wdspack import convert

HURT = 25  # every so manieth sample


@pytest.fixture(scope="module")
def corpus(shared: Path, tmp_path_factory: pytest.TempPathFactory):
    """Shards of the corpus, some samples damaged, one shard cut; what each assistant says; what is damaged, and how."""
    folder = tmp_path_factory.mktemp("corpus")
    answers: dict[str, list[str]] = {}
    hurt: dict[str, str] = {}

    def samples():
        for number, (key, files) in enumerate(convert.chat_records(shared / "data/corpus")):
            files = dict(files)
            turns = json.loads(files["json"])["messages"]
            answers[key] = [
                "".join(entry.get("text", "") for entry in turn["content"])
                for turn in turns
                if turn["role"] == "assistant"
            ]
            images = [name for name in files if name != "json"]
            if number % HURT == 0:
                files["json"] = files["json"][:-5]
                hurt[key] = "bad_json"
            elif number % HURT == 7 and images:
                files[images[-1]] = files[images[-1]][: len(files[images[-1]]) // 2]
                hurt[key] = "broken_image"
            elif number % HURT == 13 and images:
                files[images[0]] = b""
                hurt[key] = "broken_image"
            yield key, files

    urls = convert.write_shards(samples(), folder, per_shard=50)
    with open(urls[3], "r+b") as shard:
        shard.truncate(Path(urls[3]).stat().st_size - 20_000)
    return urls, answers, hurt


@pytest.mark.parametrize("name", ["smollm2", "qwen3"])
def test_every_sample_is_in_one_pack_or_in_the_ledger_and_reads_back(corpus, shared, name):
    urls, answers, hurt = corpus
    config = wdspack.DataConfig(
        sources=urls, tokenizer=str(shared / "tokenizers" / name), layout=LAYOUT, seq_len=4096, max_images=30,
        epochs=1, lanes=2, on_error="skip", max_drop_share=1.0, buffer_size=128,
    )  # fmt: skip
    loader = wdspack.make_loader(config, batch_size=None, num_workers=2)
    tokenizer = loader.tokenizer
    end = tokenizer.eos_token
    seen: Counter[str] = Counter()
    for pack in loader:
        starts = pack["cu_seqlens"].tolist()
        for number, (_, key) in enumerate(pack["keys"]):
            seen[key] += 1
            labels = pack["labels"][starts[number] : starts[number + 1]]
            said = tokenizer.decode(labels[labels != -100])
            expected = "".join(tokenizer.decode(tokenizer.encode(text)) + end for text in answers[key])
            assert said == expected, key
    total = loader.ledger.total
    assert loader.ledger.unaccounted() == {}
    assert total.held == 0
    assert max(seen.values()) == 1
    assert total.packed == len(seen)
    assert not seen.keys() & hurt.keys()
    assert total.shards["lost_truncated"] == 1
    lost = len(answers) - total.read
    assert 0 < lost < 10, "what stood in the cut part of the shard"
    assert set(total.dropped) <= {"bad_json", "broken_image", "too_long", "too_many_images"}
    assert total.dropped["bad_json"] <= Counter(hurt.values())["bad_json"]
    assert total.packed + total.dropped.total() + lost == len(answers)
    assert total.packed > 250


def test_a_real_model_takes_them(corpus, shared):
    urls, _, _ = corpus
    config = wdspack.DataConfig(
        sources=urls[:2], tokenizer=str(shared / "tokenizers/smollm2"), layout=LAYOUT, seq_len=1024, epochs=1,
        max_drop_share=1.0, buffer_size=64,
    )  # fmt: skip
    loader = wdspack.make_loader(config, batch_size=2)
    model = tiny_smolvlm(loader, "sdpa")
    for _ in range(2):
        batch = next(loader)
        assert len(batch.pop("meta")["keys"]) == 2
        loss = model(**batch).loss
        loss.backward()
        assert torch.isfinite(loss)
    loader.close()
