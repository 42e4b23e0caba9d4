"""Two spellings of one vocabulary, so that text which looks like a control token stays text.

A tokenizer finds its added tokens ("<|im_end|>", "<image>") wherever their characters stand. `Spelling` copies a
tokenizer and gives each added token a mark of private-use characters for a name: whoever writes a control token writes
its mark, and "<|im_end|>" is five ordinary tokens. Apart from that the copy yields the original's ids, because an
added token splits the text around it whatever it is called.
"""

import json
import re
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

# A mark is a lead, a kind, and a number as two characters: all marks are equally long, and none begins inside another.
# Texts must not hold the lead's two characters in this order.
LEAD = "\U0010f8d3\U000f93a7"
SLOT, TOKEN = LEAD + "\U000ff001", LEAD + "\U000ff002"

Places = list[tuple[int, int]]  # where each token starts and ends, in characters


def mark(kind: str, number: int) -> str:
    """The mark of a kind and a number below 2**27."""
    return kind + chr(0xF0000 + (number >> 12)) + chr(0xF0000 + (number & 0xFFF))


def unmark(tail: str) -> int:
    """The number of a mark from its last two characters."""
    return (ord(tail[0]) - 0xF0000 << 12) + ord(tail[1]) - 0xF0000


class Spelling:
    """A tokenizer whose control tokens go by marks.

    Attributes:
        ids: control token → its id. Added tokens that are all blanks control nothing and keep their names.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().items()
        self.ids = {token.content: number for number, token in added if token.content.strip()}
        self._marks = {token: mark(TOKEN, number) for number, token in enumerate(self.ids)}
        longest_first = sorted(self.ids, key=len, reverse=True)  # as the tokenizer itself prefers them
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._cut = mark(TOKEN, len(self.ids))
        self._tokenizer = _renamed(tokenizer, self._marks)
        self._tokenizer.add_special_tokens([AddedToken(self._cut, normalized=False)])
        self._cut_id = self._tokenizer.token_to_id(self._cut)
        self._original = np.arange(1 + max(self._tokenizer.get_vocab().values()), dtype=np.int32)
        for token, name in self._marks.items():
            self._original[self._tokenizer.token_to_id(name)] = self.ids[token]

    def mark(self, token: str) -> str:
        """How a control token is written."""
        return self._marks[token]

    def looks_like_control(self, text: str) -> bool:
        """Whether the original tokenizer would find a control token in the text."""
        return self._control.search(text) is not None

    def control_part(self, text: str) -> str:
        """From the first control token of the text through the last, "" where there is none."""
        found = list(self._control.finditer(text))
        return text[found[0].start() : found[-1].end()] if found else ""

    def spell(self, text: str) -> str:
        """Text whose control tokens are meant as such, with their marks instead."""
        return self._control.sub(lambda match: self._marks[match[0]], text)

    def encode(self, text: str, cuts: Sequence[int] = ()) -> tuple[npt.NDArray[np.int32], Places]:
        """Ids (T,) as the original numbers them, and the tokens' places in `text`.

        cuts: ascending positions that no token may straddle.
        """
        edges = [0, *cuts, len(text)]
        marked = self._cut.join(text[start:stop] for start, stop in pairwise(edges))
        encoding = self._tokenizer.encode(marked, add_special_tokens=False)
        ids, places = np.array(encoding.ids, np.int32), encoding.offsets
        if cuts:
            real = ids != self._cut_id
            shifts = (len(self._cut) * np.cumsum(~real))[real].tolist()
            ids = ids[real]
            places = [
                (start - shift, stop - shift)
                for (start, stop), shift in zip(compress(places, real), shifts, strict=True)
            ]
        return self._original[ids], places


def _renamed(tokenizer: Tokenizer, names: dict[str, str]) -> Tokenizer:
    """A copy in which the tokens of `names` are called otherwise; without truncation, padding and post-processing.

    A control token may be an entry of the model's vocabulary as well, where a unigram or a word model would find it
    in plain text; so it is renamed there too, unless merging ordinary tokens makes it (the copy then numbers it anew).
    """
    spec: dict[str, Any] = json.loads(tokenizer.to_str()) | {
        "truncation": None,
        "padding": None,
        "post_processor": None,
    }
    for token in spec["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = spec["model"]
    merged = {"".join(pair) for pair in model.get("merges", ())}
    renamed = {token: name for token, name in names.items() if token not in merged}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed.get(token, token): number for token, number in model["vocab"].items()}
    else:
        model["vocab"] = [[renamed.get(token, token), score] for token, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    return Tokenizer.from_str(json.dumps(spec))
