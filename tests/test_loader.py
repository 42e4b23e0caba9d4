"""The whole job on local shards: conservation, delivery, errors, and what a batch looks like."""

import gc
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
import webdataset as wds
from corpora import broken_picture

import wdspack

LAYOUT = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4)


@pytest.fixture
def config(tokenizer_path):
    def make(urls, **changes):
        return wdspack.DataConfig(
            **{
                "sources": urls, "tokenizer": tokenizer_path, "layout": LAYOUT, "seq_len": 512, "epochs": 1,
                "buffer_size": 16, "max_drop_share": 1.0, **changes,
            }
        )  # fmt: skip

    return make


def read_back(packs, tokenizer):
    """key → what its labels say, from every segment of every pack."""
    said = {}
    for pack in packs:
        starts = pack["cu_seqlens"].tolist()
        for number, (_, key) in enumerate(pack["keys"]):
            labels = pack["labels"][starts[number] : starts[number + 1]]
            assert key not in said, f"{key} came twice"
            said[key] = tokenizer.decode(labels[labels != -100])
    return said


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_is_in_one_pack_or_in_the_ledger(shards, config, workers):
    corpus = shards(counts=[50, 0, 31, 7], broken_image=0.1, bad_json=0.1, words=200)
    loader = wdspack.make_loader(config(corpus.urls, seq_len=256), batch_size=None, num_workers=workers)
    said = read_back(loader, loader.tokenizer)
    total = loader.ledger.total
    assert loader.ledger.unaccounted() == {}
    assert (total.read, total.held) == (88, 0)
    assert total.packed == len(said) == 88 - total.dropped.total()
    assert said.keys() <= corpus.sound
    assert total.dropped.keys() == {"bad_json", "broken_image", "too_long"}
    assert total.dropped["bad_json"] == Counter(corpus.faults.values())["bad_json"]
    assert total.dropped["broken_image"] + total.dropped["too_long"] == 88 - len(said) - total.dropped["bad_json"]
    for key, text in said.items():
        assert text == corpus.answers[key] + "<|im_end|>"


def test_the_fields_of_a_pack(shards, config):
    corpus = shards(counts=[30])
    dataset = wdspack.PackedDataset(config(corpus.urls))
    image_id = dataset.tokenizer.convert_tokens_to_ids("<image>")
    for pack in dataset:
        ids, segments = pack["input_ids"], pack["segment_ids"]
        for name in ("input_ids", "labels", "attention_mask", "position_ids"):
            assert (pack[name].shape, pack[name].dtype) == ((512,), torch.int64)
        assert (segments.shape, segments.dtype) == ((512,), torch.int32)
        real = segments > 0
        assert torch.equal(pack["attention_mask"], real.long())
        assert bool(real[: int(real.sum())].all()), "padding comes last"
        assert bool((pack["labels"][~real] == -100).all())
        assert pack["cu_seqlens"].dtype == torch.int32
        starts = pack["cu_seqlens"].tolist()
        assert starts[0] == 0
        assert starts[-1] == 512
        n = int(segments.max())
        assert len(pack["keys"]) == n == len(pack["images_per_segment"])
        assert len(starts) == n + 1 + bool((~real).any())
        for number, (a, b) in enumerate(pairwise(starts), 1):
            assert pack["position_ids"][a:b].tolist() == list(range(b - a))
            assert set(segments[a:b].tolist()) == ({number} if number <= n else {0})
            assert pack["labels"][a] == -100
        tiles = int(pack["image_grids"][:, 2].sum())
        assert pack["pixel_values"].shape == (tiles, 3, 32, 32)
        assert pack["pixel_values"].dtype == torch.uint8
        assert int((ids == image_id).sum()) == 4 * tiles
        assert len(pack["image_grids"]) == int(pack["images_per_segment"].sum())
        assert isinstance(pack["bookmark"], bytes)


def test_a_batch_is_what_a_model_takes(shards, config):
    corpus = shards(counts=[30])
    packs = list(wdspack.PackedDataset(config(corpus.urls)))
    loader = wdspack.make_loader(config(corpus.urls), batch_size=2)
    for n, batch in enumerate(loader):
        pair = packs[2 * n : 2 * n + 2]
        meta = batch.pop("meta")
        assert set(batch) == {
            "input_ids", "labels", "position_ids", "pixel_values", "cu_seq_lens_q", "cu_seq_lens_k",
            "max_length_q", "max_length_k", "use_cache",
        }  # fmt: skip
        assert batch["use_cache"] is False
        assert type(batch["max_length_q"]) is int
        for row, pack in enumerate(pair):
            for name in ("input_ids", "labels", "position_ids"):
                assert torch.equal(batch[name][row], pack[name])
            assert meta["keys"][row] == pack["keys"]
        pixels = torch.cat([pack["pixel_values"] for pack in pair])
        assert batch["pixel_values"].shape == (1, *pixels.shape)
        torch.testing.assert_close(batch["pixel_values"][0], (pixels / 255 - 0.5) / 0.5)
    assert n == (len(packs) - 1) // 2


def test_pixels_can_be_normalised_later(shards, config):
    corpus = shards(counts=[10])
    for now, later in zip(
        wdspack.make_loader(config(corpus.urls)), wdspack.make_loader(config(corpus.urls), normalize=False), strict=True
    ):
        assert later["pixel_values"].dtype == torch.uint8
        moved = wdspack.normalize(later, "cpu")
        torch.testing.assert_close(moved["pixel_values"], now["pixel_values"])
        assert torch.equal(moved["input_ids"], now["input_ids"])
        with pytest.raises(wdspack.ConfigError, match="normalize=False"):
            wdspack.normalize(now)


def test_a_batch_without_images_has_no_pixels(shards, config):
    corpus = shards(counts=[10], images=0)
    for batch in wdspack.make_loader(config(corpus.urls)):
        assert batch["pixel_values"] is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_costs_its_own_sample_only(shards, config, workers):
    corpus = shards(counts=[60], broken_image=0.3, images=3)
    assert 5 < len(corpus.faults) < 55
    loader = wdspack.make_loader(config(corpus.urls), batch_size=None, num_workers=workers)
    said = read_back(loader, loader.tokenizer)
    assert said.keys() == corpus.sound
    whole = shards(counts=[60], broken_image=0.0, images=3, name="shard2")
    assert loader.ledger.packs == len(list(wdspack.PackedDataset(config(corpus.urls))))
    assert whole.faults == {}


def test_an_emptied_pack_keeps_its_slot_and_gets_a_blank_image(shards, config):
    corpus = shards(counts=[12], broken_image=1.0, images=1, words=3)
    loader = wdspack.make_loader(config(corpus.urls, buffer_size=1, require_image=True, seq_len=96), batch_size=None)
    packs = list(loader)
    emptied = [pack for pack in packs if pack["keys"] == [("", "blank")]]
    assert emptied
    for pack in packs:
        assert len(pack["pixel_values"]) == int(pack["image_grids"][:, 2].sum()) > 0
    assert loader.ledger.packs == len(packs)
    assert loader.ledger.unaccounted() == {}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_whose_samples_are_all_dropped_says_so(shards, config, workers):
    corpus = shards(counts=[9, 9], bad_json=1.0)
    with pytest.raises(wdspack.WdspackError, match=r"every one of the 18 samples was dropped \(bad_json 18\)"):
        list(wdspack.make_loader(config(corpus.urls), num_workers=workers))
    with pytest.raises(wdspack.WdspackError, match=r"whole epoch .*bad_json"):
        next(wdspack.make_loader(config(corpus.urls, epochs=None), num_workers=workers))
    with pytest.raises(wdspack.WdspackError, match="every one of the 18"):
        list(wdspack.PackedDataset(config(corpus.urls)))


def test_shards_without_a_sample_say_so(shards, config):
    corpus = shards(counts=[0, 0])
    with pytest.raises(wdspack.WdspackError, match="no sample"):
        list(wdspack.make_loader(config(corpus.urls)))
    with pytest.raises(wdspack.WdspackError, match="no sample"):
        next(wdspack.make_loader(config(corpus.urls, epochs=None)))


def test_too_many_drops_stop_the_run(shards, config):
    corpus = shards(counts=[1200], images=0, words=2, bad_json=0.1)
    with pytest.raises(wdspack.SampleError, match=r"max_drop_share=0\.05"):
        list(wdspack.make_loader(config(corpus.urls, max_drop_share=0.05)))
    assert len(list(wdspack.make_loader(config(corpus.urls, max_drop_share=0.2)))) > 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fault", ["bad_json", "broken_image"])
def test_on_error_raise_names_the_sample(shards, config, workers, fault):
    corpus = shards(counts=[40], images=2, **{fault: 0.2})
    loader = wdspack.make_loader(config(corpus.urls, on_error="raise"), num_workers=workers)
    with pytest.raises(wdspack.SampleError) as caught:
        list(loader)
    assert caught.value.reason == fault
    assert any(repr(key) in str(caught.value) for key in corpus.faults)
    assert corpus.urls[0] in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_shard_raises_or_is_a_counted_loss(shards, config, workers):
    corpus = shards(counts=[20, 20, 20])
    with open(corpus.urls[1], "r+b") as file:
        file.truncate(file.seek(0, 2) // 2 + 100)
    loader = wdspack.make_loader(config(corpus.urls), num_workers=workers)
    with pytest.raises(wdspack.ShardError, match=r"shard-0001\.tar"):
        list(loader)
    loader = wdspack.make_loader(config(corpus.urls, on_error="skip"), batch_size=None, num_workers=workers)
    said = read_back(loader, loader.tokenizer)
    whole = {key for key in corpus.answers if not 20 <= int(key[1:]) < 40}
    assert said.keys() >= whole
    assert len(said) > 40
    assert loader.ledger.total.shards == {"finished": 2, "lost_truncated": 1}
    assert loader.ledger.unaccounted() == {}


def test_long_samples_are_dropped_or_truncated_at_a_turn(tmp_path, config):
    turns = []
    for n in range(8):
        turns += [{"role": "user", "content": f"Question {n}?"}, {"role": "assistant", "content": f"Answer {n}. " * 8}]
    path = str(tmp_path / "long-0.tar")
    with wds.TarWriter(path) as writer:
        writer.write({"__key__": "long", "json": json.dumps({"messages": turns}).encode()})
        writer.write(
            {
                "__key__": "hopeless",
                "json": json.dumps({"messages": [turns[0], {"role": "assistant", "content": "x " * 900}]}).encode(),
            }
        )
        writer.write({"__key__": "short", "json": json.dumps({"messages": turns[:2]}).encode()})
    dropping = wdspack.make_loader(config(path, seq_len=256), batch_size=None)
    assert read_back(dropping, dropping.tokenizer).keys() == {"short"}
    assert dropping.ledger.total.dropped == {"too_long": 2}
    cutting = wdspack.make_loader(config(path, seq_len=256, on_long="truncate"), batch_size=None)
    said = read_back(cutting, cutting.tokenizer)
    assert said.keys() == {"short", "long"}
    kept = said["long"].count("<|im_end|>")
    assert 1 < kept < 8
    assert said["long"] == "".join(f"Answer {n}. " * 8 + "<|im_end|>" for n in range(kept))
    assert cutting.ledger.total.truncated == 1
    assert cutting.ledger.total.dropped == {"too_long": 1}


def test_image_budgets_are_kept_and_what_exceeds_them_is_counted(shards, config):
    corpus = shards(counts=[60], images=5, words=5)
    loader = wdspack.make_loader(config(corpus.urls, max_images=3, seq_len=2048), batch_size=None)
    packs = list(loader)
    assert max(len(pack["image_grids"]) for pack in packs) == 3
    assert loader.ledger.total.dropped["too_many_images"] > 0
    assert sum(len(pack["keys"]) for pack in packs) + loader.ledger.total.dropped.total() == 60
    loader = wdspack.make_loader(config(corpus.urls, max_tiles=9, seq_len=2048), batch_size=None)
    assert max(len(pack["pixel_values"]) for pack in loader) <= 9
    assert loader.ledger.total.dropped["too_many_tiles"] > 0


def test_iterating_goes_on_after_a_break(shards, config):
    corpus = shards(counts=[60])
    expected = [pack["keys"] for pack in wdspack.PackedDataset(config(corpus.urls))]
    for source in (
        wdspack.make_loader(config(corpus.urls), batch_size=None),
        wdspack.PackedDataset(config(corpus.urls)),
    ):
        keys = []
        for pack in source:
            keys.append(pack["keys"])
            if len(keys) == 2:
                break
        keys += [pack["keys"] for pack in source]
        assert keys == expected
        assert list(source) == [], "a finite run ends once"


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_the_books_of_a_run_with_breaks_are_those_of_one_without(shards, config, kind):
    """Images that failed to decode before a break are not booked a second time after it."""
    corpus = shards(counts=[60], broken_image=0.3, images=1)
    plan = config(corpus.urls, seq_len=256)
    make = wdspack.PackedDataset if kind == "dataset" else lambda plan: wdspack.make_loader(plan, batch_size=None)
    straight = make(plan)
    packs = list(straight)
    assert straight.ledger.total.dropped["broken_image"] > 5
    broken = make(plan)
    for _ in range(len(packs)):
        next(iter(broken))
        if kind == "loader":
            broken.close()
    assert list(broken) == []
    assert broken.ledger == straight.ledger
    assert broken.ledger.unaccounted() == {}


def test_without_shuffle_samples_come_in_order_of_storage(shards, config):
    corpus = shards(counts=[30, 30], images=0)
    packs = list(wdspack.PackedDataset(config(corpus.urls, shuffle=False, buffer_size=1)))
    assert [key for pack in packs for _, key in pack["keys"]] == sorted(corpus.answers)
    packs = list(wdspack.PackedDataset(config(corpus.urls, shuffle=False, buffer_size=20)))
    for pack in packs:
        keys = [key for _, key in pack["keys"]]
        assert keys == sorted(keys), "segments stand in order of arrival"
    firsts = [pack["keys"][0][1] for pack in packs]
    assert firsts == sorted(firsts), "each pack starts from the oldest sample"


def test_a_broken_worker_raises_what_happened(shards, config, tmp_path):
    corpus = shards(counts=[5])
    loader = wdspack.make_loader(config([*corpus.urls, str(tmp_path / "missing.tar")]), num_workers=1)
    with pytest.raises(wdspack.ShardError, match=r"missing\.tar"):
        list(loader)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"num_workers": -1},
        {"prefetch": 0},
        {"decoders": 0},
        {"rank": 1},
        {"rank": 2, "world_size": 2},
    ],
)
def test_bad_arguments_say_so(shards, config, arguments):
    with pytest.raises(wdspack.ConfigError, match=next(iter(arguments))):
        wdspack.make_loader(config(shards(counts=[1]).urls), **arguments)


def test_closing_leaves_no_thread_behind(shards, config):
    before = set(threading.enumerate())

    def only_those_before():
        deadline = time.monotonic() + 10  # multiprocessing's own queue threads take a moment
        while not set(threading.enumerate()) <= before and time.monotonic() < deadline:
            time.sleep(0.01)
        return set(threading.enumerate()) <= before

    loader = wdspack.make_loader(config(shards(counts=[40]).urls, epochs=None), num_workers=1)
    for _ in range(3):
        next(loader)
    loader.close()
    assert only_those_before()
    next(loader)
    del loader
    gc.collect()
    assert only_those_before()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ending", ["", "raise RuntimeError('mine')", "sys.exit(3)"])
def test_the_interpreter_exits_cleanly_with_the_pool_busy(shards, tokenizer_path, workers, ending, tmp_path):
    corpus = shards(counts=[40], size=(900, 900))
    script = tmp_path / "busy.py"
    script.write_text(
        f"""
import sys, wdspack
if __name__ == "__main__":
    config = wdspack.DataConfig(sources={corpus.urls!r}, tokenizer={tokenizer_path!r}, seq_len=2048,
        layout=wdspack.TileLayout(tile=256, max_side=1024, tokens_per_tile=4), buffer_size=16, lanes=2)
    loader = wdspack.make_loader(config, num_workers={workers}, prefetch=4)
    next(loader)
    {ending or "pass"}
"""
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(ending, 1), done.stderr
    last = done.stderr.strip().splitlines()[-1:] if "raise" in ending else []
    assert last == (["RuntimeError: mine"] if "raise" in ending else []), done.stderr
    if "raise" not in ending:
        assert done.stderr == ""


def test_several_sources_come_in_their_shares(shards, config):
    first = shards(counts=[400], images=0, words=3, name="alpha")
    second = shards(counts=[400], images=0, words=30, name="beta")
    sources = [
        wdspack.Source(urls=first.urls, weight=3, name="alpha"),
        wdspack.Source(urls=second.urls, weight=1, name="beta"),
    ]
    loader = wdspack.make_loader(config(sources, epochs=None, buffer_size=8), batch_size=None)
    while loader.ledger.total.read < 3000:
        next(loader)
    counts = loader.ledger.sources
    assert counts["alpha"].read / loader.ledger.total.read == pytest.approx(0.75, abs=0.01)
    by_tokens = wdspack.make_loader(config(sources, epochs=None, buffer_size=8, weigh="tokens"), batch_size=None)
    while by_tokens.ledger.total.read < 3000:
        next(by_tokens)
    counts = by_tokens.ledger.sources
    assert counts["alpha"].tokens / by_tokens.ledger.total.tokens == pytest.approx(0.75, abs=0.01)
    once = wdspack.make_loader(config(sources), batch_size=None)
    said = read_back(once, once.tokenizer)
    assert len(said) == 800


def test_epochs_reshuffle_and_repeat_every_sample(shards, config):
    corpus = shards(counts=[10] * 6, images=0)
    loader = wdspack.make_loader(config(corpus.urls, epochs=3), batch_size=None)
    keys = [key for pack in loader for _, key in pack["keys"]]
    assert Counter(keys) == dict.fromkeys(corpus.answers, 3)
    assert keys[:60] != keys[60:120]


def test_the_order_depends_on_the_seed_alone(shards, config):
    corpus = shards(counts=[30, 30])
    runs = [
        [pack["keys"] for pack in wdspack.PackedDataset(config(corpus.urls, seed=seed, shuffle=shuffle))]
        for seed, shuffle in ((0, True), (0, True), (1, True), (0, False), (1, False))
    ]
    assert runs[0] == runs[1] != runs[2]
    assert runs[3] == runs[4]


def test_gzip_shards_are_the_same_shards(shards, config):
    plain = shards(counts=[20, 20])
    packed = shards(counts=[20, 20], suffix=".tar.gz")
    a, b = (list(wdspack.PackedDataset(config(c.urls))) for c in (plain, packed))
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert torch.equal(left["input_ids"], right["input_ids"])
        assert np.array_equal(left["pixel_values"], right["pixel_values"])


def test_a_run_whose_images_all_fail_to_decode_says_so(tmp_path, config):
    rng = random.Random(0)
    url = str(tmp_path / "broken-0.tar")
    turns = [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "Nothing."}]
    with wds.TarWriter(url) as writer:
        for n in range(8):
            writer.write(
                {"__key__": f"b{n}", "json": json.dumps({"messages": turns}).encode(), "png": broken_picture(rng)}
            )
    for source in (wdspack.make_loader(config(url, require_image=True)), wdspack.PackedDataset(config(url))):
        with pytest.raises(wdspack.WdspackError, match=r"every one of the 8 samples was dropped \(broken_image 8\)"):
            list(source)


def test_closing_while_another_thread_waits_raises_there(shards, config):
    corpus = shards(counts=[900], images=0)
    loader = wdspack.make_loader(config(corpus.urls, buffer_size=5000))
    caught = []

    def consume():
        try:
            next(loader)
        except wdspack.WdspackError as error:
            caught.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.2)
    loader.close()
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_an_ended_loader_says_that_it_gives_nothing_more(shards, config, caplog):
    loader = wdspack.make_loader(config(shards(counts=[5]).urls))
    assert len(list(loader)) >= 1
    assert "epochs=1" not in caplog.text
    assert list(loader) == []
    assert "epochs=1" in caplog.text


def test_label_tokens_are_what_a_summed_loss_is_divided_by(shards, config):
    for batch in wdspack.make_loader(config(shards(counts=[30]).urls), batch_size=2):
        assert batch["meta"]["label_tokens"] == int((batch["labels"] != -100).sum()) > 0
