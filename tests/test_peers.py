"""The loaders that the benchmark compares with do the same work: every sample once, with the product's tokens."""

import pytest
from bench_pipeline import PEERS as SCRIPT
from bench_pipeline import run
from pipeline_peers import PEERS, Peer


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_delivers_each_sound_sample_once_and_the_products_tokens(name, shards, tokenizer_path, tmp_path):
    if missing := PEERS[name].missing:
        pytest.skip(missing)
    corpus = shards(counts=[5, 8, 7], images=3, broken_image=0.2, bad_json=0.1)
    assert set(corpus.faults.values()) == {"broken_image", "bad_json"}
    settings = {
        "urls": corpus.urls, "tokenizer": tokenizer_path, "samples": 20, "folder": str(tmp_path), "peer": name,
        "prefetch": None,
    }  # fmt: skip
    run("prepare", settings, SCRIPT)
    found = run(name, settings, SCRIPT)
    assert sorted(found["keys"]) == sorted(corpus.sound)
    assert found["sizes"] == run("product", settings)["sizes"]
    assert found["samples"] == 20
    assert 0 < found["fill"] <= 1


def test_a_peer_that_is_not_there_says_what_to_install():
    assert "pip install 'wdspack[peers]'" in Peer("megatron.no_such_module", *[lambda *_: None] * 2).missing
    assert PEERS["webdataset"].missing == ""
