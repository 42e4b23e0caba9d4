"""Tokenizers: loading one, naming its contents, and training a small one."""

import copy
import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from wdspack.errors import ConfigError
from wdspack.hashing import digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Line breaks by themselves, so that "\n\n" is one token whatever follows; digits one by one; words with their blank.
_WORDS = r"\n+|\d| ?\p{L}+| ?[^\s\p{L}\d]+|[^\S\n]+(?!\S)|[^\S\n]"


class NeedsTokens(Protocol):
    """What needs special tokens: a layout."""

    @property
    def special_tokens(self) -> tuple[str, ...]: ...


def load_tokenizer(tokenizer: object, layout: NeedsTokens | None = None) -> "PreTrainedTokenizerBase":
    """A tokenizer by name, by path, or itself, with the special tokens of the layout, if any, that it lacks.

    A tokenizer object is copied, never changed.

    Raises:
        ConfigError: nothing of that name can be loaded, or the object is no tokenizer.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    if isinstance(tokenizer, PreTrainedTokenizerBase):
        loaded = copy.deepcopy(tokenizer)
    elif isinstance(tokenizer, str | Path):
        try:
            loaded = AutoTokenizer.from_pretrained(str(tokenizer))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"tokenizer={str(tokenizer)!r} cannot be loaded; give a model's name or a folder with a "
                f"tokenizer.json: {error}"
            ) from error
    else:
        raise ConfigError(f"tokenizer is a {type(tokenizer).__name__}; give a name, a path or a transformers tokenizer")
    needed = layout.special_tokens if layout else ()
    lacking = [token for token in needed if token not in loaded.added_tokens_encoder]
    loaded.add_special_tokens({"extra_special_tokens": lacking}, replace_extra_special_tokens=False)
    return loaded


def tokenizer_digest(tokenizer: "PreTrainedTokenizerBase") -> str:
    """32 hex digits that name what a tokenizer does: its vocabulary, merges, rules, special tokens and chat template.

    Where it was loaded from, and padding or truncation as last used, do not count.
    """
    contents = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    parts = (contents, tokenizer.special_tokens_map, tokenizer.chat_template)
    return digest(*(json.dumps(part, sort_keys=True) for part in parts))


def pad_id(tokenizer: "PreTrainedTokenizerBase", image_token: str) -> int:
    """The id to pad with: the tokenizer's own, or else its end of sequence, or else 0; never the image token's."""
    image = tokenizer.convert_tokens_to_ids(image_token)
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0, 1)
    return next(number for number in candidates if number is not None and number != image)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4096) -> "PreTrainedTokenizerFast":
    """A small byte-level BPE with a ChatML template; the same texts give the same tokenizer.

    Every text decodes to itself. "\\n" and "\\n\\n" are one token each.

    Raises:
        ConfigError: vocab_size leaves no room for the 256 bytes, the special tokens and "\\n\\n".
    """
    from transformers import PreTrainedTokenizerFast

    least = 256 + len(_SPECIAL) + 1
    if vocab_size < least:
        raise ConfigError(f"vocab_size={vocab_size}; the bytes and special tokens alone need {least}")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in _SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    paragraphs = ("\n\n0" * 100_000,)  # frequent enough to be merged early
    backend.train_from_iterator(chain(paragraphs, texts), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_CHATML
    )
