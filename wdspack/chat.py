"""A conversation → its tokens, and the mask of what the assistant says.

    messages ──template──▶ runs ──┬─ joined ──▶ ids (T,), places ─┬─▶ mask ─┬─▶ image tokens expanded ──▶ Encoded
                                  └─ where each starts and ends ──┘         │
    grids ──layout──▶ tokens of each image ─────────────────────────────────┘

The text is the one that the tokenizer's own template renders, encoded once, as at inference; the mask follows from
where its tokens stand. With one exception: a token may straddle the start of an answer ("assistant\\n" before "\\nHi",
where "\\n\\n" is a token) and would put a piece of the prompt in the labels. Such a text is encoded again, cut there; a
model that is prompted with "assistant\\n" meets these very tokens.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from wdspack.errors import ConfigError, SampleError
from wdspack.spelling import Places, Spelling
from wdspack.templates import ANSWER, ENDING, IMAGE, OPEN, Run, Template
from wdspack.types import Conversation, Encoded, Grid

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ImagePrompt(Protocol):
    """How a layout writes images."""

    @property
    def image_token(self) -> str:
        """The placeholder, one special token."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All special tokens that the layout needs, image_token included."""

    def prefix(self, index: int, count: int) -> str:
        """Plain text before image number `index` of `count`, or ""."""

    def prompt(self, grid: Grid) -> str:
        """One image written out with all its placeholders; starts and ends with a special token."""


class ChatEncoder:
    """Encodes conversations with one tokenizer and one layout. Picklable; its caches stay behind.

    tokenizer: a fast tokenizer with a chat template and the layout's special tokens; not to be changed afterwards.

    Raises:
        ConfigError: the tokenizer lacks one of these, or its template shows no text.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", layout: ImagePrompt) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(
                f"{type(tokenizer).__name__} cannot tell where its tokens stand in the text; "
                "use a fast tokenizer (one with a tokenizer.json)"
            )
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the tokenizer has no chat template; use a chat (instruct) model's, or set tokenizer.chat_template"
            )
        self.tokenizer, self.layout = tokenizer, layout
        self._spelling = Spelling(backend)
        needed = dict.fromkeys((layout.image_token, *layout.special_tokens))
        if missing := [token for token in needed if token not in self._spelling.ids]:
            raise ConfigError(
                f"the tokenizer lacks the layout's {missing}; add them: load_tokenizer(tokenizer, layout)"
            )
        self._template = Template(tokenizer, self._spelling, layout.image_token)
        self._image_id = self._spelling.ids[layout.image_token]
        self._tokens_of = lru_cache(maxsize=1024)(self._image_tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChatEncoder, (self.tokenizer, self.layout)

    def encode(self, conversation: Conversation, grids: Sequence[Grid]) -> Encoded:
        """Tokens of a conversation whose n-th image has the n-th grid.

        Supervised is each answer as the template renders it, and its ending: what follows, through the first control
        token before the next turn's content, or one token where there is none. Never supervised are images, what the
        layout writes before them, and the first token.

        Raises:
            SampleError: "template" where the template refuses the conversation, leaves out an image, or rewrites the
                turns so that they cannot be told apart; "bad_text" for characters that are kept for marks.
        """
        if len(grids) != len(conversation.images):
            raise ValueError(f"{len(grids)} grids for {len(conversation.images)} images; give one each")
        runs = self._template.runs(conversation)
        ids, supervised = self._masked(list(self._with_prefixes(runs, len(grids))) if grids else runs)
        images = ids == self._image_id
        if np.count_nonzero(images) != len(grids):
            raise SampleError(
                f"the chat template shows {np.count_nonzero(images)} of {len(grids)} images; it must show each once",
                reason="template",
            )
        if not grids:
            return Encoded(ids, supervised)
        expansions = [self.image_ids(grid) for grid in grids]
        lengths = np.ones(len(ids), np.int64)
        lengths[images] = [len(expansion) for expansion in expansions]
        expanded, inside = np.repeat(ids, lengths), np.repeat(images, lengths)
        expanded[inside] = np.concatenate(expansions)
        return Encoded(expanded, np.repeat(supervised & ~images, lengths))

    def truncate(self, conversation: Conversation, grids: Sequence[Grid], limit: int) -> tuple[Encoded, int]:
        """The longest run of leading turns that ends with an answer and fits in `limit` tokens, and its images' number.

        The turns are rendered anew, so nothing in them is cut. More turns are taken to be more tokens, which lets the
        run be found by bisection.

        Raises:
            SampleError: "too_long" if not even the first exchange fits, and as `encode` does.
        """

        @cache
        def leading(turns: int) -> tuple[Encoded, int]:
            messages = conversation.messages[:turns]
            kept = sum(isinstance(part, int) for message in messages for part in message.parts)
            shorter = replace(conversation, messages=messages, images=conversation.images[:kept])
            return self.encode(shorter, grids[:kept]), kept

        stops = [turns for turns, message in enumerate(conversation.messages, 1) if message.role == "assistant"]
        fitting = bisect.bisect_right(stops, limit, key=lambda turns: len(leading(turns)[0].input_ids))
        if not fitting:
            size = f"take {len(leading(stops[0])[0].input_ids):,} tokens" if stops else "never come"
            raise SampleError(
                f"the turns through the first answer {size}, but the limit is {limit:,}; raise seq_len",
                reason="too_long",
            )
        return leading(stops[fitting - 1])

    def _with_prefixes(self, runs: list[Run], count: int) -> Iterator[Run]:
        """Splits off each image as a run of its own, with what the layout writes before it."""
        index = 0
        for run in runs:
            before, *others = run.text.split(self._template.image)
            yield Run(before, run.kind)
            for text in others:
                yield Run(self.layout.prefix(index, count) + self._template.image, IMAGE)
                yield Run(text, run.kind)
                index += 1

    def _masked(self, runs: Sequence[Run]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Ids (T,) of the runs' text, and which of them are supervised."""
        text = "".join(run.text for run in runs)
        edges = list(accumulate((len(run.text) for run in runs), initial=0))
        ids, places = self._spelling.encode(text)
        borders = [edge for edge, (before, run) in zip(edges[1:], pairwise(runs), strict=False) if _parts(before, run)]
        if cuts := [border for border in borders if _straddled(places, border)]:
            ids, places = self._spelling.encode(text, cuts)
        supervised = np.zeros(len(ids), np.bool_)
        for run, start, stop in zip(runs, edges, edges[1:], strict=False):
            if run.kind in (ANSWER, ENDING):
                supervised[_token_at(places, start) : _token_at(places, stop)] = True
            elif run.kind == OPEN and not _straddled(places, start):
                supervised[(first := _token_at(places, start)) : first + 1] = True
        supervised[:1] = False
        return ids, supervised

    def image_ids(self, grid: Grid) -> npt.NDArray[np.int32]:
        """All tokens of an image with this grid. Raises ConfigError where its placeholders are not `grid.tokens`."""
        return self._tokens_of(grid)

    def _image_tokens(self, grid: Grid) -> npt.NDArray[np.int32]:
        ids, _ = self._spelling.encode(self._spelling.spell(self.layout.prompt(grid)))
        placeholders = int(np.count_nonzero(ids == self._image_id))
        if placeholders != grid.tokens:
            raise ConfigError(
                f"{self.layout!r} measures {grid} but writes {placeholders} placeholders: tokens and prompt must agree"
            )
        return ids


def _parts(before: Run, run: Run) -> bool:
    """Whether no token may belong to both runs: an answer starts here, or an image inside an answer."""
    return (before.kind == ANSWER) != (run.kind == ANSWER) and run.kind in (ANSWER, IMAGE)


def _token_at(places: Places, character: int) -> int:
    """The first token that starts at `character` or after it."""
    return bisect.bisect_left(places, (character, 0))


def _straddled(places: Places, character: int) -> bool:
    """Whether a token starts before `character` and ends after it."""
    index = _token_at(places, character)
    return index > 0 and places[index - 1][1] > character
