"""Parquet files with embedded or referenced images: the Cauldron, FineVision, and whatever `datasets` has written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs

from wdspack.convert.compose import Draft
from wdspack.convert.readers.base import DraftReader
from wdspack.convert.readers.columns import BATCH, Columns
from wdspack.convert.readers.inputs import find_files
from wdspack.convert.readers.ratings import MinRating
from wdspack.convert.rows import Part, Reject
from wdspack.errors import ConfigError, ShardError

if TYPE_CHECKING:
    import pyarrow.parquet as pq


@dataclass(frozen=True, kw_only=True)
class ParquetReader(DraftReader):
    """A row has `images` (or `image`) and `texts`, `conversations`, `messages`, `caption` or `text`.

    urls: files, globs or folders, on any fsspec filesystem: "hf://datasets/HuggingFaceM4/the_cauldron/ai2d/*.parquet".
    image_column, caption_column, min_rating: see `Columns`. A part is a row group; of a local one a few pages are held
    at a time, of a remote one all of it, compressed.
    """

    urls: str | Sequence[str]
    image_column: str | None = None
    caption_column: str | None = None
    min_rating: MinRating | None = None

    def find_parts(self) -> Sequence[Part]:
        parts: list[Part] = []
        for url in find_files(self.urls, (".parquet",), self.storage_options):
            with self._open(url) as file:
                self._columns.checked(file.schema_arrow, url)
                groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
                parts += [Part(url, g.num_rows, (number, g.total_byte_size)) for number, g in enumerate(groups)]
        return parts

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        with self._open(part.url) as file:
            names = self._columns.checked(file.schema_arrow, part.url)
            for batch in file.iter_batches(BATCH, row_groups=[part.place[0]], columns=names):
                if start < batch.num_rows:
                    yield from self._columns.drafts(batch.slice(start, stop - start))
                start, stop = max(0, start - batch.num_rows), stop - batch.num_rows
                if stop <= 0:
                    return

    @property
    def _columns(self) -> Columns:
        return Columns(image=self.image_column, caption=self.caption_column, min_rating=self.min_rating)

    @contextmanager
    def _open(self, url: str) -> Iterator["pq.ParquetFile"]:
        pa, pq = _pyarrow()
        try:
            fs, path = url_to_fs(url, **(self.storage_options or {}))
            local = "://" not in url or url.startswith("file://")
            with (
                fs.open(path, "rb") as raw,
                pq.ParquetFile(raw, pre_buffer=not local, buffer_size=1 << 20 if local else 0) as file,
            ):
                yield file
        except FileNotFoundError as error:
            raise ConfigError(f"{url} is not there; give parquet files") from error
        except pa.ArrowInvalid as error:
            raise ConfigError(f"{url} is not a sound parquet file ({error}); fetch it again") from error
        except OSError as error:
            message = f"cannot be read ({type(error).__name__}: {error}); check access, credentials and the connection"
            raise ShardError(message, url=url, reason="unreadable") from error


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("parquet needs pyarrow; pip install 'wdspack[convert]'") from error
    return pa, pq
