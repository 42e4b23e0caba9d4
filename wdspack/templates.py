"""What a chat template makes of a conversation, with the place of every turn's content in it.

    messages ──template──▶ text ──────┐
    their shape ──template──▶ skeleton ┴─▶ runs: template, answer, ending, image

The skeleton is the same conversation rendered with a mark in each text's place. Its literal pieces are what the
template writes, so what stands between them in the real text is content: even where the template adds a system turn or
a thinking block, strips or rewrites content, or drops part of it. Skeletons are cached by the conversation's shape.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, takewhile, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from wdspack.errors import ConfigError, SampleError
from wdspack.spelling import LEAD, SLOT, TOKEN, Spelling, mark, unmark
from wdspack.types import Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What a run of the rendered text is. An ending is the template's text that closes an answer, through the first control
# token; open (and empty) stands after an answer that no control token closes.
TEMPLATE, ANSWER, ENDING, OPEN, IMAGE = range(5)

_Shape = tuple[tuple[str, str], ...]  # of each message its role and its parts' kinds: "t" text, "i" image
_SLOT, _TOKEN = re.compile(f"{SLOT}(..)", re.DOTALL), re.compile(f"{TOKEN}..", re.DOTALL)


class Run(NamedTuple):
    """A stretch of a rendered conversation, in the spelling of `Spelling`."""

    text: str
    kind: int


@dataclass(frozen=True, slots=True)
class _Skeleton:
    """literals: what the template writes around the slots. slots: the number of the text in each.
    answers: whether the assistant says that text. runs: the literals spelled, endings told apart."""

    literals: tuple[str, ...]
    slots: tuple[int, ...]
    answers: tuple[bool, ...]
    runs: tuple[tuple[Run, ...], ...]

    def contents(self, rendered: str, texts: Sequence[str]) -> list[str] | None:
        """What stands in each slot of a rendered conversation, None where that cannot be told for sure."""
        for guess in (texts, [text.strip() for text in texts]):
            contents = [guess[slot] for slot in self.slots]
            if "".join(chain(*zip_longest(self.literals, contents, fillvalue=""))) == rendered:
                return contents
        return self._between_literals(rendered)

    def _between_literals(self, rendered: str) -> list[str] | None:
        """The only way to place the literals in order, if there is just one: leftmost equals rightmost."""
        if not self.slots:
            return None
        first, *middle, last = self.literals
        start, stop = len(first), len(rendered) - len(last)
        if start > stop or not (rendered.startswith(first) and rendered.endswith(last)):
            return None
        leftmost: list[int] = []
        rightmost: list[int] = []
        left, right = start, stop
        for literal in middle:
            leftmost.append(rendered.find(literal, left, stop))
            left = leftmost[-1] + len(literal)
        for literal in reversed(middle):
            rightmost.insert(0, rendered.rfind(literal, start, right))
            right = rightmost[0]
        if leftmost != rightmost or -1 in leftmost:
            return None
        starts = [start, *(place + len(literal) for place, literal in zip(leftmost, middle, strict=True))]
        return [rendered[begin:end] for begin, end in zip(starts, [*leftmost, stop], strict=True)]


class Template:
    """The chat template of a tokenizer, for messages with images.

    It takes content as a list of entries, or as a string. What a list template writes for an image is replaced by
    `image_token`; in a string content, `image_token` stands where the image is.

    Raises:
        ConfigError: the template shows neither kind of content.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", spelling: Spelling, image_token: str) -> None:
        self._tokenizer, self._spelling = tokenizer, spelling
        self.image = spelling.mark(image_token)
        self._skeleton = lru_cache(maxsize=4096)(self._make_skeleton)
        self._image_literal = self._find_image_literal()
        self._prompt = self._find_generation_prompt()

    def runs(self, conversation: Conversation) -> list[Run]:
        """The rendered conversation; in it `self.image` stands for each image.

        Raises:
            SampleError: "template" where the template refuses the conversation, or rewrites it so that its turns
                cannot be told apart; "bad_text" where a text holds what marks begin with.
        """
        shape, texts = self._flatten(conversation)
        shown = [self._shielded(number, text) for number, text in enumerate(texts)]
        rendered = self._render(shape, shown)
        skeleton = self._skeleton(shape)
        if (contents := skeleton.contents(rendered, shown)) is None:
            self._skeleton.cache_clear()  # a template that writes the date writes another one after midnight
            skeleton = self._skeleton(shape)
            contents = skeleton.contents(rendered, shown)
        if contents is None:
            raise SampleError(
                "the chat template rewrites this conversation so that its turns cannot be told apart; "
                "simplify the template, or the text that it acts on",
                reason="template",
            )
        runs = list(skeleton.runs[0])
        for content, slot, following in zip(contents, skeleton.slots, skeleton.runs[1:], strict=True):
            if LEAD in content:
                content = content.replace(mark(SLOT, slot), texts[slot].strip())
            runs += (Run(content, ANSWER if skeleton.answers[slot] else TEMPLATE), *following)
        return runs

    def _flatten(self, conversation: Conversation) -> tuple[_Shape, list[str]]:
        """A conversation's shape, and one text for each "t" of it."""
        shape: list[tuple[str, str]] = []
        texts: list[str] = []
        for message in conversation.messages:
            parts = message.parts
            if LEAD in "".join(part for part in parts if isinstance(part, str)):
                raise SampleError(
                    f"a text holds the private-use characters {LEAD!a}, which are kept for marks; remove them",
                    reason="bad_text",
                )
            if self._image_literal is None:
                parts = ("".join(self.image if isinstance(part, int) else part for part in parts),)
            elif not parts or (message.role == "assistant" and isinstance(parts[-1], int)):
                parts = (*parts, "")  # the mask hangs on slots: each turn has one, each answer ends with one
            shape.append((message.role, "".join("i" if isinstance(part, int) else "t" for part in parts)))
            texts += (part for part in parts if isinstance(part, str))
        return tuple(shape), texts

    def _shielded(self, number: int, text: str) -> str:
        """A mark for a text that looks like control tokens, lest the template act on it; blanks stay around it."""
        if not self._spelling.looks_like_control(text):
            return text
        return text.replace(text.strip(), mark(SLOT, number))

    def _render(self, shape: _Shape, texts: Sequence[str]) -> str:
        remaining = iter(texts)
        if self._image_literal is None:
            return self._apply([{"role": role, "content": next(remaining)} for role, _ in shape])
        return self._apply([{"role": role, "content": _entries(kinds, remaining)} for role, kinds in shape])

    def _apply(self, messages: list[dict[str, Any]], asks: bool = False) -> str:
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
            return str(text)
        except Exception as error:  # a template is a program of its own: anything may come out of it
            roles = ", ".join(message["role"] for message in messages[:8])
            raise SampleError(f"the chat template refuses turns of {roles}: {error}", reason="template") from error

    def _make_skeleton(self, shape: _Shape) -> _Skeleton:
        owners = [(turn, role) for turn, (role, kinds) in enumerate(shape) for kind in kinds if kind == "t"]
        pieces = _SLOT.split(self._render(shape, [mark(SLOT, number) for number in range(len(owners))]))
        literals, slots = pieces[::2], [unmark(tail) for tail in pieces[1::2]]
        turns = [*(owners[slot][0] for slot in slots), None]
        answers = [role == "assistant" for _, role in owners]
        first, *others = map(self._spelled, literals)
        runs: list[tuple[Run, ...]] = [(Run(first, TEMPLATE),)]
        for number, (slot, text) in enumerate(zip(slots, others, strict=True)):
            if not answers[slot]:
                runs.append((Run(text, TEMPLATE),))
            elif turns[number] == turns[number + 1]:  # between two texts of one answer
                runs.append((Run(text, ANSWER),))
            else:
                runs.append(self._after_answer(text))
        for number, slot in enumerate(slots):
            if answers[slot] and runs[number][-1].kind == TEMPLATE:
                runs[number] = (*runs[number][:-1], *self._before_answer(runs[number][-1].text))
        return _Skeleton(tuple(literals), tuple(slots), tuple(answers), tuple(runs))

    def _before_answer(self, text: str) -> tuple[Run, Run]:
        """Blanks that the template writes between the generation prompt and an answer are for the model to say.

        After "Assistant:" a model goes on with " yes", one token; the template writes "Assistant: " + "yes".
        """
        head, prompt, blanks = text.rpartition(self._prompt) if self._prompt else (text, "", "")
        if not blanks.isspace():
            return Run(text, TEMPLATE), Run("", ANSWER)
        return Run(head + prompt, TEMPLATE), Run(blanks, ANSWER)

    def _after_answer(self, text: str) -> tuple[Run, Run]:
        control = _TOKEN.search(text)
        if control is None or control[0] == self.image:
            return Run("", OPEN), Run(text, TEMPLATE)
        return Run(text[: control.end()], ENDING), Run(text[control.end() :], TEMPLATE)

    def _spelled(self, literal: str) -> str:
        if self._image_literal is not None:
            literal = literal.replace(self._image_literal, self.image)
        return self._spelling.spell(literal)

    def _find_generation_prompt(self) -> str:
        """What the template writes for the model to go on from, spelled; "" where it does not say."""
        text = mark(SLOT, 0)
        content = text if self._image_literal is None else _entries("t", iter((text,)))
        try:
            without, prompted = (self._apply([{"role": "user", "content": content}], asks) for asks in (False, True))
        except SampleError:  # it needs more than a user's turn
            return ""
        return self._spelled(prompted.removeprefix(without)) if prompted.startswith(without) else ""

    def _find_image_literal(self) -> str | None:
        """What a list template writes for an image, such as "<|vision_start|><|image_pad|><|vision_end|>".

        It is what an image entry between two texts adds to the rendered text; None for a string template.
        """
        before, after, answer = (mark(SLOT, number) for number in range(3))

        def shows(*contents: Any) -> str:
            roles = ("user", "assistant")
            try:
                text = self._apply([{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)])
            except SampleError:
                return ""
            return text if before in text and answer in text else ""

        without = shows(_entries("tt", iter((before, after))), _entries("t", iter((answer,))))
        with_image = shows(_entries("tit", iter((before, after))), _entries("t", iter((answer,))))
        if without and len(with_image) > len(without):
            start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(without, with_image, strict=False)))
            literal = with_image[start : start + len(with_image) - len(without)]
            return self._spelling.control_part(literal) or literal.strip()
        if not shows(before, answer):
            raise ConfigError("the chat template shows no text of a user's and an assistant's turn; use another")
        return None


def _entries(kinds: str, texts: Iterator[str]) -> list[dict[str, str]]:
    return [{"type": "image"} if kind == "i" else {"type": "text", "text": next(texts)} for kind in kinds]
