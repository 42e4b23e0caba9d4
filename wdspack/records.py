"""Tar members → a conversation: one reader for each form in which image-text samples are published.

    files of a RawSample ──┬─ images, in order ──────────────┐
                           └─ json or txt ─▶ turns of parts ─┴─▶ Conversation (each image mentioned once, in order)

Which form it is, the first that applies:

1. json with `messages`: transformers' chat format; strings with `<image>` markers, too, where no image entry stands.
2. json with `conversations`: LLaVA's and ShareGPT's human/gpt turns, with `<image>` markers or lists of entries.
3. json with `texts`: the Cauldron's and FineVision's user/assistant exchanges, all images before the first.
4. txt: a caption, as img2dataset writes it (a json beside it is metadata); without images a plain text.
5. json with `caption` or `text`: the same.

A null field counts as absent. A Message holds no empty text: an empty turn has no parts.
"""

import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from wdspack.errors import SampleError
from wdspack.types import Conversation, Message, RawSample

MARKER = "<image>"
CHATS = ("messages", "conversations", "texts")  # fields of a json that hold turns; the first present counts
CAPTIONS = ("caption", "text")
IMAGE_EXTENSIONS = frozenset(
    ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "jp2", "avif")
)

_NUMBERED = re.compile(r"(\d{1,9})\.\w+", re.ASCII)
_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "human": "user", "gpt": "assistant"}
_IMAGE_TYPES = frozenset({"image", "image_url"})


def conversation_from(raw: RawSample, *, caption_prompt: str = "") -> Conversation:
    """Read a sample's turns and images, whatever the form.

    caption_prompt: what the user asks, after the images, where all that a sample has is a caption.

    Raises:
        SampleError: with reason bad_json, bad_text (not UTF-8, or half a surrogate pair), bad_messages (a role or a
            shape that no form has), no_text, no_answer (no assistant turn) or image_mismatch (images and mentions do
            not pair up, or two images have one number).
    """
    images = images_of(raw.files)
    record = parse_json(raw.files["json"]) if "json" in raw.files else {}
    return conversation_of(record, images, txt=raw.files.get("txt"), caption_prompt=caption_prompt)


def conversation_of(
    record: Any, images: tuple[bytes, ...], *, txt: bytes | None = None, caption_prompt: str = ""
) -> Conversation:
    """The same, where the json is parsed already and the images are in order.

    Raises SampleError as `conversation_from` does.
    """
    messages = tuple(_checked(message) for message in _messages(record, len(images), txt, caption_prompt))
    if not any(message.role == "assistant" for message in messages):
        raise SampleError(
            f"nothing to learn in {len(messages)} turns: at least one must be an assistant's", reason="no_answer"
        )
    mentions = [part for message in messages for part in message.parts if isinstance(part, int)]
    if len(mentions) != len(images):
        raise SampleError(
            f"{len(images)} image files but {len(mentions)} mentions; every image is mentioned exactly once, by an "
            f"image entry or by {MARKER}",
            reason="image_mismatch",
        )
    return Conversation(messages, images)


def images_of(files: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """The image members: those without a number in archive order, then `0.jpg`, `1.png`, … by number.

    Raises SampleError "image_mismatch" if two have one number.
    """
    plain: list[bytes] = []
    numbered: dict[int, tuple[str, bytes]] = {}
    for name, data in files.items():
        if name.rpartition(".")[2] not in IMAGE_EXTENSIONS:
            continue
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(data)
        elif (number := int(match[1])) in numbered:
            raise SampleError(
                f"{numbered[number][0]} and {name} are both image {number}; give each image a number of its own",
                reason="image_mismatch",
            )
        else:
            numbered[number] = name, data
    return (*plain, *(numbered[number][1] for number in sorted(numbered)))


def _messages(record: Any, images: int, txt: bytes | None, caption_prompt: str) -> Iterable[Message]:
    if isinstance(record, dict):
        for field, read in zip(CHATS, (_from_chat, _from_llava, _from_exchanges), strict=True):
            if record.get(field) is not None:
                return read(_list(record[field], field), images)
    if txt is not None:
        # Editors and `echo` end a file with a newline that is not part of the text.
        return _from_caption(_utf8(txt, "txt").removesuffix("\n"), images, caption_prompt)
    if not isinstance(record, dict):
        raise _bad(f"the json is {_kind(record)}", "an object with messages, conversations, texts, caption or text")
    found = next((record[field] for field in CAPTIONS if record.get(field) is not None), "")
    return _from_caption(_text(found, "the caption"), images, caption_prompt)


def _from_chat(turns: Sequence[Any], images: int) -> Iterable[Message]:
    return _from_turns(turns, images, "a message", "role", "content")


def _from_llava(turns: Sequence[Any], images: int) -> Iterable[Message]:
    return _from_turns(turns, images, "a turn", "from", "value")


def _from_turns(turns: Sequence[Any], images: int, what: str, role_field: str, content_field: str) -> Iterable[Message]:
    numbers = count()
    messages: list[Message] = []
    for turn in turns:
        turn = _object(turn, what)
        role, content = _role(turn.get(role_field)), turn.get(content_field)
        if isinstance(content, list):
            parts = tuple(_entry(_object(entry, "a content entry"), numbers) for entry in content)
        else:
            parts = (_said(content, role),)
        messages.append(Message(role, parts))
    if next(numbers) == 0 and images:  # no image entry: the strings must say where the images are
        return _at_markers(messages)
    return messages


def _entry(entry: Mapping[str, Any], numbers: Iterator[int]) -> str | int:
    kind = entry.get("type")
    if kind == "text":
        return _text(entry.get("text"), "a text entry")
    if isinstance(kind, str) and kind in _IMAGE_TYPES:
        return next(numbers)
    raise _bad(f"a content entry of type {reprlib.repr(kind)}", "text, image or image_url")


def _from_exchanges(exchanges: Sequence[Any], images: int) -> Iterable[Message]:
    messages: list[Message] = []
    for exchange in exchanges:
        exchange = _object(exchange, "an exchange")
        mentions = () if messages else range(images)
        messages.append(Message("user", (*mentions, _said(exchange.get("user"), "user"))))
        messages.append(Message("assistant", (_said(exchange.get("assistant"), "assistant"),)))
    return messages


def _from_caption(text: str, images: int, prompt: str) -> Iterable[Message]:
    if not text.strip():
        raise SampleError(
            "no text: give a json with messages, conversations, texts, caption or text, or a txt", reason="no_text"
        )
    question = Message("user", (*range(images), prompt) if images else ())
    return question, Message("assistant", (text,))


def _at_markers(messages: Iterable[Message]) -> Iterator[Message]:
    """Every `<image>` in the texts becomes the next image: "<image>\\nWhy?" → (0, "\\nWhy?")."""
    numbers = count()
    for role, texts in ((message.role, message.parts) for message in messages):
        pieces = (piece for text in texts for piece in re.split(f"({MARKER})", str(text)))
        yield Message(role, tuple(next(numbers) if piece == MARKER else piece for piece in pieces))


def _checked(message: Message) -> Message:
    """The message without empty texts; refuses what UTF-8 cannot hold (json can: "\\ud800")."""
    for part in message.parts:
        if isinstance(part, str) and not part.isascii():
            try:
                part.encode()
            except UnicodeEncodeError as error:
                raise SampleError(
                    f"half a surrogate pair, {part[error.start]!a}, at character {error.start:,} of a text; "
                    "texts must be valid Unicode",
                    reason="bad_text",
                ) from None
    return Message(message.role, tuple(part for part in message.parts if part != ""))


def parse_json(data: bytes) -> Any:
    """A sample's json. Raises SampleError "bad_json", or "bad_text" if it is not UTF-8."""
    try:
        return json.loads(_utf8(data, "json"))
    except (ValueError, RecursionError) as error:
        raise SampleError(f"the json member cannot be parsed: {error}", reason="bad_json") from None


def _utf8(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SampleError(
            f"the {name} member is not UTF-8 at byte {error.start:,}; write it as UTF-8", reason="bad_text"
        ) from None


def _role(value: Any) -> str:
    if isinstance(value, str) and value in _ROLES:
        return _ROLES[value]
    raise _bad(f"a turn of the role {reprlib.repr(value)}", f"one of {', '.join(_ROLES)}")


def _said(value: Any, role: str) -> str:
    """What one turn says. An absent question is an empty one; an absent answer is a fault, not an empty answer."""
    if value is None and role == "assistant":
        raise _bad("an assistant's turn without content", 'a string, "" for an empty answer')
    return _text(value, f"what the {role} says")


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise _bad(f"{where} is {_kind(value)}", "a string")


def _list(value: Any, where: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise _bad(f"{where} is {_kind(value)}", "a list")


def _object(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _bad(f"{where} is {_kind(value)}", "an object")


def _bad(given: str, allowed: str) -> SampleError:
    return SampleError(f"{given}; it must be {allowed}", reason="bad_messages")


def _kind(value: Any) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
