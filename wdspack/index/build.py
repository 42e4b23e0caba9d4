"""Shards → an index of them, by the code that streaming itself reads and measures with.

url ──stat──▶ as indexed before? ──yes──▶ its rows, copied ─────────────────────────┬──write_index──▶ index.parquet
                 └──no──▶ TarReader ─▶ conversation ─▶ image headers, text tokens ──┘
"""

import logging
import posixpath
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from wdspack import images, records
from wdspack.chat import ChatEncoder
from wdspack.errors import ConfigError, SampleError, ShardError
from wdspack.index.pool import in_order
from wdspack.index.table import NAME, Header, Index, IndexedShard, absolute, rows, tokens_column, write_index
from wdspack.index.wording import GRID_MARKER, Wording, text_tokens, wording
from wdspack.layouts import Layout
from wdspack.shards import expand_urls
from wdspack.storage import Options, Stat, open_shard, stat_shard
from wdspack.tar import TarReader
from wdspack.tokenizer import load_tokenizer, tokenizer_digest
from wdspack.types import RawSample

logger = logging.getLogger("wdspack")

ANY_SIZE = sys.maxsize  # pixels: the limit is the config's, and applied when sizes are taken from the index
_WIDEST = (1 << 31) - 1  # pixels; headers can state more
_COLUMNS = ("key", "offset", "nbytes", "crc32", "widths", "heights", "reason")


@dataclass
class Summary:
    """What `index_shards` did. url: of the index. read, kept: shards read, and taken over from the index before.
    samples, nbytes: of all shards. faulty: samples by reason. damaged: url → what ended it."""

    url: str
    read: int = 0
    kept: int = 0
    samples: int = 0
    nbytes: int = 0
    faulty: Counter[str] = field(default_factory=Counter)
    damaged: dict[str, str] = field(default_factory=dict)

    def add(self, shard: IndexedShard, table: Any, *, kept: bool) -> None:
        """Counts a shard and its rows."""
        self.kept += kept
        self.read += not kept
        self.samples += shard.samples
        self.nbytes += shard.size
        self.faulty.update(reason for reason in table["reason"].to_pylist() if reason)
        if shard.error:
            self.damaged[shard.url] = shard.error[2]


def index_shards(
    urls: str | Sequence[str],
    out: str | None = None,
    *,
    tokenizer: str | None = None,
    layouts: Sequence[Layout] = (),
    caption_prompt: str = "",
    workers: int = 1,
    afresh: bool = False,
    storage_options: Options = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Indexes shards, reading only those that are new or changed since the index in `out` was made.

    urls: as `expand_urls` takes them.
    out: url of the index; `index.parquet` in the shards' folder where None.
    tokenizer: name or path, to count text tokens with; None counts none.
    layouts: for which text tokens are counted, one of each kind; their sides and token numbers do not matter.
    caption_prompt: as the `Source` will have it.
    workers: processes.
    afresh: read everything, whatever there is.
    progress: called with the number of shards done and of all.

    A damaged shard does not stop it: the samples before the damage are indexed, the damage is noted, and the next run
    reads it again. When it is interrupted, the index holds the shards done by then, and the others as it did before.

    Raises:
        ConfigError: no shards, or ones of several folders without `out`; a tokenizer that cannot be used; layouts
            without a tokenizer, or two of a kind; pyarrow is missing.
    """
    listed = expand_urls(urls, storage_options=storage_options)
    target = out or default_place(listed)
    recipe = Recipe(tokenizer, tuple(layouts), caption_prompt)
    header = recipe.header()
    before = None if afresh else _earlier(target, header, storage_options)
    look = partial(_look, scanner=partial(_scanner, recipe, header.digest), storage_options=storage_options)
    jobs = ((url, before.shards.get(absolute(url)) if before else None) for url in listed)
    summary = Summary(target)

    def found() -> Iterator[tuple[IndexedShard, Any]]:
        done = 0
        try:
            for shard, columns in in_order(look, jobs, workers=workers):
                table = before.samples(shard.url) if columns is None and before else None
                if table is None:
                    table = rows(shard, target, columns or {}, header.wordings)
                summary.add(shard, table, kept=columns is None)
                yield shard, table
                done += 1
                if progress:
                    progress(done, len(listed))
        except (Exception, KeyboardInterrupt):  # what was known of the others stays known
            for url in map(absolute, listed[done:]):
                if before and url in before.shards:
                    yield before.shards[url], before.samples(url)
            raise

    try:
        write_index(target, header, found(), storage_options=storage_options)
    finally:
        if before:
            before.close()
    return summary


def default_place(urls: Sequence[str]) -> str:
    """`index.parquet` in the folder of the shards. Raises ConfigError where they do not share one."""
    folders = {posixpath.dirname(absolute(url)) for url in urls}
    if len(folders) > 1:
        shown = ", ".join(sorted(folders)[:3])
        raise ConfigError(f"shards of {len(folders)} folders ({shown}, …); say where the index is to be: out=")
    return posixpath.join(folders.pop(), NAME)


@dataclass(frozen=True)
class Recipe:
    """What is recorded of a sample besides where it stands; picklable, and equal ones record the same."""

    tokenizer: str | None = None
    layouts: tuple[Layout, ...] = ()
    caption_prompt: str = ""

    def header(self) -> Header:
        """Raises ConfigError as `index_shards` does."""
        if bool(self.tokenizer) != bool(self.layouts):
            raise ConfigError(
                f"tokenizer={self.tokenizer!r}, layouts={self.layouts!r}: text tokens depend on both; give both or none"
            )
        wordings: list[Wording] = [wording(layout) for layout in self.layouts]
        named = {each.name: (each.digest, each.tokens) for each in wordings}
        if len(named) < len(wordings):
            raise ConfigError(f"two layouts of a kind: {[each.name for each in wordings]}; give one of each")
        known = tokenizer_digest(load_tokenizer(self.tokenizer)) if self.tokenizer else ""
        return Header(self.tokenizer or "", known, named, self.caption_prompt)


class Scanner:
    """Reads shards by one recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._encoders: dict[str, tuple[ChatEncoder, Layout]] = {
            wording(layout).name: (ChatEncoder(load_tokenizer(recipe.tokenizer, layout), layout), layout)
            for layout in recipe.layouts
        }

    def scan(self, url: str, stat: Stat, storage_options: Options) -> tuple[IndexedShard, dict[str, list[Any]]]:
        """A shard and the columns of its samples."""
        names = (*_COLUMNS, *map(tokens_column, self._encoders))
        columns: dict[str, list[Any]] = {name: [] for name in names}
        error, unclosed, markers = None, False, False
        try:
            with open_shard(url, storage_options=storage_options) as stream:
                reader = TarReader(stream, strict_end=False)
                for raw in reader:
                    row, marked = self._sample(raw)
                    markers = markers or marked
                    for name in names:
                        columns[name].append(row.get(name))
                unclosed = reader.unclosed
        except ShardError as fault:
            error = fault.reason, fault.offset, str(fault)
        count = len(columns["key"])
        return IndexedShard(absolute(url), stat.size, stat.version, count, unclosed, markers, error), columns

    def _sample(self, raw: RawSample) -> tuple[dict[str, Any], bool]:
        """A row, and whether its texts spell a grid marker. Faults are looked for in the order of `Measurer`."""
        row: dict[str, Any] = {
            "key": raw.key, "offset": raw.offset, "nbytes": raw.nbytes, "crc32": checksum(raw.files), "reason": None,
        }  # fmt: skip
        try:
            conversation = records.conversation_from(raw, caption_prompt=self._recipe.caption_prompt)
        except SampleError as error:
            return {**row, "reason": error.reason}, False
        row["widths"], row["heights"] = widths, heights = [], []
        parts = chain.from_iterable(message.parts for message in conversation.messages)
        marked = any(isinstance(part, str) and GRID_MARKER.search(part) for part in parts)
        try:
            for data in conversation.images:
                info = images.probe(data, max_pixels=ANY_SIZE)
                widths.append(min(info.width, _WIDEST))
                heights.append(min(info.height, _WIDEST))
        except SampleError as error:
            return {**row, "reason": error.reason}, marked
        for name, (encoder, layout) in self._encoders.items():
            try:
                row[tokens_column(name)] = text_tokens(encoder, layout, conversation)
            except SampleError as error:
                row["reason"] = error.reason
        return row, marked


def checksum(files: Mapping[str, bytes]) -> int:
    """CRC-32 of files' names and contents, in archive order."""
    crc = 0
    for extension, data in files.items():
        crc = zlib.crc32(data, zlib.crc32(f"{extension}\0{len(data)}\0".encode(), crc))
    return crc


@lru_cache(maxsize=1)
def _scanner(recipe: Recipe, digest: str) -> Scanner:  # noqa: ARG001 (a path may come to hold another tokenizer)
    """A process loads its tokenizer once."""
    return Scanner(recipe)


def _look(
    job: tuple[str, IndexedShard | None], *, scanner: Callable[[], Scanner], storage_options: Options
) -> tuple[IndexedShard, dict[str, list[Any]] | None]:
    """A shard and its columns; None for the columns where it is as it was.

    The version is asked for before the shard is read: if it is replaced meanwhile, the index is stale, not wrong.
    """
    url, known = job
    try:
        stat = stat_shard(url, storage_options=storage_options)
    except ShardError as fault:
        error = fault.reason, fault.offset, str(fault)
        return IndexedShard(absolute(url), 0, "", 0, error=error), {}
    if known and known.version and not known.error and (known.size, known.version) == stat:
        return known, None
    return scanner().scan(url, stat, storage_options)


def _earlier(url: str, header: Header, storage_options: Options) -> Index | None:
    """The index that is there, if its rows can be taken over; a damaged one is warned of."""
    index = None
    try:
        index = Index(url, storage_options=storage_options)
        if replace(index.header, tokenizer=header.tokenizer) == header:  # its path does not count, its contents do
            index.check()
            return index
    except ShardError as error:
        if error.reason not in ("missing", "damaged"):
            raise
        if error.reason == "damaged":
            logger.warning("all shards are read, as the index there is damaged: %s", error)
    if index:
        index.close()
    return None
