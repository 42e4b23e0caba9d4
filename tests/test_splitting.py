"""Ranks, workers, lanes and resuming: the sequence of packs is one and the same, however it is shared and cut."""

import json
from itertools import islice

import pytest
from corpora import Shards, digest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wdspack

LAYOUT = wdspack.TileLayout(tile=32, max_side=32, tokens_per_tile=4)


def loaders(config, world, workers=0, states=None):
    made = [
        wdspack.make_loader(config, batch_size=None, num_workers=workers, rank=rank, world_size=world)
        for rank in range(world)
    ]
    for loader in made if states else ():
        loader.load_state_dict(states)
    return made


def lane_sequences(config, world, workers=0):
    """lane → digests of its packs, for a finite run."""
    found: dict[int, list[str]] = {}
    for loader in loaders(config, world, workers):
        for pack in loader:
            lane = wdspack.bookmark.Bookmark.from_bytes(pack["bookmark"]).lane
            found.setdefault(lane, []).append(digest(pack))
    return found


@pytest.fixture
def config(tokenizer_path):
    def make(urls, **changes):
        return wdspack.DataConfig(
            **{
                "sources": urls, "tokenizer": tokenizer_path, "layout": LAYOUT, "seq_len": 256, "buffer_size": 8,
                "max_drop_share": 1.0, **changes,
            }
        )  # fmt: skip

    return make


SHAPES = [(1, 0), (1, 2), (2, 3), (3, 4), (4, 1), (8, 3), (24, 1)]


def test_the_global_sequence_is_the_same_for_every_shape(shards, config):
    corpus = shards(counts=[40] * 30, words=10)
    endless = config(corpus.urls, lanes=24)
    rounds = 4
    sequences = []
    for world, workers in SHAPES:
        by_rank = []
        for loader in loaders(endless, world, workers):
            by_rank.append([digest(pack) for pack in islice(loader, rounds * 24 // world)])
            loader.close()
        sequences.append([by_rank[slot % world][slot // world] for slot in range(rounds * 24)])
    for shape, sequence in zip(SHAPES, sequences, strict=True):
        assert sequence == sequences[0], shape


def test_a_finite_run_gives_every_sample_once_for_every_shape(shards, config):
    # one shard far longer, one empty, fewer shards than lanes
    corpus = shards(counts=[150, 3, 0, 20, 8], words=10)
    finite = config(corpus.urls, lanes=12, epochs=1)
    expected = lane_sequences(finite, 1)
    for world, workers in [(1, 2), (2, 3), (3, 4), (4, 1), (12, 0)]:
        assert lane_sequences(finite, world, workers) == expected
    keys = [key for loader in loaders(finite, 4) for pack in loader for _, key in pack["keys"]]
    assert sorted(keys) == sorted(corpus.answers)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_gives_the_same_packs(shards, config, method):
    corpus = shards(counts=[20, 20])
    finite = config(corpus.urls, lanes=2, epochs=1)
    expected = [digest(pack) for pack in wdspack.make_loader(finite, batch_size=None)]
    loader = wdspack.make_loader(finite, batch_size=None, num_workers=2, multiprocessing_context=method)
    assert [digest(pack) for pack in loader] == expected


def continued(config, before, after, stop):
    """Slots of a run cut after `stop` steps on (world, workers) `before` and continued on `after`, as one list."""
    world, workers = before
    first = loaders(config, world, workers)
    taken = [list(islice(map(digest, loader), stop)) for loader in first]
    assert len({len(packs) for packs in taken}) == 1
    states = [json.loads(json.dumps(loader.state_dict())) for loader in first]
    for loader in first:
        loader.close()
    state = wdspack.merge_states(states)
    head = [taken[slot % world][slot // world] for slot in range(stop * world)]
    return head, loaders(config, *after, states=state), state


def test_resuming_on_another_shape_goes_on_with_the_very_next_pack(shards, config):
    corpus = shards(counts=[40] * 13, broken_image=0.05, bad_json=0.05, words=10)
    endless = config(corpus.urls, lanes=12)
    straight = [digest(pack) for pack in islice(wdspack.make_loader(endless, batch_size=None), 120)]
    for before, after, stop in [((1, 2), (2, 3), 30), ((4, 1), (3, 2), 7), ((3, 0), (1, 4), 11), ((2, 2), (12, 0), 1)]:
        head, resumed, _ = continued(endless, before, after, stop)
        world = after[0]
        tail = [[digest(pack) for pack in islice(loader, 24 // world)] for loader in resumed]
        for loader in resumed:
            loader.close()
        sequence = head + [tail[n % world][n // world] for n in range(24)]
        assert sequence == straight[: len(sequence)], (before, after, stop)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_resuming_at_every_pack_gives_the_same_sequence(tmp_path_factory, config, data):
    """Random corpora, finite and endless, one source or two, damaged samples: restored at every single pack."""
    draw = data.draw
    folder = tmp_path_factory.mktemp("random")
    count = st.integers(0, 9)
    sources = [
        wdspack.Source(
            urls=Shards(
                folder, counts=[*draw(st.lists(count, min_size=1, max_size=5)), 6], words=30,
                bad_json=0.1, broken_image=0.1, name=name, suffix=draw(st.sampled_from([".tar", ".tar.gz"])),
            ).urls,
            weight=draw(st.sampled_from([1, 2.5])),
            name=name,
        )
        for name in draw(st.sampled_from([["alpha"], ["alpha", "beta"]]))
    ]  # fmt: skip
    lanes = draw(st.sampled_from([1, 2, 4]))
    plan = config(
        sources,
        lanes=lanes,
        epochs=draw(st.sampled_from([1, 2])),
        buffer_size=draw(st.sampled_from([1, 3, 8])),
        shuffle=draw(st.booleans()),
        weigh=draw(st.sampled_from(["samples", "tokens"])),
        seq_len=draw(st.sampled_from([64, 128])),
        require_image=draw(st.booleans()),
    )
    loader = wdspack.make_loader(plan, batch_size=None)
    straight, states = [], [loader.state_dict()]
    for pack in loader:
        straight.append(digest(pack))
        states.append(json.loads(json.dumps(loader.state_dict())))
    ledger = loader.ledger
    assert ledger.unaccounted() == {}
    assert ledger.total.held == 0
    shapes = [loaders(plan, world) for world in (1, 2, 4) if lanes % world == 0]
    for stop in range(len(straight) + 1):
        resumed = draw(st.sampled_from(shapes))
        for again in resumed:
            again.load_state_dict(states[stop])
        tails = [[digest(pack) for pack in again] for again in resumed]
        assert sorted(d for tail in tails for d in tail) == sorted(straight[stop:])
        if len(resumed) == 1:
            assert tails[0] == straight[stop:]
            assert resumed[0].ledger == ledger


def test_restoring_gzip_shards_replays_them_and_says_so(shards, config, caplog):
    corpus = shards(counts=[60], suffix=".tar.gz")
    loader = wdspack.make_loader(config(corpus.urls, epochs=1), batch_size=None, num_workers=0)
    head = [digest(next(loader)) for _ in range(3)]
    state = loader.state_dict()
    rest = list(map(digest, loader))
    assert "gzip" not in caplog.text
    loader.load_state_dict(state)
    assert list(map(digest, loader)) == rest
    assert head
    assert "shard-0000.tar.gz is gzip" in caplog.text


def test_a_state_fits_into_32_kilobytes_a_lane(shards, config):
    corpus = shards(counts=[1500, 1500], images=0, words=6)
    loader = wdspack.make_loader(config(corpus.urls, buffer_size=1024, lanes=2), batch_size=None)
    for _ in range(20):
        next(loader)
    state = loader.state_dict()
    assert set(state["bookmarks"]) == {"0", "1"}
    for text in state["bookmarks"].values():
        assert len(json.dumps(text)) < 32 * 1024
    assert loader.ledger.total.held > 2 * 900


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"seq_len": 128}, ["seq_len: saved 256, now 128"]),
        ({"seed": 7}, ["seed"]),
        ({"buffer_size": 9}, ["buffer_size"]),
        ({"max_images": 2}, ["max_images"]),
        ({"layout": wdspack.TileLayout(tile=64, max_side=64, tokens_per_tile=4)}, ["layout.tile"]),
        ({"lanes": 8}, ["lanes: saved 4, now 8"]),
        ({"seed": 7, "shuffle": False}, ["seed", "shuffle"]),
    ],
)
def test_a_state_of_another_run_is_refused_by_name(shards, config, changes, names):
    corpus = shards(counts=[20] * 4)
    loader = wdspack.make_loader(config(corpus.urls, lanes=4), batch_size=None)
    next(loader)
    state = loader.state_dict()
    other = wdspack.make_loader(config(corpus.urls, **{"lanes": 4, **changes}), batch_size=None)
    with pytest.raises(wdspack.ResumeError) as caught:
        other.load_state_dict(state)
    for name in names:
        assert name in str(caught.value)


def test_other_shards_or_tokenizers_are_refused_and_workers_are_not(shards, config, tokenizer_path):
    from transformers import AutoTokenizer

    corpus = shards(counts=[20] * 4)
    plan = config(corpus.urls, lanes=4)
    loader = wdspack.make_loader(plan, batch_size=None)
    next(loader)
    state = loader.state_dict()
    with pytest.raises(wdspack.ResumeError, match=r"sources\.shard.*shards"):
        wdspack.make_loader(plan.replace(sources=corpus.urls[:3])).load_state_dict(state)
    changed = AutoTokenizer.from_pretrained(tokenizer_path)
    changed.chat_template = changed.chat_template + "\n"
    with pytest.raises(wdspack.ResumeError, match="tokenizer"):
        wdspack.make_loader(plan.replace(tokenizer=changed)).load_state_dict(state)
    for same in (plan.replace(max_drop_share=0.5), plan.replace(on_error="skip")):
        again = wdspack.make_loader(same, batch_size=3, num_workers=2, prefetch=1, prefetch_factor=1)
        again.load_state_dict(state)
        assert next(again)["input_ids"].shape == (3, 256)
        again.close()


def test_missing_lanes_are_named_and_states_of_other_steps_not_merged(shards, config):
    corpus = shards(counts=[20] * 4)
    plan = config(corpus.urls, lanes=4)
    ranks = loaders(plan, 2)
    for loader in ranks:
        next(loader)
    states = [loader.state_dict() for loader in ranks]
    with pytest.raises(wdspack.ResumeError, match="lanes 1, 3"):
        wdspack.make_loader(plan).load_state_dict(states[0])
    ranks[0].load_state_dict(states[0])  # its own lanes are all there
    with pytest.raises(wdspack.ResumeError, match="lanes 0, 2 again"):
        wdspack.merge_states([states[0], states[0]])
    next(ranks[1])
    with pytest.raises(wdspack.ResumeError, match="same step"):
        wdspack.merge_states([states[0], ranks[1].state_dict()])
    with pytest.raises(wdspack.ResumeError, match="no states"):
        wdspack.merge_states([])
    for nonsense in ({}, {"format": 99}, None, {**states[0], "bookmarks": {"0": "x"}}):
        with pytest.raises(wdspack.ResumeError):
            ranks[0].load_state_dict(nonsense)


def test_lanes_of_none_are_taken_from_the_state(shards, config):
    corpus = shards(counts=[20] * 4)
    loader = wdspack.make_loader(config(corpus.urls, lanes=4), batch_size=None)
    head = [digest(next(loader)) for _ in range(3)]
    state = loader.state_dict()
    again = wdspack.make_loader(config(corpus.urls), batch_size=None)
    again.load_state_dict(state)
    straight = [digest(pack) for pack in islice(wdspack.make_loader(config(corpus.urls, lanes=4), batch_size=None), 8)]
    assert head + [digest(next(again)) for _ in range(5)] == straight


@pytest.mark.parametrize(
    ("lanes", "world", "workers", "near"), [(8, 3, 4, "12 or 24"), (30, 4, 2, "24 or 32"), (1, 2, 0, "2 or 4")]
)
def test_wrong_lanes_name_the_nearest_right_ones(shards, config, lanes, world, workers, near):
    corpus = shards(counts=[5])
    with pytest.raises(wdspack.ConfigError) as caught:
        wdspack.make_loader(config(corpus.urls, lanes=lanes), num_workers=workers, rank=0, world_size=world)
    assert f"use lanes={near}" in str(caught.value)
    assert f"lanes={lanes}" in str(caught.value)


def test_rank_and_world_size_come_from_the_launcher(shards, config, monkeypatch):
    corpus = shards(counts=[20] * 4)
    plan = config(corpus.urls, lanes=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    from_env = wdspack.make_loader(plan, batch_size=None)
    assert (from_env.rank, from_env.world_size) == (1, 2)
    given_ = wdspack.make_loader(plan, batch_size=None, rank=1, world_size=2)
    assert digest(next(from_env)) == digest(next(given_))
    assert wdspack.PackedDataset(plan).rank == 1
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(wdspack.ConfigError, match="RANK='one'"):
        wdspack.make_loader(plan)


def test_the_packed_dataset_in_dataloaders(shards, config):
    from torch.utils.data import DataLoader

    corpus = shards(counts=[20] * 6)
    plan = config(corpus.urls, lanes=6)
    expected = [digest(pack) for pack in islice(wdspack.make_loader(plan, batch_size=None), 18)]
    for workers in (0, 2, 3):
        packs = DataLoader(wdspack.PackedDataset(plan), batch_size=None, num_workers=workers)
        assert [digest(pack) for pack in islice(packs, 18)] == expected


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_exactly(shards, config, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    corpus = shards(counts=[20] * 6)
    plan = config(corpus.urls, lanes=2)
    expected = [digest(pack) for pack in islice(wdspack.make_loader(plan, batch_size=None), 16)]

    def make():
        return stateful.StatefulDataLoader(wdspack.PackedDataset(plan), batch_size=None, num_workers=workers)

    loader = make()
    stream = iter(loader)
    head = [digest(next(stream)) for _ in range(7)]
    state = loader.state_dict()
    del stream
    again = make()
    again.load_state_dict(state)
    assert head + [digest(pack) for pack in islice(again, 9)] == expected


def test_a_replaced_shard_is_noticed_on_resuming(shards, config):
    corpus = shards(counts=[60], images=0)
    loader = wdspack.make_loader(config(corpus.urls, epochs=1), batch_size=None)
    next(loader)
    state = loader.state_dict()
    loader.close()
    shards(counts=[60], images=0, seed=1)  # same names, other samples
    again = wdspack.make_loader(config(corpus.urls, epochs=1), batch_size=None)
    again.load_state_dict(state)
    with pytest.raises(wdspack.ResumeError, match=r"replaced|as it was"):
        list(again)


def test_a_dataset_that_raised_goes_on_at_the_pack_it_could_not_give(shards, config):
    corpus = shards(counts=[30, 30], broken_image=0.1, images=1)
    dataset = wdspack.PackedDataset(config(corpus.urls, lanes=2, epochs=1, on_error="raise"))
    packs = []
    with pytest.raises(wdspack.SampleError):
        packs.extend(dataset)
    assert dataset.state_dict()["slot"] == len(packs)
    with pytest.raises(wdspack.SampleError):
        next(iter(dataset))
    assert dataset.state_dict()["slot"] == len(packs)
