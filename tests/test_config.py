import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdspack

LAYOUT = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4)


def config(**changes):
    return wdspack.DataConfig(**{"sources": "a.tar", "tokenizer": "t", "layout": LAYOUT, **changes})


def test_defaults_and_sources_take_every_form():
    assert (config().seq_len, config().buffer_size, config().epochs, config().on_long) == (4096, 1024, None, "drop")
    for given_, names in (
        ("s3://b/llava-{0000..0511}.tar", ["llava"]),
        (Path("x/y.tar"), ["y"]),
        (["a.tar", "b.tar"], ["source0"]),
        (["x/docs-0000.tar", "x/docs-0001.tar", "y/docs-0010.tar"], ["docs"]),
        ([wdspack.Source(urls="x/a.tar"), "y/a.tar"], ["a", "a-1"]),
        (wdspack.Source(urls=["pq-1.tar", "pq-2.tar"]), ["pq"]),
        ([wdspack.Source(urls="*.tar", name="mine"), "b.tar"], ["mine", "b"]),
        ("*.tar", ["source0"]),
    ):
        assert [source.name for source in config(sources=given_).source_list] == names


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seq_len": 0}, "seq_len=0"),
        ({"seq_len": 4096.0}, "whole number"),
        ({"seq_len": True}, "whole number"),
        ({"max_images": -1}, "max_images=-1"),
        ({"lanes": 0}, "lanes=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"seed": -1}, "seed=-1"),
        ({"balance": "pixels"}, "'images', 'tiles'"),
        ({"on_long": "cut"}, "'drop', 'truncate'"),
        ({"on_error": "ignore"}, "'skip_samples', 'skip', 'raise'"),
        ({"max_drop_share": 1.5}, "at most 1"),
        ({"shuffle": 1}, "True or False"),
        ({"layout": "tile"}, "TileLayout"),
        ({"tokenizer": None}, "tokenizer=None"),
        ({"sources": []}, "at least one"),
        ({"sources": 3}, "sources=3"),
        ({"sources": [wdspack.Source(urls="a", name="x"), wdspack.Source(urls="b", name="x")]}, "'x'"),
    ],
)
def test_a_bad_setting_says_what_was_given_and_what_is_allowed(changes, says):
    with pytest.raises(wdspack.ConfigError) as caught:
        config(**changes)
    assert says in str(caught.value)


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "1", True])
def test_a_weight_is_a_positive_number(weight):
    with pytest.raises(wdspack.ConfigError, match=r"Source\.weight"):
        wdspack.Source(urls="a.tar", weight=weight)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"urls": None}, "Source.urls=None"),
        ({"urls": 3}, "Source.urls=3"),
        ({"urls": [""]}, "empty"),
        ({"urls": "a", "strict_end": "no"}, "True or False"),
        ({"urls": "a", "caption_prompt": 5}, "a string"),
        ({"urls": "a", "storage_options": "x"}, "a mapping"),
    ],
)
def test_a_sources_fields_are_checked(fields, says):
    with pytest.raises(wdspack.ConfigError) as caught:
        wdspack.Source(**fields)
    assert says in str(caught.value)


def test_numbers_of_numpy_are_numbers():
    made = config(
        seq_len=np.int64(512), max_drop_share=np.float32(0.5), sources=wdspack.Source(urls="a", weight=np.float32(2))
    )
    assert made == config(seq_len=512, max_drop_share=0.5, sources=wdspack.Source(urls="a", weight=2))
    assert type(made.seq_len) is int


def test_a_config_is_frozen_and_survives_pickling():
    with pytest.raises(AttributeError):
        config().seq_len = 1
    assert pickle.loads(pickle.dumps(config())) == config()
    assert config().replace(seq_len=8).seq_len == 8
    with pytest.raises(wdspack.ConfigError):
        config().replace(seq_len=0)


def test_yaml_gives_the_same_config(tmp_path):
    (tmp_path / "data.yaml").write_text(
        """
sources:
  - urls: s3://bucket/llava-{0000..0511}.tar
    weight: 2
    storage_options: {anon: true}
  - local/*.tar
tokenizer: some/path
layout: {type: tile, tile: 32, max_side: 64, tokens_per_tile: 4}
seq_len: 2048
max_images: 18
epochs: 1
"""
    )
    assert wdspack.load_config(tmp_path / "data.yaml") == config(
        sources=[
            wdspack.Source(urls="s3://bucket/llava-{0000..0511}.tar", weight=2, storage_options={"anon": True}),
            "local/*.tar",
        ],
        tokenizer="some/path",
        seq_len=2048,
        max_images=18,
        epochs=1,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sources: [", "not valid YAML"),
        ("- a", "must be a mapping"),
        ("sources: a.tar\ntokenizer: t", "needs layout"),
        ("sources: a.tar\ntokenizer: t\nlayout: {type: hexagon}", "tile, fixed, native"),
        ("sources: a.tar\ntokenizer: t\nlayout: {type: tile, side: 3}", "unknown side"),
        ("sources: a.tar\ntokenizer: t\nlayout: {type: fixed}\nseqlen: 5", "unknown seqlen"),
        ("sources: [{url: a.tar}]\ntokenizer: t\nlayout: {type: fixed}", "sources[0]: unknown url"),
    ],
)
def test_bad_yaml_says_where(tmp_path, text, says):
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(wdspack.ConfigError) as caught:
        wdspack.load_config(tmp_path / "data.yaml")
    assert says in str(caught.value)
    assert "data.yaml" in str(caught.value)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(wdspack.ConfigError, match="cannot be read"):
        wdspack.load_config(tmp_path / "none.yaml")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    )
)
def test_any_yaml_gives_a_config_error_or_a_config(tmp_path_factory, value):
    import yaml

    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(yaml.safe_dump(value))
    with pytest.raises(wdspack.ConfigError):
        wdspack.load_config(path)


def test_everything_exported_is_there():
    for name in wdspack.__all__:
        assert getattr(wdspack, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = wdspack.nothing


def test_importing_is_cheap():
    import subprocess
    import sys

    code = "import sys, wdspack; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
