"""CSV and TSV of image paths and captions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from wdspack.convert.compose import Draft
from wdspack.convert.readers.base import DraftReader
from wdspack.convert.readers.chat import row_id
from wdspack.convert.readers.inputs import find_files, there
from wdspack.convert.readers.stretches import Split, Window, rows_of, split_table, stretches
from wdspack.convert.rows import Part, Reject
from wdspack.errors import ConfigError
from wdspack.storage import open_shard

_ENDINGS = (".csv", ".tsv", ".tab", ".csv.gz", ".tsv.gz")
_PATHS = ("path", "image", "image_path", "filepath", "file_path", "file_name", "filename", "file")
_CAPTIONS = ("caption", "text", "title", "description")


@dataclass(frozen=True, kw_only=True)
class TableReader(DraftReader):
    """A row names an image below `images` and says what is on it.

    urls: files, globs or folders. path, caption: names of the columns, by default the first of the usual ones; other
    columns are kept, as strings. delimiter: by default a tab for .tsv and .tab, else a comma. quote: '"' as in CSV and
    pandas, or "" where quotes are plain characters. header: the columns' names, for files whose first line is a row.
    """

    urls: str | Sequence[str]
    path: str | None = None
    caption: str | None = None
    delimiter: str | None = None
    quote: str = '"'
    header: Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.delimiter is not None and len(self.delimiter) != 1) or len(self.quote) > 1:
            raise ConfigError(f"delimiter={self.delimiter!r}, quote={self.quote!r}; give one character each")

    def find_parts(self) -> Sequence[Part]:
        parts: list[Part] = []
        for url in find_files(self.urls, _ENDINGS, self.storage_options):
            with there("a .csv or .tsv file"):
                names, begin = self._names(url)
                path, caption = _column(url, names, self.path, _PATHS), _column(url, names, self.caption, _CAPTIONS)
                found = stretches(url, self._split(url), self.storage_options, start=begin)
            parts += [Part(part.url, part.rows, (*part.place, tuple(names), path, caption)) for part in found]
        return parts

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        offset, end, names, path, caption = part.place
        stretch = Part(part.url, part.rows, (offset, end))
        for row in rows_of(stretch, start, stop, self._split(part.url), self.storage_options):
            yield _draft(row, names, path, caption)

    def _names(self, url: str) -> tuple[list[str], int]:
        """The columns' names, and where the first row begins."""
        if self.header is not None:
            return list(self.header), 0
        with open_shard(url, storage_options=self.storage_options) as stream:
            for _, end, row in islice(self._split(url)(Window(stream)), 1):
                return [name.decode("utf-8", "replace").strip() for name in row], end
        return [], 0

    def _split(self, url: str) -> Split[list[bytes]]:
        tabs = url.removesuffix(".gz").endswith((".tsv", ".tab"))
        return split_table(self.delimiter or ("\t" if tabs else ","), self.quote)


def _column(url: str, names: Sequence[str], wanted: str | None, usual: Sequence[str]) -> int:
    for name in (wanted,) if wanted is not None else usual:
        if name in names:
            return names.index(name)
    given = ", ".join(map(repr, names)) or "none"
    what = repr(wanted) if wanted is not None else f"any of {', '.join(usual)}"
    raise ConfigError(f"{url} has the columns {given}, but not {what}; name the columns, or give header=")


def _draft(row: Sequence[bytes], names: Sequence[str], path: int, caption: int) -> Draft | Reject:
    if len(row) != len(names):
        return Reject(None, "bad_row", f"{len(row)} fields, but the table has {len(names)} columns")
    try:
        texts = [field.decode() for field in row]
    except UnicodeDecodeError as error:
        return Reject(None, "bad_text", f"not UTF-8: {error.object[:40]!r}; write the table as UTF-8")
    kept = {name: text for at, (name, text) in enumerate(zip(names, texts, strict=True)) if at not in (path, caption)}
    kept = {name: text for name, text in kept.items() if text and name not in ("messages", "conversations", "texts")}
    return Draft(row_id(kept.get("id")), {**kept, "caption": texts[caption]}, (texts[path] or None,))
