"""Every published form of a sample becomes the same kind of conversation; whatever else comes is a SampleError."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wdspack.errors import SampleError
from wdspack.records import conversation_from
from wdspack.types import Conversation, Message, RawSample


def raw(record: Any = ..., **files: bytes) -> RawSample:
    """A sample with these members; "_0_jpg" stands for "0.jpg", `record` becomes the json member."""
    members = {name.strip("_").replace("_", "."): data for name, data in files.items()}
    if record is not ...:
        members["json"] = record if isinstance(record, bytes) else json.dumps(record).encode()
    return RawSample("shard.tar", "key", members, 0, 0, 0, 0, {})


def turns(*contents: tuple[str | int, ...], first: str = "user") -> tuple[Message, ...]:
    roles = ("user", "assistant") if first == "user" else ("system", "user", "assistant")
    return tuple(Message(role, parts) for role, parts in zip(roles * len(contents), contents, strict=False))


def chat(*contents: Any) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]}


IMAGE = {"type": "image"}


def text(words: str | None) -> dict[str, Any]:
    return {"type": "text", "text": words}


FORMS = {
    "canonical": (raw(chat([IMAGE, text("Why?")], [text("So.")]), jpg=b"A"), turns((0, "Why?"), ("So.",)), (b"A",)),
    "interleaved": (
        raw(chat([text("a"), IMAGE, text("b"), IMAGE], "both", [IMAGE], ""), _0_jpg=b"A", _1_png=b"B", _2_webp=b"C"),
        turns(("a", 0, "b", 1), ("both",), (2,), ()),
        (b"A", b"B", b"C"),
    ),
    "image_url entries": (
        raw(chat([{"type": "image_url", "image_url": {"url": "x"}}, text("Why?")], "So."), png=b"A"),
        turns((0, "Why?"), ("So.",)),
        (b"A",),
    ),
    "strings with markers": (
        raw(chat("<image>\nleft <image> right", "yes"), _0_jpg=b"A", _1_jpg=b"B"),
        turns((0, "\nleft ", 1, " right"), ("yes",)),
        (b"A", b"B"),
    ),
    "markers are text beside image entries": (
        raw(chat([IMAGE, text("what is <image>?")], "a <image> tag"), jpg=b"A"),
        turns((0, "what is <image>?"), ("a <image> tag",)),
        (b"A",),
    ),
    "markers are text without images": (
        raw(chat("what is <image>?", "a tag")),
        turns(("what is <image>?",), ("a tag",)),
        (),
    ),
    "system turn, fields of other data": (
        raw(
            {
                "id": 7,
                "messages": [
                    {"role": "system", "content": "Be brief.", "name": None},
                    {"role": "user", "content": [{"type": "image", "text": None}, text(None)]},
                    {"role": "assistant", "content": "So.", "tool_calls": None},
                ],
                "conversations": None,
            },
            jpg=b"A",
            txt=b"an alt text",
        ),
        turns(("Be brief.",), (0,), ("So.",), first="system"),
        (b"A",),
    ),
    "llava": (
        raw(
            {
                "image": "coco/1.jpg",
                "conversations": [
                    {"from": "human", "value": "Look: <image>\nWhat?"},
                    {"from": "gpt", "value": "A cat."},
                    {"from": "human", "value": "And <image>?"},
                    {"from": "gpt", "value": "<image> is the first"},
                ],
            },
            _2_jpg=b"C",
            _0_jpg=b"A",
            _10_jpg=b"K",
        ),
        turns(("Look: ", 0, "\nWhat?"), ("A cat.",), ("And ", 1, "?"), (2, " is the first")),
        (b"A", b"C", b"K"),
    ),
    "llava, text only": (
        raw({"conversations": [{"from": "user", "value": "<image>"}, {"from": "assistant", "value": "?"}]}),
        turns(("<image>",), ("?",)),
        (),
    ),
    "the cauldron": (
        raw(
            {
                "texts": [
                    {"user": "q1", "assistant": "a1", "source": "vqa"},
                    {"user": "q2", "assistant": ""},
                    {"user": None, "assistant": "a3"},
                ],
                "relevance_ratings": [5, None],
            },
            _0_png=b"A",
            _1_png=b"B",
        ),
        turns((0, 1, "q1"), ("a1",), ("q2",), (), (), ("a3",)),
        (b"A", b"B"),
    ),
    "img2dataset": (
        raw({"caption": "other", "status": "success", "exif": None}, jpg=b"A", txt="un café\n".encode()),
        turns((0,), ("un café",)),
        (b"A",),
    ),
    "caption in json": (
        raw({"caption": None, "text": "a dog"}, jpeg=b"A"),
        turns((0,), ("a dog",)),
        (b"A",),
    ),
    "json of no form beside txt": (raw([1, 2], jpg=b"A", txt=b"a dog"), turns((0,), ("a dog",)), (b"A",)),
    "only json text": (raw({"text": "Once."}), turns((), ("Once.",)), ()),
    "only txt": (raw(txt=b"\xef\xbb\xbfOnce\nmore.\n\n"), turns((), ("Once\nmore.\n",)), ()),
    "images by archive order, then by number": (
        raw(right_png=b"R", _1_jpg=b"1", left_png=b"L", _0_gif=b"0", seg_0_npy=b"x", txt=b"t"),
        turns((0, 1, 2, 3), ("t",)),
        (b"R", b"L", b"0", b"1"),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_reads_every_form(form: str) -> None:
    sample, messages, images = FORMS[form]
    assert conversation_from(sample) == Conversation(messages, images)


def test_a_caption_prompt_asks_for_captions_only() -> None:
    assert conversation_from(raw(jpg=b"A", txt=b"a dog"), caption_prompt="Describe it.").messages == turns(
        (0, "Describe it."), ("a dog",)
    )
    assert conversation_from(raw(txt=b"Once."), caption_prompt="Describe it.").messages == turns((), ("Once.",))
    assert conversation_from(raw(chat("q", "a")), caption_prompt="Describe it.").messages == turns(("q",), ("a",))


FAULTS = {
    "cut json": (raw(b'{"messages": [', txt=b"t"), "bad_json", "parsed"),
    "deep json": (raw(b"[" * 100_000), "bad_json", "parsed"),
    "latin-1 json": (raw('{"text": "é"}'.encode("latin-1")), "bad_text", "byte 10"),
    "latin-1 txt": (raw(txt=b"caf\xe9"), "bad_text", "byte 3"),
    "half a surrogate pair": (
        raw(b'{"messages": [{"role": "assistant", "content": "x\\ud800"}]}'),
        "bad_text",
        "ud800",
    ),
    "nothing": (raw(jpg=b"A"), "no_text", "messages, conversations, texts, caption or text"),
    "metadata": (raw({"url": "x", "caption": None}, jpg=b"A"), "no_text", "caption"),
    "blank caption": (raw(jpg=b"A", txt=b" \n"), "no_text", "txt"),
    "no turns": (raw({"messages": []}), "no_answer", "assistant"),
    "questions only": (raw({"conversations": [{"from": "human", "value": "?"}]}), "no_answer", "assistant"),
    "role": (raw({"messages": [{"role": "tool", "content": "x"}]}), "bad_messages", "'tool'"),
    "list as a role": (raw({"messages": [{"role": ["user"], "content": "x"}]}), "bad_messages", "one of system"),
    "object as messages": (raw({"messages": {"role": "user"}}), "bad_messages", "a list"),
    "string as a message": (raw({"messages": ["hello"]}), "bad_messages", "an object"),
    "video": (raw(chat([{"type": "video"}], "x")), "bad_messages", "text, image or image_url"),
    "number as content": (raw(chat(5, "x")), "bad_messages", "5 (int)"),
    "answer of null": (raw(chat("q", None)), "bad_messages", "empty answer"),
    "exchange without an answer": (raw({"texts": [{"user": "q"}]}), "bad_messages", "empty answer"),
    "list as a caption": (raw({"caption": ["a", "b"]}, jpg=b"A"), "bad_messages", "a string"),
    "string as json": (raw("hello"), "bad_messages", "an object"),
    "image not mentioned": (raw(chat("q", "a"), jpg=b"A"), "image_mismatch", "1 image files but 0"),
    "too few images": (raw(chat([IMAGE, IMAGE], "a"), jpg=b"A"), "image_mismatch", "1 image files but 2"),
    "entries without images": (raw(chat([IMAGE], "a")), "image_mismatch", "0 image files but 1"),
    "too few markers": (
        raw({"conversations": [{"from": "gpt", "value": "<image>"}]}, _0_jpg=b"A", _1_jpg=b"B"),
        "image_mismatch",
        "2 image files but 1",
    ),
    "one number twice": (raw(_0_jpg=b"A", _0_png=b"B", txt=b"t"), "image_mismatch", "0.jpg and 0.png"),
    "one number written twice": (raw(_0_jpg=b"A", _00_jpg=b"B", txt=b"t"), "image_mismatch", "image 0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_says_what_is_wrong(fault: str) -> None:
    sample, reason, words = FAULTS[fault]
    with pytest.raises(SampleError) as caught:
        conversation_from(sample)
    assert caught.value.reason == reason
    assert words in str(caught.value)


WORDS = st.sampled_from(
    ("messages", "conversations", "texts", "caption", "text", "role", "content", "type", "from", "value", "user")
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS | st.just("<image>")
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4)
)


@given(VALUES, st.integers(0, 2), st.none() | st.binary(max_size=8))
@example({"messages": [{"role": "assistant", "content": [{"type": ["image"]}]}]}, 1, None)
@example({"texts": [{"assistant": 1e999}]}, 0, None)
def test_any_json_is_a_conversation_or_a_sample_error(record: Any, images: int, txt: bytes | None) -> None:
    files = {f"{number}.jpg": b"" for number in range(images)} | ({} if txt is None else {"txt": txt})
    sample = RawSample("", "", {**files, "json": json.dumps(record).encode()}, 0, 0, 0, 0, {})
    try:
        conversation = conversation_from(sample)
    except SampleError as error:
        assert error.reason in {"bad_json", "bad_text", "no_text", "no_answer", "bad_messages", "image_mismatch"}  # noqa: PT017
    else:
        parts = [part for message in conversation.messages for part in message.parts]
        assert [part for part in parts if isinstance(part, int)] == list(range(images))
        assert all(part.encode() for part in parts if isinstance(part, str))


@given(st.binary(max_size=64))
def test_any_bytes_are_a_conversation_or_a_sample_error(data: bytes) -> None:
    try:
        conversation_from(RawSample("", "", {"json": data}, 0, 0, 0, 0, {}))
    except SampleError as error:
        assert error.reason in {"bad_json", "bad_text", "no_text", "no_answer", "bad_messages"}  # noqa: PT017
