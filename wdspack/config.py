"""Everything a run is made of, as frozen values that are checked when made.

Read from Python (`DataConfig(...)`) or from YAML (`load_config("data.yaml")`); nothing deeper in the package looks at
the environment or at files to find a setting.
"""

import dataclasses
import os.path
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from wdspack.errors import ConfigError
from wdspack.layouts import FixedLayout, Layout, NativeLayout, TileLayout

Balance = Literal["images", "tiles"]
OnLong = Literal["drop", "truncate"]
OnError = Literal["skip_samples", "skip", "raise"]
Weigh = Literal["samples", "tokens"]

LAYOUTS: dict[str, type] = {"tile": TileLayout, "fixed": FixedLayout, "native": NativeLayout}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Shards that belong together.

    urls: one of, or a list of: a URL or path, a brace pattern (`s3://b/x-{0000..0511}.tar`), a glob, a folder
        (ending in `/`), or a manifest (`.txt`: one URL a line; `.json`: a list).
    weight: relative share of this source, in samples or tokens (`DataConfig.weigh`).
    name: what the ledger calls it; made from the urls where empty.
    strict_end: a shard without an end-of-archive block is an error; False counts it as "unclosed" and goes on.
    caption_prompt: what the user says in a sample that is an image and a caption; empty for the image alone.
    storage_options: passed to fsspec (endpoint, key, anonymous, …).
    """

    urls: str | tuple[str, ...]
    weight: float = 1.0
    name: str = ""
    strict_end: bool = True
    caption_prompt: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        urls = (self.urls,) if isinstance(self.urls, str | Path) else self.urls
        if not isinstance(urls, Sequence) or not all(isinstance(url, str | Path) for url in urls):
            raise ConfigError(f"Source.urls={self.urls!r}: give a path, a brace pattern, a glob, a manifest, or a list")
        if not urls or not all(map(str, urls)):
            raise ConfigError(f"Source.urls={self.urls!r} is empty: give a path, a brace pattern, a glob or a manifest")
        plain = str(urls[0]) if isinstance(self.urls, str | Path) else tuple(map(str, urls))
        object.__setattr__(self, "urls", plain)
        object.__setattr__(self, "weight", _number("Source.weight", self.weight, low=0, exclusive=True))
        for name, kind, what in (
            ("name", str, "a string"),
            ("caption_prompt", str, "a string"),
            ("strict_end", bool, "True or False"),
            ("storage_options", Mapping, "a mapping"),
        ):
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"Source.{name}={value!r}: it must be {what}")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How remote shards are read; nothing here changes what is read. The fields are those of `DataConfig`."""

    prefetch_bytes: int = 160 << 20
    retry_seconds: float = 120.0
    stall_seconds: float = 20.0
    cache_dir: str | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to stream and how to pack it. Two runs with equal configs (and lanes) see the same packs.

    sources: a url or a list of urls (one source, see `Source`), a `Source`, or a list of several.
    tokenizer: a name on the Hugging Face hub, a local path, or a transformers tokenizer (with a chat template).
    layout: how an image becomes tiles and tokens: `TileLayout`, `FixedLayout` or `NativeLayout`.
    seq_len: tokens in a pack.
    max_images, max_tiles: most images and tiles in a pack; None for no limit.
    balance: what every pack should carry nearly the same amount of, "images" or "tiles".
    buffer_size: samples that each lane holds to choose from; more fills packs better, shuffles more, costs memory.
    require_image: give packs without any image a blank one, so that every step has vision gradients.
    lanes: independent streams the run is divided into, a multiple of world size × workers; fixed for the whole run.
        None: as many as there are workers over all ranks, which ties the run to that shape.
    seed: of the order of shards and samples.
    epochs: passes over the data; None to go on for ever.
    shuffle: shards and samples in a seeded order; False keeps the order they are stored in.
    weigh: what `Source.weight` shares out, "samples" or "tokens".
    on_long: a sample longer than seq_len is dropped, or truncated after its last turn that fits.
    on_error: "skip_samples" counts and skips faulty samples and raises for faulty shards; "skip" counts and skips
        both; "raise" raises for both.
    max_drop_share: after 1,000 samples, raise when more than this share is dropped (over-long ones not counted).
    max_image_pixels: width × height above which an image is refused unread, as a decompression bomb.

    How remote shards are read (none of it changes the packs):

    prefetch_bytes: what each worker process may hold of shards ahead of the bytes it has come to.
    retry_seconds: how long a shard may go without one new byte before it is given up.
    stall_seconds: how long a request may stand still before it is made anew.
    cache_dir: a local folder for copies of whole shards, shared by all processes of a host; None for none.
    cache_bytes: how much of the disk the copies may fill; the least recently used go first.
    """

    sources: str | Source | Sequence[str | Source]
    tokenizer: Any
    layout: Layout
    seq_len: int = 4096
    max_images: int | None = None
    max_tiles: int | None = None
    balance: Balance = "images"
    buffer_size: int = 1024
    require_image: bool = False
    lanes: int | None = None
    seed: int = 0
    epochs: int | None = None
    shuffle: bool = True
    weigh: Weigh = "samples"
    on_long: OnLong = "drop"
    on_error: OnError = "skip_samples"
    max_drop_share: float = 0.05
    max_image_pixels: int = 89_478_485  # above it Pillow warns
    prefetch_bytes: int = Reading.prefetch_bytes
    retry_seconds: float = Reading.retry_seconds
    stall_seconds: float = Reading.stall_seconds
    cache_dir: str | Path | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", _sources(self.sources))
        for name, low, optional in (
            ("seq_len", 1, False), ("buffer_size", 1, False), ("max_image_pixels", 1, False), ("seed", 0, False),
            ("max_images", 1, True), ("max_tiles", 1, True), ("lanes", 1, True), ("epochs", 1, True),
            ("prefetch_bytes", 1, False), ("cache_bytes", 1, True),
        ):  # fmt: skip
            checked = _integer(f"DataConfig.{name}", getattr(self, name), low=low, optional=optional)
            object.__setattr__(self, name, checked)
        share = _number("DataConfig.max_drop_share", self.max_drop_share, low=0, high=1)
        object.__setattr__(self, "max_drop_share", share)
        for name, exclusive in (("retry_seconds", False), ("stall_seconds", True)):
            seconds = _number(f"DataConfig.{name}", getattr(self, name), low=0, exclusive=exclusive)
            object.__setattr__(self, name, seconds)
        if self.cache_dir is not None and not (isinstance(self.cache_dir, str | Path) and str(self.cache_dir)):
            raise ConfigError(f"DataConfig.cache_dir={self.cache_dir!r}: give the path of a local folder, or None")
        if (self.cache_dir is None) != (self.cache_bytes is None):
            raise ConfigError(
                f"cache_dir={self.cache_dir!r} with cache_bytes={self.cache_bytes!r}: give both, the folder for copies "
                "of shards and how many bytes of its disk they may fill, or neither"
            )
        for name, allowed in (("balance", Balance), ("weigh", Weigh), ("on_long", OnLong), ("on_error", OnError)):
            if getattr(self, name) not in get_args(allowed):
                choices = ", ".join(map(repr, get_args(allowed)))
                raise ConfigError(f"DataConfig.{name}={getattr(self, name)!r}: it must be one of {choices}")
        for name in ("require_image", "shuffle"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"DataConfig.{name}={getattr(self, name)!r}: it must be True or False")
        if not isinstance(self.layout, tuple(LAYOUTS.values())):
            names = ", ".join(cls.__name__ for cls in LAYOUTS.values())
            raise ConfigError(f"DataConfig.layout={self.layout!r}: it must be one of {names}")
        if self.tokenizer is None or self.tokenizer == "":
            raise ConfigError(f"DataConfig.tokenizer={self.tokenizer!r}: give a hub name, a local path or a tokenizer")

    @property
    def source_list(self) -> tuple[Source, ...]:
        """`sources` as every part of the package sees it: a tuple of `Source`, each with a name of its own."""
        return cast(tuple[Source, ...], self.sources)

    @property
    def reading(self) -> Reading:
        """The settings of the storage."""
        return Reading(
            prefetch_bytes=self.prefetch_bytes,
            retry_seconds=self.retry_seconds,
            stall_seconds=self.stall_seconds,
            cache_dir=None if self.cache_dir is None else str(self.cache_dir),
            cache_bytes=self.cache_bytes,
        )

    def replace(self, **changes: Any) -> "DataConfig":
        """A copy with some fields changed, checked anew."""
        return dataclasses.replace(self, **changes)


def load_config(path: str | Path) -> DataConfig:
    """Reads a `DataConfig` from a YAML file whose keys are its fields.

    `layout` is a mapping with a `type` (tile, fixed or native) and the layout's own fields; `sources` is what
    `DataConfig` takes, a `Source` being a mapping of its fields. Relative shard and tokenizer paths
    are relative to the working directory, as on a command line.

    Raises:
        ConfigError: no such file, not YAML, an unknown or missing key, or a value that is not allowed.
    """
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds {type(raw).__name__}; it must be a mapping of DataConfig's fields")
    if isinstance(raw.get("layout"), dict):
        fields = dict(raw["layout"])
        kind = fields.pop("type", None)
        if kind not in LAYOUTS:
            raise ConfigError(f"{path}: layout.type={kind!r}: it must be one of {', '.join(LAYOUTS)}")
        raw["layout"] = _build(LAYOUTS[kind], fields, f"{path}: layout")
    if isinstance(raw.get("sources"), list | dict):
        entries = raw["sources"] if isinstance(raw["sources"], list) else [raw["sources"]]
        raw["sources"] = [
            _build(Source, entry, f"{path}: sources[{n}]") if isinstance(entry, dict) else entry
            for n, entry in enumerate(entries)
        ]
    config: DataConfig = _build(DataConfig, raw, str(path))
    return config


def _build(cls: type, fields: dict[str, Any], where: str) -> Any:
    known = {f.name for f in dataclasses.fields(cls)}
    required = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if unknown := [str(key) for key in fields if key not in known]:
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; {cls.__name__} has {', '.join(sorted(known))}")
    if missing := sorted(required - fields.keys()):
        raise ConfigError(f"{where}: {cls.__name__} needs {', '.join(missing)}")
    return cls(**fields)


def _sources(given: Any) -> tuple[Source, ...]:
    entries = [given] if isinstance(given, str | Path | Source) else given
    if not isinstance(entries, Sequence) or not all(isinstance(entry, str | Path | Source) for entry in entries):
        raise ConfigError(f"DataConfig.sources={given!r}: give a url, a list of urls, a Source or a list of Sources")
    if not entries:
        raise ConfigError("DataConfig.sources is empty: give at least one source of shards")
    if not any(isinstance(entry, Source) for entry in entries):
        entries = [Source(urls=tuple(map(str, entries)))]
    sources = [entry if isinstance(entry, Source) else Source(urls=str(entry)) for entry in entries]
    named: dict[str, Source] = {}
    for n, source in enumerate(sources):
        name = source.name or _name(source, n, taken=named)
        if name in named:
            raise ConfigError(f"two sources are called {name!r}: names must differ, the ledger is kept by them")
        named[name] = dataclasses.replace(source, name=name)
    return tuple(named.values())


def _name(source: Source, number: int, taken: Iterable[str]) -> str:
    """`s3://bucket/llava-{0000..0511}.tar`, or a list from `llava-0000.tar` on, is called `llava`."""
    urls = [source.urls] if isinstance(source.urls, str) else source.urls
    stems = [url.rstrip("/").rsplit("/", 1)[-1].split(".")[0] for url in urls]
    common = stems[0] if len(stems) == 1 else os.path.commonprefix(stems).rstrip("0123456789")  # noqa: RUF071
    name = re.split(r"[{*?\[]", common)[0].strip("-_ ") or f"source{number}"
    return name if name not in taken else f"{name}-{number}"


def _integer(name: str, value: Any, *, low: int, optional: bool = False) -> int | None:
    """The value as a plain int (numpy's are taken, too)."""
    if optional and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ConfigError(f"{name}={value!r}: it must be a whole number of at least {low}{' or None' * optional}")
    return int(value)


def _number(name: str, value: Any, *, low: float, high: float = float("inf"), exclusive: bool = False) -> float:
    ok = isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high
    if not ok or (exclusive and value == low) or value == float("inf"):
        least = f"above {low}" if exclusive else f"at least {low}"
        most = f" and at most {high}" if high != float("inf") else ""
        raise ConfigError(f"{name}={value!r}: it must be a number {least}{most}")
    return float(value)
