"""A config made concrete: shards listed, tokenizer loaded, number of lanes fixed, and what identifies the sequence."""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wdspack import shards
from wdspack.chat import ChatEncoder
from wdspack.config import DataConfig, Reading
from wdspack.errors import ConfigError, ResumeError
from wdspack.hashing import digest
from wdspack.measure import Measurer
from wdspack.packing import PACKING_VERSION, Budget
from wdspack.tokenizer import load_tokenizer, pad_id, tokenizer_digest

logger = logging.getLogger("wdspack")

# Fields of DataConfig that do not change the sequence of packs, or that `identity` states in its own way.
_NOT_IDENTITY = {"sources", "tokenizer", "layout", "lanes", "on_error", "max_drop_share"} | {
    f.name for f in dataclasses.fields(Reading)
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every lane of a run shares.

    shards: the urls of each source, in listing order. tokenizer: with the layout's special tokens added.
    """

    config: DataConfig
    lanes: int
    shards: tuple[tuple[str, ...], ...]
    tokenizer: Any

    @cached_property
    def encoder(self) -> ChatEncoder:
        return ChatEncoder(self.tokenizer, self.config.layout)

    @cached_property
    def blank_length(self) -> int:
        """Tokens of the blank image that a pack without images gets; 0 where none is asked for."""
        return len(self.encoder.image_ids(self.config.layout.blank())) if self.config.require_image else 0

    @cached_property
    def measurer(self) -> Measurer:
        return Measurer(self.config, self.encoder, self.blank_length)

    @cached_property
    def budget(self) -> Budget:
        c = self.config
        return Budget(
            seq_len=c.seq_len,
            max_images=c.max_images,
            max_tiles=c.max_tiles,
            balance=c.balance,
            blank=self.blank_length,
        )

    @cached_property
    def base_digest(self) -> str:
        """Names the tokenizer as it is without the layout's special tokens."""
        return tokenizer_digest(load_tokenizer(self.config.tokenizer))

    @cached_property
    def pad_id(self) -> int:
        return pad_id(self.tokenizer, self.config.layout.image_token)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the sequence of packs depends on, as JSON types: equal identities, equal sequences."""
        c = self.config
        plain = {f.name: getattr(c, f.name) for f in dataclasses.fields(c) if f.name not in _NOT_IDENTITY}
        sources = {
            source.name: {
                "shards": digest(*urls),
                "weight": float(source.weight),
                "caption_prompt": source.caption_prompt,
                "strict_end": source.strict_end,
            }
            for source, urls in zip(c.source_list, self.shards, strict=True)
        }
        identity = {
            **plain,
            "packing": PACKING_VERSION,
            "lanes": self.lanes,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "layout": {"type": type(c.layout).__name__, **dataclasses.asdict(c.layout)},
            "sources": sources,
        }
        return {name: _as_json(value) for name, value in identity.items()}

    def check_identity(self, saved: Mapping[str, Any]) -> None:
        """Raises ResumeError that names what differs, when a state was saved by a run with other packs."""
        differing = _differences(saved, self.identity)
        if differing:
            raise ResumeError(
                "this state was saved by a run with other settings, so it cannot be continued: "
                + "; ".join(differing)
                + ". Use the settings it was saved with, or start anew"
            )

    def with_lanes(self, lanes: int) -> "Run":
        """The same run with another number of lanes."""
        if lanes == self.lanes:
            return self
        other = dataclasses.replace(self, lanes=lanes)
        other.__dict__["encoder"] = self.encoder  # does not depend on lanes, and takes a second to make
        return other


def resolve(config: DataConfig, *, lanes: int) -> Run:
    """Lists the shards, loads the tokenizer, checks that the layout's blank image fits.

    Raises:
        ConfigError: no shards, no usable tokenizer, or a pack too short for the layout's smallest image.
    """
    listed = tuple(
        tuple(shards.expand_urls(source.urls, storage_options=source.storage_options)) for source in config.source_list
    )
    for source, urls in zip(config.source_list, listed, strict=True):
        shared = len(urls) % lanes
        if (times := (len(urls) - shared + shared * lanes) / len(urls)) > 2:
            logger.warning(
                "source %r has %d shards for %d lanes: all lanes read the %d left over, so that %.1f times its bytes "
                "are read in an epoch; take lanes that divide the number of shards, or make more and smaller shards",
                source.name, len(urls), lanes, shared, times,
            )  # fmt: skip
    run = Run(config=config, lanes=lanes, shards=listed, tokenizer=load_tokenizer(config.tokenizer, config.layout))
    _ = run.encoder  # here its errors are raised at once, and forked workers share it
    if run.blank_length >= config.seq_len:
        raise ConfigError(
            f"require_image=True, but a blank image takes {run.blank_length} of the {config.seq_len} tokens of a "
            "pack; raise seq_len"
        )
    return run


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _as_json(v) for k, v in value.items()}
    return [_as_json(v) for v in value] if isinstance(value, list | tuple) else value


def _differences(saved: Any, ours: Any, path: str = "") -> list[str]:
    if isinstance(saved, Mapping) and isinstance(ours, Mapping):
        keys = sorted({*saved, *ours})
        return [d for k in keys for d in _differences(saved.get(k), ours.get(k), f"{path}.{k}" if path else k)]
    return [] if saved == ours else [f"{path}: saved {saved!r}, now {ours!r}"]
