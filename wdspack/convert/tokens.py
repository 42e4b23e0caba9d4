"""Text tokens of a sample, as training will count them: template and all, but nothing that stands for an image."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from wdspack.errors import SampleError
from wdspack.layouts import FixedLayout
from wdspack.records import conversation_of, images_of, parse_json

if TYPE_CHECKING:
    from wdspack.chat import ChatEncoder

_LAYOUT = FixedLayout()  # one that writes nothing around images


def text_tokens(files: Mapping[str, bytes], tokenizer: str) -> int:
    """Tokens of the sample's conversation without its images; 0 for one that training would drop.

    Raises ConfigError for a tokenizer that cannot be loaded or has no chat template.
    """
    from wdspack.index.wording import text_tokens as count  # imports transformers, as the encoder does

    encoder = _encoder(tokenizer)
    try:
        images = images_of(files)
        record = parse_json(files["json"]) if "json" in files else {}
        conversation = conversation_of(record, images, txt=files.get("txt"))
        return count(encoder, _LAYOUT, conversation)
    except SampleError:
        return 0


@lru_cache(maxsize=1)
def _encoder(tokenizer: str) -> "ChatEncoder":
    from wdspack.chat import ChatEncoder
    from wdspack.tokenizer import load_tokenizer

    return ChatEncoder(load_tokenizer(tokenizer, _LAYOUT), _LAYOUT)
