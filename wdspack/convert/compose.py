"""Rows as datasets have them → records in the canonical form: one place for all readers.

Draft ──images by path──▶ bytes ──header──▶ "0.jpg", "1.png" ─┐
  └─ any form that wdspack.records reads ──▶ messages ────────┴─▶ Record(id, {"json", "0.jpg", …})
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wdspack.convert.imagefiles import check, image_names
from wdspack.convert.imageroot import ImageRoot
from wdspack.convert.rows import Record, Reject, Row
from wdspack.errors import SampleError
from wdspack.images import MAX_PIXELS
from wdspack.records import CAPTIONS, CHATS, conversation_of
from wdspack.types import Conversation

_SAID = {"messages": (), "conversations": ("from", "value"), "texts": ("user", "assistant")}  # and role, content
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), default=str
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A row as it was found, unchecked.

    id: what the dataset calls it. record: its json, in a form that `wdspack.records` reads; fields that are not part
    of that form are kept. images: contents, or paths below the image root, in order; None where one should be.
    txt: a caption file's contents. others: further files, carried along.
    """

    id: str | None
    record: Any
    images: tuple[bytes | str | None, ...] = ()
    txt: bytes | None = None
    others: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compose:
    """Draft → Row. See `DraftReader` for the settings."""

    root: ImageRoot
    caption_prompt: str = ""
    check_images: str = "header"
    max_image_pixels: int = MAX_PIXELS

    def __call__(self, draft: Draft | Reject) -> Row:
        """A Record, or the Reject that says what is wrong with it; ShardError where the storage fails."""
        if isinstance(draft, Reject):
            return draft
        try:
            return self._record(draft)
        except SampleError as error:
            return Reject(draft.id, error.reason, str(error))

    def _record(self, draft: Draft) -> Record:
        record, form = _parsed(draft.record, draft.txt is not None)
        images = tuple(self.root.fetch(image, number) for number, image in enumerate(draft.images))
        for number, data in enumerate(images):
            check(data, number, how=self.check_images, max_pixels=self.max_image_pixels)
        said = conversation_of(record, images, txt=draft.txt, caption_prompt=self.caption_prompt)
        kept = {name: value for name, value in record.items() if name != form and value is not None}
        messages = canonical(said, _beside(record[form], form) if form in CHATS else ())
        files = {"json": encode_json({**kept, "messages": messages})}
        return Record(draft.id, {**files, **dict(zip(image_names(images), images, strict=True)), **draft.others})


def canonical(said: Conversation, beside: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """A conversation as transformers' chat messages; `conversation_of` makes the same conversation of them.

    beside: further fields of each message.
    """
    return [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in message.parts
            ],
            **fields,
        }
        for message, fields in zip(said.messages, beside or [{}] * len(said.messages), strict=True)
    ]


def _beside(turns: Sequence[Mapping[str, Any]], form: str) -> list[Mapping[str, Any]]:
    """What turns say besides who says what, such as `weight`, `tool_calls` or `source`, for each message.

    An exchange of `texts` becomes two messages: what it says of itself goes to the answer, which is what is learnt.
    """
    known = {"role", "content", *_SAID[form]}
    found = [{name: value for name, value in turn.items() if name not in known and value is not None} for turn in turns]
    return [fields for own in found for fields in ({}, own)] if form == "texts" else list(found)


def encode_json(document: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON without spaces; NaN and infinities, which JSON lacks, become null, dates and decimals strings.

    Raises SampleError "bad_text" for half a surrogate pair.
    """
    try:
        text = _ENCODER.encode(document)
    except ValueError:
        text = _ENCODER.encode(_finite(document))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"half a surrogate pair, {text[error.start]!a}, in a field; texts must be valid Unicode"
        raise SampleError(message, reason="bad_text") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _parsed(record: Any, has_txt: bool) -> tuple[dict[str, Any], str | None]:
    """A row's json, turns that are stored as a string parsed, and the field that holds what is said."""
    if not isinstance(record, dict):
        if has_txt:  # a json beside a caption is metadata of any shape
            return {}, None
        raise SampleError(f"a row is a JSON {type(record).__name__}; it must be an object", reason="bad_json")
    form = next((name for name in CHATS if record.get(name) is not None), None)
    if form is None:
        return record, None if has_txt else next((name for name in CAPTIONS if record.get(name) is not None), None)
    if isinstance(record[form], str):
        try:
            record = {**record, form: json.loads(record[form])}
        except (ValueError, RecursionError) as error:
            message = f"{form} is a string that is not JSON ({error}); it must be a list of turns, or one as JSON"
            raise SampleError(message, reason="bad_messages") from None
    return record, form
