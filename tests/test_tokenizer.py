"""Loading never changes what it is given; a digest names contents; the small tokenizer is lossless and repeatable."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from wdspack.errors import ConfigError
from wdspack.tokenizer import load_tokenizer, pad_id, tokenizer_digest, train_tokenizer

TEXTS = ["Total: 42.50\n\nThe user pays; the assistant counts.\n", "A chart of three shops, four years."] * 5
SMALL = train_tokenizer(TEXTS, vocab_size=400)


class Layout:
    special_tokens = ("<image>", "<|im_end|>", "<fake>")


def test_adds_what_the_layout_needs_to_a_copy() -> None:
    before = tokenizer_digest(SMALL)
    loaded = load_tokenizer(SMALL, Layout())
    assert tokenizer_digest(SMALL) == before
    assert len(loaded) == len(SMALL) + 2
    assert loaded.tokenize("a<image><fake>") == ["a", "<image>", "<fake>"]
    assert loaded.decode(loaded("a<image>b")["input_ids"], skip_special_tokens=True) == "ab"
    assert tokenizer_digest(load_tokenizer(loaded, Layout())) == tokenizer_digest(loaded)


def test_loads_from_a_folder(tmp_path: Path) -> None:
    SMALL.save_pretrained(tmp_path)
    for name in (tmp_path, str(tmp_path)):
        assert tokenizer_digest(load_tokenizer(name, Layout())) == tokenizer_digest(load_tokenizer(SMALL, Layout()))


@pytest.mark.parametrize(("given_", "words"), [("/no/such/folder", "cannot be loaded"), (7, "is a int")])
def test_says_what_cannot_be_loaded(given_: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_tokenizer(given_, Layout())


def test_keeps_the_special_tokens_of_others(shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "tokenizers/qwen3", Layout())
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 151645
    assert tokenizer.convert_tokens_to_ids(["<image>", "<fake>"]) == [151669, 151670]


def test_a_digest_names_contents_only() -> None:
    before = tokenizer_digest(SMALL)
    used = load_tokenizer(SMALL, type("Nothing", (), {"special_tokens": ()})())
    used(["a", "a b c"], padding=True, truncation=True, max_length=2)
    used.name_or_path = "elsewhere"
    assert tokenizer_digest(used) == before
    used.chat_template += " "
    changed = {before, tokenizer_digest(used), tokenizer_digest(load_tokenizer(SMALL, Layout()))}
    changed |= {tokenizer_digest(train_tokenizer(TEXTS, vocab_size=size)) for size in (270, 280)}
    assert len(changed) == 5


def test_pads_with_what_the_tokenizer_has() -> None:
    tokenizer = load_tokenizer(SMALL, Layout())
    assert pad_id(tokenizer, "<image>") == 0
    tokenizer.pad_token = None
    assert pad_id(tokenizer, "<image>") == 2  # <|im_end|>
    tokenizer.eos_token = None
    assert pad_id(tokenizer, "<image>") == 0
    tokenizer.pad_token = "<image>"
    assert pad_id(tokenizer, "<image>") == 0
    assert pad_id(tokenizer, "<|endoftext|>") == tokenizer.convert_tokens_to_ids("<image>")


def test_trains_the_same_tokenizer_anywhere() -> None:
    code = (
        "import json, sys; from wdspack.tokenizer import *; t = train_tokenizer(json.load(sys.stdin), vocab_size=400)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code + "; print(tokenizer_digest(t))"],
        input=json.dumps(TEXTS),
        env=os.environ | {"PYTHONHASHSEED": "5", "RAYON_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == tokenizer_digest(SMALL)


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


@pytest.mark.parametrize("size", [260, 400])
def test_line_breaks_are_single_tokens(size: int) -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=size)
    assert len(tokenizer) <= size
    one, two = ids(tokenizer, "\n"), ids(tokenizer, "\n\n")
    assert len(one) == len(two) == 1
    assert ids(tokenizer, "a\n\nb\nc") == [*ids(tokenizer, "a"), *two, *ids(tokenizer, "b"), *one, *ids(tokenizer, "c")]


def test_needs_room_for_the_bytes() -> None:
    with pytest.raises(ConfigError, match="vocab_size=259; the bytes"):
        train_tokenizer(TEXTS, vocab_size=259)


@settings(deadline=None)
@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    assert SMALL.decode(ids(SMALL, text), clean_up_tokenization_spaces=False) == text


def test_its_template_is_chatml() -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    expected = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert SMALL.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True) == expected
    assert SMALL.apply_chat_template(turns, tokenize=False) == expected + "a<|im_end|>\n"
