"""Datasets by the names that `datasets.load_dataset` knows: of the hub, of local folders, or saved to disk."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wdspack.convert.compose import Draft
from wdspack.convert.readers.base import PART_ROWS, DraftReader
from wdspack.convert.readers.columns import BATCH, Columns
from wdspack.convert.readers.inputs import absolute
from wdspack.convert.readers.ratings import MinRating
from wdspack.convert.rows import Part, Reject
from wdspack.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class HubReader(DraftReader):
    """The rows of a dataset that `datasets` prepares: downloaded and kept as Arrow files in its cache.

    For what is larger than the disk give its parquet files, as "hf://datasets/…", to `ParquetReader`.

    Images that it only refers to, as for a folder of images, are read from below `images`, by default that folder.

    name: as for `load_dataset`, or a folder of `save_to_disk`. config, split, revision: which part and state of it.
    image_column, caption_column, min_rating: as for parquet.
    """

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    min_rating: MinRating | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if os.path.isdir(self.name):
            object.__setattr__(self, "name", absolute(self.name))

    def find_parts(self) -> Sequence[Part]:
        data = self._load()
        self._columns.checked(data.features.arrow_schema, self.name)
        starts = range(0, len(data), PART_ROWS)
        return [Part(f"{self.name}/", min(PART_ROWS, len(data) - start), (start, data.data.nbytes)) for start in starts]

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        data, first = self._load().with_format("arrow"), part.place[0]
        for at in range(first + start, first + stop, BATCH):
            yield from self._columns.drafts(data[at : min(at + BATCH, first + stop)])

    def sources(self, parts: Sequence[Part]) -> Sequence[str]:
        """None: `datasets` keeps a version of its own, and what it prepares again has as many bytes as before."""
        del parts
        return []

    @property
    def _columns(self) -> Columns:
        return Columns(image=self.image_column, caption=self.caption_column, min_rating=self.min_rating)

    def _load(self) -> Any:
        return _load(self.name, self.config, self.split, self.revision)


@lru_cache(maxsize=1)  # opening one takes seconds; every process does it for its first part
def _load(name: str, config: str | None, split: str, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError("names of datasets need the library; pip install 'wdspack[convert]'") from error
    try:
        if os.path.isfile(os.path.join(name, "state.json")):
            return datasets.load_from_disk(name)
        if os.path.isfile(os.path.join(name, "dataset_dict.json")):
            return datasets.load_from_disk(name)[split]
        return datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # of many kinds: the library's, the hub's, the builder's
        message = f"{name!r} (config {config!r}, split {split!r}) cannot be loaded ({type(error).__name__}: {error})"
        raise ConfigError(f"{message}; give what datasets.load_dataset takes") from error
