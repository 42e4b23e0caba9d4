"""What conversion passes on: the rows of a dataset, each of which becomes one sample or one reject.

dataset ──Reader.parts──▶ [Part, …] ──Reader.read──▶ Record(id, files) | Reject(reason), one for each row
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """A row that can be written.

    id: what the dataset calls it, or None. files: extension ("json", "jpg", "0.png") → contents.
    """

    id: str | None
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that cannot. reason: one word, to be counted by; message: what was given, what is allowed."""

    id: str | None
    reason: str
    message: str


Row = Record | Reject

ASKED_FOR = frozenset({"filtered", "low_rating"})
"""Reasons of rejects that the user asked for: counted, but no fault of the dataset."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a dataset that can be read on its own: a row group, a range of lines, a shard.

    url: the file it is in. rows: their exact number. place: what the reader needs to find it (plain, picklable).
    """

    url: str
    rows: int
    place: Any = None


class Reader(ABC):
    """A dataset in one public form. Picklable, and without open files: it is sent to other processes."""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """All parts, in the dataset's order, which never depends on the order of a listing.

        Raises ConfigError if the dataset is not there, or not of this form; ShardError if it cannot be read.
        """

    @abstractmethod
    def read(self, part: Part, start: int, stop: int) -> Iterator[Row]:
        """Rows [start, stop) of `part`: exactly stop − start values, in order, the same every time."""

    def versions(self, parts: Sequence[Part]) -> list[tuple[str, int, str]]:
        """The files that decide the rows of `parts`, each with its size and version; none where that is not known.

        A run is only continued where they are the same: one that was edited in place may have as many rows as before.
        """
        del parts
        return []

    def finds(self, url: str) -> bool:
        """Whether a file would be taken for a part of the dataset, if it were there: an output must have none such."""
        del url
        return False

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """All that decides what the rows are, as plain JSON values: a run is only continued where this is the same."""
