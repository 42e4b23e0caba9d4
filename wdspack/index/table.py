"""The index as a file: one `index.parquet` for a set of shards.

One file rather than a sidecar a shard: it is fetched in one request and replaced in one step, doubles no listing, and
answers questions of the whole set (`SELECT shard, count(*) FROM 'index.parquet' GROUP BY shard`). The price is that
a changed shard rewrites all of it, which is about 20 bytes a sample.

Rows are samples, in the order of the shards and in each as they are stored; a row group holds whole shards.

| column | type | |
|---|---|---|
| shard | string | the url, relative to the index where it stands in or below its folder |
| key | string | |
| offset, nbytes | int64 | where its members stand in the (decompressed) archive, as in `RawSample` |
| crc32 | uint32 | of its files' names and contents in archive order |
| widths, heights | list of int32 | of its images as displayed, up to a broken one; null where its turns are faulty |
| reason | string | what is wrong with it, under some or every layout; null where nothing is |
| text_tokens_… | int32 | tokens besides its images', one column for each `Wording`; null where it cannot be encoded |

What holds for a whole shard, and what the texts were counted with, is JSON in the file's metadata, under `wdspack`.
"""

import json
import os
import posixpath
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Self

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from wdspack.errors import ConfigError, ShardError
from wdspack.storage import Options, Stat

NAME = "index.parquet"
FORMAT = 1
_METADATA = b"wdspack"
_GROUP = 1 << 16  # rows after which a row group ends: thousands of small ones would make a footer of megabytes


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """What holds for a whole shard.

    url: in the file as its column `shard`, in memory absolute. size, version: as `stat_shard` gave them before it was
    read. samples: rows of it. unclosed: it has no end-of-archive marker. markers: some text in it spells a grid marker
    (`<row_1_col_1>`). error: reason, offset and message of the `ShardError` that ended it, samples before it being rows
    nevertheless; None for a sound one.
    """

    url: str
    size: int
    version: str
    samples: int
    unclosed: bool = False
    markers: bool = False
    error: tuple[str, int | None, str] | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """What an index's texts were counted with. Equal headers, comparable counts.

    tokenizer: its name or path, "" for none. digest: of the tokenizer. wordings: layout's name → `Wording.digest` and
    the digest of all its special tokens. caption_prompt: see `Source`.
    """

    tokenizer: str = ""
    digest: str = ""
    wordings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    caption_prompt: str = ""


class Index:
    """An index that was read.

    Attributes:
        url: where it stands.
        header: what its texts were counted with.
        shards: absolute url → IndexedShard, in order.
    """

    def __init__(self, url: str, *, storage_options: Options = None) -> None:
        """Reads the metadata; samples are read when asked for.

        Raises:
            ConfigError: pyarrow is missing, or the file is not an index that this version reads.
            ShardError: "missing", "unreadable", or "damaged" where it begins as an index does.
        """
        parquet = import_pyarrow().parquet
        self.url = url
        try:
            fs, path = url_to_fs(url, **(storage_options or {}))
            with ExitStack() as closing:
                self._file = parquet.ParquetFile(closing.enter_context(fs.open(path, "rb")))
                closing.pop_all()  # from here on it is `close` that closes
        except FileNotFoundError as error:
            raise ShardError("no such index; make it with index_shards", url=url, reason="missing") from error
        except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
            message = f"cannot be read ({type(error).__name__}: {error}); make the index anew"
            raise ShardError(message, url=url, reason=_why(url, storage_options)) from error
        try:
            stored = json.loads((self._file.metadata.metadata or {})[_METADATA])
            if stored["format"] != FORMAT:
                raise ValueError(f"format {stored['format']}, where this version reads {FORMAT}")
            wordings = {name: (one, other) for name, (one, other) in stored["header"].pop("wordings").items()}
            self.header = Header(**stored["header"], wordings=wordings)
            shards = [_shard(entry, url) for entry in stored["shards"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{url} is not an index ({type(error).__name__}: {error}); make it anew") from error
        self.shards = {shard.url: shard for shard in shards}
        groups = (self._file.metadata.row_group(n).num_rows for n in range(self._file.metadata.num_row_groups))
        self._groups = list(accumulate(groups, initial=0))
        starts = accumulate((shard.samples for shard in shards), initial=0)
        self._first = dict(zip(self.shards, starts, strict=False))
        self._cached: tuple[Any, Any] = (None, None)

    def fault(self, url: str, stat: Stat) -> str:
        """Why the index says nothing of this shard as it is now: "not_indexed", "changed", or "" where it does.

        A shard of which no version is known counts as changed: another one may have the same size.
        """
        known = self.shards.get(absolute(url))
        if known is None:
            return "not_indexed"
        return "" if known.version and (known.size, known.version) == (stat.size, stat.version) else "changed"

    def find(self, url: str) -> IndexedShard:
        """What is known of a shard. Raises KeyError where it is not in the index."""
        return self.shards[absolute(url)]

    def samples(self, url: str, columns: Sequence[str] | None = None) -> Any:
        """The rows of one shard, a pyarrow Table. Raises KeyError where it is not in the index."""
        known, names = self.find(url), list(columns or self._file.schema_arrow.names)
        if not known.samples:
            return self._file.schema_arrow.empty_table().select(names)
        first = self._first[known.url]
        group = bisect_right(self._groups, first) - 1
        if self._cached[0] != (group, names):
            self._cached = (group, names), self._file.read_row_group(group, columns=names).select(names)
        return self._cached[1].slice(first - self._groups[group], known.samples)

    def check(self) -> None:
        """Reads all of it, 16 MB a million samples. Raises ShardError "damaged"."""
        try:
            for group in range(self._file.num_row_groups):
                self._file.read_row_group(group)
        except (OSError, ValueError) as error:
            message = f"its rows cannot be read ({type(error).__name__}: {error}); make the index anew"
            raise ShardError(message, url=self.url, reason="damaged") from error

    def close(self) -> None:
        self._file.close(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def schema(wordings: Iterable[str]) -> Any:
    """The columns of an index with these wordings."""
    pa = import_pyarrow()
    sides = pa.list_(pa.int32())
    word = pa.dictionary(pa.int32(), pa.string())
    columns = {
        "shard": word, "key": pa.string(), "offset": pa.int64(), "nbytes": pa.int64(), "crc32": pa.uint32(),
        "widths": sides, "heights": sides, "reason": word,
    }  # fmt: skip
    return pa.schema([*columns.items(), *((tokens_column(name), pa.int32()) for name in wordings)])


def tokens_column(wording: str) -> str:
    return f"text_tokens_{wording}"


def write_index(
    url: str, header: Header, found: Iterable[tuple[IndexedShard, Any]], *, storage_options: Options = None
) -> None:
    """Writes an index of shards and their rows, as they come, and puts it in place in one step when all have.

    Where `found` raises, those that came before, if any, make an index nevertheless: the next run goes on from it.
    """
    pa, rest = import_pyarrow(), iter(found)
    first = list(islice(rest, 1))
    columns = schema(header.wordings)
    plain = [name for name in columns.names if name not in ("shard", "reason")]
    shards: list[IndexedShard] = []
    waiting: list[Any] = []
    with _replacing(url, storage_options) as path, pa.parquet.ParquetWriter(
        path, columns, compression="zstd", use_dictionary=["shard", "reason", "widths.list.element",
        "heights.list.element"],
        column_encoding={
            name: "DELTA_BYTE_ARRAY" if name == "key" else "DELTA_BINARY_PACKED"
            for name in plain if name not in ("widths", "heights", "crc32")
        },
    ) as writer:  # fmt: skip

        def flush() -> None:
            if waiting:
                table = pa.concat_tables(waiting).unify_dictionaries()
                writer.write_table(table, row_group_size=max(1, len(table)))
                waiting.clear()

        try:
            for shard, table in chain(first, rest):
                shards.append(shard)
                waiting.append(table.select(columns.names))
                if sum(map(len, waiting)) >= _GROUP:
                    flush()
        finally:
            flush()
            listed = [{**asdict(shard), "url": relative(shard.url, url)} for shard in shards]
            stored = {"format": FORMAT, "header": asdict(header), "shards": listed}
            writer.add_key_value_metadata({_METADATA: json.dumps(stored)})


def rows(shard: IndexedShard, index_url: str, columns: Mapping[str, list[Any]], wordings: Iterable[str]) -> Any:
    """A shard's samples as a pyarrow Table. columns: all but `shard`."""
    name = [relative(shard.url, index_url)] * shard.samples
    return import_pyarrow().table({"shard": name, **columns}, schema=schema(wordings))


def absolute(url: str) -> str:
    """A url that means the same in every working directory."""
    url = url.removeprefix("file://")
    return url if "://" in url else os.path.abspath(os.path.expanduser(url))


def relative(url: str, index_url: str) -> str:
    """A shard's url as an index stores it: from its own folder where the shard is there or below."""
    url, folder = absolute(url), posixpath.dirname(absolute(index_url)) + "/"
    return url.removeprefix(folder)


def import_pyarrow() -> Any:
    """pyarrow with its parquet part. Raises ConfigError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError("an index needs pyarrow, which is not installed: pip install 'wdspack[convert]'") from error
    return pyarrow


def _why(url: str, storage_options: Options) -> str:
    """What keeps an index from being read: "damaged" if it is a parquet file, or empty, as after a full disk."""
    try:
        fs, path = url_to_fs(url, **(storage_options or {}))
        with fs.open(path, "rb") as file:
            return "damaged" if file.read(4) in (b"PAR1", b"") else "unreadable"
    except OSError:
        return "unreadable"


def _shard(entry: dict[str, Any], index_url: str) -> IndexedShard:
    url, error = entry.pop("url"), entry.pop("error")
    if "://" not in url and not url.startswith("/"):
        url = posixpath.join(posixpath.dirname(absolute(index_url)), url)
    return IndexedShard(**entry, url=url, error=error and tuple(error))


@contextmanager
def _replacing(url: str, storage_options: Options) -> Iterator[str]:
    """A local path to write to. What is there in the end, also after an error, takes the place of `url` at once."""
    fs, path = url_to_fs(url, **(storage_options or {}))
    local = isinstance(fs, LocalFileSystem)
    if local:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=posixpath.dirname(path) if local else None, prefix=".index-") as folder:
        written = os.path.join(folder, NAME)
        try:
            yield written
        finally:
            if os.path.exists(written):
                if local:
                    os.replace(written, path)
                else:
                    fs.put_file(written, path)
