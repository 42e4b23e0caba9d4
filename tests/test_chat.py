"""The labels decode to exactly what the template shows of the assistant's turns; all else is as at inference."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from wdspack.chat import ChatEncoder
from wdspack.errors import ConfigError, SampleError
from wdspack.records import conversation_from
from wdspack.spelling import LEAD
from wdspack.tokenizer import load_tokenizer, train_tokenizer
from wdspack.types import Conversation, Encoded, Grid, Message, RawSample

WHOLE = Grid(0, 0, 1, 2, 5)  # <fake><global><i><i><fake>
SPLIT = Grid(1, 2, 3, 6, 14)  # <fake><row><i><i><fake><row><i><i>\n\n<fake><global><i><i><fake>
FAKE = "<fake_token_around_image>"


class SmolPrompt:
    """SmolVLM's rule with two placeholders a tile."""

    image_token = "<image>"
    special_tokens = ("<image>", FAKE, "<global-img>", *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2, 3)))

    def prefix(self, index: int, count: int) -> str:  # noqa: ARG002
        return ""

    def prompt(self, grid: Grid) -> str:
        rows, cols = range(1, grid.rows + 1), range(1, grid.cols + 1)
        lines = ["".join(f"{FAKE}<row_{r}_col_{c}><image><image>" for c in cols) + "\n" for r in rows]
        return "".join(lines) + "\n" * bool(lines) + f"{FAKE}<global-img><image><image>{FAKE}"


class NumberedPrompt(SmolPrompt):
    """Several images are numbered in plain text."""

    def prefix(self, index: int, count: int) -> str:
        return f"<image: {index}>" if count > 1 else ""


@cache
def own() -> PreTrainedTokenizerFast:
    lines = (
        "Which bar is the tallest?\n\nThe third one, with 42 units; the user and the assistant agree.\n",
        "Total: 13.50\nPaid: 20.00\nChange: 6.50\n\n\n  indented text,  two  blanks\n<image: 0>",
    )
    return load_tokenizer(train_tokenizer(lines * 20, vocab_size=600), SmolPrompt())


def templated(template: str, *added: AddedToken, **special: str) -> PreTrainedTokenizerFast:
    tokenizer = pickle.loads(pickle.dumps(own()))
    tokenizer.chat_template = template
    tokenizer.add_tokens(list(added))
    tokenizer.add_special_tokens(special)
    return tokenizer


def control(token: str, **flags: bool) -> AddedToken:
    return AddedToken(token, special=True, normalized=False, **flags)


def chatml(content: str, before: str = "") -> str:
    return (
        before + "{% for message in messages %}{% set content = message['content'] %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' }}" + content + "{{ '<|im_end|>\\n' }}{% endfor %}"
    )


def listed(image: str, header: str, end: str) -> str:
    return (
        "<|im_start|>{% for message in messages %}" + header + "{% for entry in message['content'] %}"
        "{% if entry['type'] == 'text' %}{{ entry['text'] }}{% elif entry['type'] == 'image' %}" + image + "{% endif %}"
        "{% endfor %}{{ '" + end + "' }}{% endfor %}"
    )


SMOLVLM = listed(
    "<image>",
    "{{ message['role'] | capitalize + (':' if message['content'][0]['type'] == 'image' else ': ') }}",
    "<end_of_utterance>\\n",
)
QWEN2VL = listed("<|vision_start|><|image_pad|><|vision_end|>", "{{ message['role'] + '\\n' }}", "<|im_end|>\\n")
IMAGES_FIRST = (
    "{% for message in messages %}{{ message['role'] | upper + ': ' }}"
    "{% for entry in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}"
    "{% for entry in message['content'] | selectattr('type', 'equalto', 'text') %}{{ entry['text'] | trim }}"
    "{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
)
PLAIN = (
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] + '\\n' }}{% endfor %}"
)
DROP_THINKING = (
    "{{ content if loop.last or message['role'] != 'assistant' else content.split('</think>')[-1].lstrip('\\n') }}"
)


@dataclass(frozen=True)
class Case:
    """shows(answer, whether the conversation ends with it): what the template makes of an answer."""

    make: Callable[[], Any]
    shows: Callable[[str, bool], str] = lambda answer, _: answer
    end: str = "<|im_end|>"
    next_turn: str = ""  # what follows an answer that no control token closes


CASES = {
    "own": Case(own),
    "adds a system turn": Case(
        lambda: templated(chatml("{{ content }}", "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}"))
    ),
    "strips": Case(lambda: templated(chatml("{{ content | trim }}")), lambda answer, _: answer.strip()),
    "upper-cases": Case(
        lambda: templated(chatml("{{ content | upper }}")),
        lambda answer, _: answer if looks_like_control(answer) else answer.upper(),
    ),
    "drops thinking": Case(
        lambda: templated(chatml(DROP_THINKING)), lambda answer, last: without_thinking(answer, last)
    ),
    "begins with bos": Case(lambda: templated(chatml("{{ content }}", "{{ bos_token }}"), bos_token="<|endoftext|>")),
    "no control tokens": Case(lambda: templated(PLAIN), end="\n", next_turn="\nUser: "),
    "smolvlm": Case(lambda: templated(SMOLVLM, control("<end_of_utterance>")), end="<end_of_utterance>"),
    "qwen2vl": Case(lambda: templated(QWEN2VL, *map(control, ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")))),
    "images first": Case(lambda: templated(IMAGES_FIRST), lambda answer, _: answer.strip()),
    "smollm2": Case(lambda: SHARED["smollm2"]),
    "qwen3": Case(lambda: SHARED["qwen3"], lambda answer, last: answer.lstrip("\n") if last else answer),
}
SHARED: dict[str, Any] = {}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    if request.param in ("smollm2", "qwen3") and request.param not in SHARED:
        path = request.getfixturevalue("shared") / "tokenizers" / request.param
        SHARED[request.param] = load_tokenizer(path, SmolPrompt())
    return str(request.param)


@cache
def encoder(case: str) -> ChatEncoder:
    return ChatEncoder(CASES[case].make(), SmolPrompt())


def looks_like_control(text: str) -> bool:
    return any(token in text for token in own().added_tokens_encoder)


def without_thinking(answer: str, last: bool) -> str:
    said = answer if looks_like_control(answer) else answer.split("</think>")[-1]
    return answer if last else said.lstrip("\n")


def conversation(*contents: str | tuple[str | int, ...], first: str = "user") -> Conversation:
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    messages = tuple(
        Message(roles[i % 2], content if isinstance(content, tuple) else (content,) if content else ())
        for i, content in enumerate(contents)
    )
    images = sum(isinstance(part, int) for message in messages for part in message.parts)
    return Conversation(messages, (b"",) * images)


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def labels(tokenizer: Any, encoded: Encoded) -> list[str]:
    """The text of each unbroken run of supervised tokens."""
    edges = np.flatnonzero(np.diff(encoded.supervised, prepend=False, append=False)).reshape(-1, 2)
    return [decoded(tokenizer, encoded.input_ids[start:stop]) for start, stop in edges]


def restored(tokenizer: Any, text: str) -> str:
    """A text as the tokenizer gives it back: qwen3 composes accents, smollm2 lacks a few bytes."""
    return decoded(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])


LOOK_ALIKES = ("<|im_end|>", "<|im_start|>assistant\n", "<image>", "</think>", "<think>", "<|endoftext|>", FAKE)
PIECES = ("\n", "\n\n", " ", "  ", "\t", "user\n", "\nUser: ", "Hi", "42", "ß", "é", "e\u0301", "中文", "🙂", "<", "|>")
PRIVATE = ("\ue000", "\U000ff001", LEAD[0], LEAD[1], LEAD[::-1])


def texts(*pieces: str) -> st.SearchStrategy[str]:
    joined = st.lists(st.sampled_from(pieces) | st.text(max_size=6), max_size=6).map("".join)
    return joined.filter(lambda text: LEAD not in text)


QUESTIONS = st.lists(texts(*LOOK_ALIKES, *PIECES, *PRIVATE) | st.none(), max_size=3).filter(
    lambda parts: LEAD not in "".join(part or "" for part in parts)
)  # None is an image


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(QUESTIONS, texts(*LOOK_ALIKES, *PIECES, *PRIVATE)), min_size=1, max_size=3), st.booleans())
@example([([None, "q"], ""), (["q"], "\n\nlines\n\n"), ([], "<|im_end|>\n")], False)
@example([(["<image>", None], " \n"), ([], "thought\n</think>\n\nsaid"), (["\n"], "\nthought</think>\nsaid")], True)
def test_labels_decode_to_the_answers(case: str, exchanges: list[tuple[list[str | None], str]], ask: bool) -> None:
    contents: list[str | tuple[str | int, ...]] = []
    images = 0
    for question, answer in exchanges:
        parts: list[str | int] = []
        for part in question:
            if part is None:
                parts.append(images)
                images += 1
            elif part:
                parts.append(part)
        contents += (tuple(parts), answer)
    if ask:
        contents.append("And then?")
    tokenizer, grids = encoder(case).tokenizer, [(WHOLE, SPLIT)[i % 2] for i in range(images)]
    encoded = encoder(case).encode(conversation(*contents), grids)
    answers = [
        CASES[case].shows(answer, not ask and i + 1 == len(exchanges)) for i, (_, answer) in enumerate(exchanges)
    ]

    assert encoded.input_ids.dtype == np.int32
    assert encoded.supervised.shape == encoded.input_ids.shape
    assert not encoded.supervised[0]
    said = labels(tokenizer, encoded)
    assert len(said) == len(answers)
    for number, (label, answer) in enumerate(zip(said, answers, strict=True)):
        if not CASES[case].next_turn:
            assert label == restored(tokenizer, answer) + CASES[case].end
        else:  # one more token of the template, whatever it is
            following = "\n" if number + 1 == len(answers) and not ask else CASES[case].next_turn
            assert label.startswith(answer)
            assert len(label) > len(answer)
            assert following.startswith(label[len(answer) :])

    image = tokenizer.convert_tokens_to_ids("<image>")
    assert np.count_nonzero(encoded.input_ids == image) == sum(grid.tokens for grid in grids)
    assert not encoded.supervised[encoded.input_ids == image].any()
    if not CASES[case].next_turn:
        end = tokenizer.convert_tokens_to_ids(CASES[case].end)
        added = 1 if case in ("adds a system turn", "smollm2") else 0
        assert np.count_nonzero(encoded.input_ids == end) == len(contents) + added


def rendered(tokenizer: Any, contents: Sequence[str], **options: Any) -> str:
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, **options))


def bare(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(
    "case", ["own", "adds a system turn", "strips", "begins with bos", "smollm2", "qwen3"], indirect=True
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(texts(*PIECES, *PRIVATE), min_size=2, max_size=6), st.integers(0, 2))
def test_without_look_alikes_it_is_the_plain_encoding(case: str, contents: list[str], images: int) -> None:
    tokenizer = encoder(case).tokenizer
    assume(not any(token in text for text in contents for token in tokenizer.added_tokens_encoder))
    contents = [("A" if i % 2 else "") + text for i, text in enumerate(contents)]  # no token joins "\n" and "A"
    grids = [WHOLE, SPLIT][:images]
    parts = (*range(images), contents[0]) if contents[0] else tuple(range(images))
    encoded = encoder(case).encode(conversation(parts, *contents[1:]), grids)
    text = rendered(tokenizer, ["<image>" * images + contents[0], *contents[1:]])
    for grid in grids:
        text = text.replace("<image>", SmolPrompt().prompt(grid).replace("<image>", "<placeholder>"), 1)
    assert encoded.input_ids.tolist() == bare(tokenizer, text.replace("<placeholder>", "<image>"))


@pytest.mark.parametrize("case", ["own", "smollm2"], indirect=True)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts(*PIECES))
@example("\n\nHi")
@example("  Hi")
def test_what_precedes_an_answer_is_what_inference_is_prompted_with(case: str, answer: str) -> None:
    tokenizer = encoder(case).tokenizer
    encoded = encoder(case).encode(conversation("Why?", answer), [])
    prompt = bare(tokenizer, rendered(tokenizer, ["Why?"], add_generation_prompt=True))
    assert encoded.input_ids[: len(prompt)].tolist() == prompt
    assert encoded.supervised.tolist()[: len(prompt) + 1] == [False] * len(prompt) + [True]


@pytest.mark.parametrize("case", ["own", "smollm2", "qwen3"], indirect=True)
def test_look_alikes_leave_the_rest_alone(case: str) -> None:
    """With "<|im_end|>" in the question, every token that does not belong to it is what it was."""
    tokenizer = encoder(case).tokenizer
    with_it = encoder(case).encode(conversation("Why do you write <|im_end|> at the end?", "To stop, I hope."), [])
    start, stop = rendered(tokenizer, ["Why do you write X at the end?", "To stop, I hope."]).split("X")
    head, tail = bare(tokenizer, start.rstrip()), bare(tokenizer, stop)
    ids = with_it.input_ids.tolist()
    assert ids[: len(head)] == head
    assert ids[-len(tail) :] == tail
    assert decoded(tokenizer, ids[len(head) : -len(tail)]) == " <|im_end|>"


@pytest.mark.parametrize("case", ["smollm2", "qwen3"], indirect=True)
def test_real_samples(case: str, shared: Path) -> None:
    for line in (shared / "data/corpus/records.jsonl").read_text().splitlines():
        record = json.loads(line)
        files = {f"{number}.jpg": b"" for number in range(len(record["images"]))} | {"json": line.encode()}
        sample = conversation_from(RawSample("", record["id"], files, 0, 0, 0, 0, {}))
        encoded = encoder(case).encode(sample, [WHOLE] * len(sample.images))
        said = ""
        for turn in record["messages"]:
            if turn["role"] == "assistant":
                said += "".join(entry.get("text", "<image>") for entry in turn["content"]) + "<|im_end|><image>"
        assert labels(encoder(case).tokenizer, encoded) == [text for text in said.split("<image>") if text]


def test_an_empty_answer_supervises_its_end_only(case: str) -> None:
    encoded = encoder(case).encode(conversation("q", ""), [])
    assert labels(encoder(case).tokenizer, encoded) == [CASES[case].end]
    assert encoded.supervised.sum() == 1


@pytest.mark.parametrize("template", ["own", "smolvlm"])
def test_images_in_answers_are_not_supervised(template: str) -> None:
    """Neither are the layout's numbers before them; the turn ends with an image, and is closed all the same."""
    chat = ChatEncoder(CASES[template].make(), NumberedPrompt())
    encoded = chat.encode(conversation((0, "q"), ("see ", 1, "and", 2)), [WHOLE, SPLIT, WHOLE])
    assert labels(chat.tokenizer, encoded) == ["see ", "and", CASES[template].end]
    text = decoded(chat.tokenizer, encoded.input_ids)
    images = [f"<image: {i}>" + SmolPrompt().prompt(grid) for i, grid in enumerate((WHOLE, SPLIT, WHOLE))]
    assert f"{images[0]}q" in text
    assert f"see {images[1]}and{images[2]}{CASES[template].end}" in text


def test_texts_of_one_answer_are_one_answer() -> None:
    joined = templated(
        "{% for message in messages %}<|im_start|>{% for entry in message['content'] %}"
        "{{ '<image>' if entry['type'] == 'image' else entry['text'] }}{{ ' / ' if not loop.last }}{% endfor %}"
        "<|im_end|>{% endfor %}"
    )
    chat = ChatEncoder(joined, SmolPrompt())
    encoded = chat.encode(conversation("q", ("one", "two", 0, "three")), [WHOLE])
    assert labels(joined, encoded) == ["one / two / ", " / three<|im_end|>"]


def test_the_next_turn_s_image_closes_no_answer() -> None:
    tokenizer = templated(listed("<image>", "{{ message['role'] + ': ' }}", "\\n"))
    encoded = ChatEncoder(tokenizer, SmolPrompt()).encode(conversation("q", "a", (0, "q"), "b"), [WHOLE])
    assert labels(tokenizer, encoded) == ["a\n", "b\n"]


def test_the_first_token_is_never_supervised() -> None:
    tokenizer = templated("{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}")
    encoded = ChatEncoder(tokenizer, SmolPrompt()).encode(conversation("42 units", first="assistant"), [])
    assert labels(tokenizer, encoded) == ["2 units<|im_end|>"]


@given(texts("\n", " ", "a", "<|end|>"), texts("\n", " ", "b"))
@settings(max_examples=50, deadline=None)
def test_control_tokens_that_swallow_blanks_still_do(question: str, answer: str) -> None:
    template = "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"
    tokens = [control(token, rstrip=True) for token in ("<|user|>", "<|assistant|>", "<|end|>")]
    tokenizer = swallowing(template, *tokens)
    encoded = ChatEncoder(tokenizer, SmolPrompt()).encode(conversation(question, answer), [])
    if "<|end|>" not in question:
        answered = f"<|user|>\n{question}<|end|>\n<|assistant|>\n"
        ids = bare(tokenizer, answered)
        assert encoded.input_ids[: len(ids)].tolist() == ids
    assert labels(tokenizer, encoded) == [f"{answer}<|end|>"]


@cache
def swallowing(template: str, *tokens: AddedToken) -> PreTrainedTokenizerFast:
    return templated(template, *tokens)


def test_added_blanks_are_no_control_tokens() -> None:
    tokenizer = templated(chatml("{{ content }}"), AddedToken("    ", normalized=False))
    encoded = ChatEncoder(tokenizer, SmolPrompt()).encode(conversation("if x:\n    y", "a    b"), [])
    assert encoded.input_ids.tolist() == bare(tokenizer, rendered(tokenizer, ["if x:\n    y", "a    b"]))
    assert np.count_nonzero(encoded.input_ids == tokenizer.convert_tokens_to_ids("    ")) == 2


def test_a_model_that_knows_a_control_token_as_a_word_does_not_find_it_in_text() -> None:
    """A unigram model has "</s>" among its pieces, as good as any."""
    vocabulary = [("<unk>", 0.0), ("</s>", 0.0), *((letter, -4.0) for letter in "</s>qa<image")]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.Unigram(list(dict(vocabulary).items()), unk_id=0)),
        eos_token="</s>",
        unk_token="<unk>",
        chat_template="{% for message in messages %}{{ message['content'] + eos_token }}{% endfor %}",
    )
    tokenizer = load_tokenizer(tokenizer, SmolPrompt())
    encoded = ChatEncoder(tokenizer, SmolPrompt()).encode(conversation("q</s>q", "a</s>"), [])
    pieces = tokenizer.convert_ids_to_tokens(encoded.input_ids)
    assert pieces == [*"q</s>q", "</s>", *"a</s>", "</s>"]


def test_a_template_that_changes_its_text_overnight() -> None:
    tokenizer = templated(chatml("{{ content }}", "Today is Monday.\n"))
    chat = ChatEncoder(tokenizer, SmolPrompt())
    chat.encode(conversation("q", "a"), [])
    tokenizer.chat_template = chatml("{{ content }}", "Today is Tuesday.\n")
    encoded = chat.encode(conversation("q", "a"), [])
    assert decoded(tokenizer, encoded.input_ids).startswith("Today is Tuesday.")
    assert labels(tokenizer, encoded) == ["a<|im_end|>"]


REFUSED = {
    "raises": (
        chatml("{{ raise_exception('ask first') if messages[0]['role'] != 'user' }}{{ content }}"),
        conversation("a", first="assistant"),
        "refuses turns of assistant: ask first",
    ),
    "leaves images out": (
        chatml("{{ content[:12] }}"),
        conversation(("What is in this picture?", 0), "a"),
        "shows 0 of 1 images",
    ),
    "leaves blank turns out": (
        "{% for m in messages if m['content'] | trim %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}",
        conversation("q", "a", "q", " "),
        "cannot be told apart",
    ),
    "rewrites what looks like its own text": (
        PLAIN.replace("message['content']", "message['content'] | replace('?', '!')"),
        conversation("q?", "a\nUser: b\nAssistant: c", "q", "a"),
        "cannot be told apart",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_template_that_hides_the_turns_costs_the_sample(fault: str) -> None:
    template, sample, words = REFUSED[fault]
    with pytest.raises(SampleError, match=words) as caught:
        ChatEncoder(templated(template), SmolPrompt()).encode(sample, [WHOLE] * len(sample.images))
    assert caught.value.reason == "template"


def test_reserved_characters_cost_the_sample() -> None:
    with pytest.raises(SampleError, match="private-use") as caught:
        encoder("own").encode(conversation("q", f"a{LEAD}b"), [])
    assert caught.value.reason == "bad_text"


def test_grids_and_images_must_pair_up() -> None:
    with pytest.raises(ValueError, match="2 grids for 1 images"):
        encoder("own").encode(conversation((0, "q"), "a"), [WHOLE, WHOLE])


def test_a_layout_that_miscounts_is_refused() -> None:
    with pytest.raises(ConfigError, match="writes 2 placeholders"):
        encoder("own").encode(conversation((0, "q"), "a"), [Grid(0, 0, 1, 3, 6)])


UNFIT = {
    "no chat template": (lambda: templated(""), "chat template"),
    "no fast tokenizer": (lambda: object(), "fast tokenizer"),
    "lacks tokens": (lambda: train_tokenizer(["a"], 300), "<global-img>"),
    "shows no text": (lambda: templated("{% for message in messages %}<|im_start|>{% endfor %}"), "shows no text"),
}


@pytest.mark.parametrize("fault", UNFIT)
def test_an_unfit_tokenizer_is_refused(fault: str) -> None:
    make, words = UNFIT[fault]
    with pytest.raises(ConfigError, match=words):
        ChatEncoder(make(), SmolPrompt())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), min_size=1, max_size=6), st.integers(10, 200))
def test_truncates_to_the_longest_run_of_turns(shape: list[tuple[int, int]], limit: int) -> None:
    """Against trying every run; images come whole or not at all."""
    contents: list[str | tuple[str | int, ...]] = []
    grids: list[Grid] = []
    for images, words in shape:
        contents += ((*range(len(grids), len(grids) + images), "question?"), "word " * words)
        grids += [WHOLE, SPLIT][:images]
    runs = [conversation(*contents[:stop]) for stop in range(2, len(contents) + 1, 2)]
    tries = [encoder("own").encode(run, grids[: len(run.images)]) for run in runs]
    fitting = [(run, each) for run, each in zip(runs, tries, strict=True) if len(each.input_ids) <= limit]
    whole = conversation(*contents, "One more thing:")
    if not fitting:
        with pytest.raises(SampleError, match=f"{len(tries[0].input_ids)} tokens, but the limit is {limit}") as caught:
            encoder("own").truncate(whole, grids, limit)
        assert caught.value.reason == "too_long"
        return
    encoded, kept = encoder("own").truncate(whole, grids, limit)
    assert kept == len(fitting[-1][0].images)
    assert np.array_equal(encoded.input_ids, fitting[-1][1].input_ids)
    assert np.array_equal(encoded.supervised, fitting[-1][1].supervised)


def test_truncating_renders_anew() -> None:
    """Thinking that the template keeps in the last answer only is back where another answer becomes the last."""
    chat = encoder("drops thinking")
    encoded, _ = chat.truncate(conversation("q", "hm</think>yes", "q", "a long answer " * 9), [], 40)
    assert labels(chat.tokenizer, encoded) == ["hm</think>yes<|im_end|>"]


def test_nothing_to_truncate_to() -> None:
    with pytest.raises(SampleError, match="never come"):
        encoder("own").truncate(conversation("q"), [], 100)


def test_survives_pickling() -> None:
    sample, grids = conversation((0, "<|im_end|>", 1), "\n\na"), [WHOLE, SPLIT]
    expected = encoder("smolvlm").encode(sample, grids)
    actual = pickle.loads(pickle.dumps(encoder("smolvlm"))).encode(sample, grids)
    assert np.array_equal(actual.input_ids, expected.input_ids)
    assert np.array_equal(actual.supervised, expected.supervised)


def test_prompts_are_the_published_ones(shared: Path) -> None:
    """So that what these tests say of SmolPrompt holds for SmolVLM."""
    golden = json.loads((shared / "golden/image_prompts.json").read_text())["smolvlm"]
    for grid in (WHOLE, SPLIT, Grid(2, 3, 7, 14, 35)):
        assert SmolPrompt().prompt(grid) == golden[f"{grid.rows}x{grid.cols}"]


def test_importing_does_not_import_transformers() -> None:
    code = "import sys, wdspack.chat, wdspack.tokenizer; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_blanks_after_the_generation_prompt_are_for_the_model_to_say() -> None:
    """SmolVLM is prompted with "Assistant:" and goes on with " Yes": one token, as the rendered text is encoded."""
    tokenizer = templated(
        "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
        "{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
        "{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}",
        control("<end_of_utterance>"),
    )
    chat = ChatEncoder(tokenizer, SmolPrompt())
    encoded = chat.encode(conversation("Is it tall?", "Yes, the third one."), [])
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Is it tall?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes, the third one."}]},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert encoded.input_ids.tolist() == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert labels(tokenizer, encoded) == [" Yes, the third one.<end_of_utterance>"]
