"""How far a pass is, and whether too many rows are rejected to go on."""

import math
from collections import Counter
from collections.abc import Callable, Iterable

from wdspack.convert.receipts import Receipt, Survey
from wdspack.convert.rows import ASKED_FOR
from wdspack.errors import ConfigError, SampleError

Progress = Callable[[str, int, int], None]  # what is done, rows so far, rows in all


class Tally:
    """One pass over `rows` rows, of which `allowed` may be rejected, called `what`."""

    def __init__(self, what: str, rows: int, allowed: int, progress: Progress) -> None:
        self._what, self._rows, self._allowed, self._progress = what, rows, allowed, progress
        self._done = 0
        self._rejects: Counter[str] = Counter()
        self._examples: list[tuple[int, str]] = []

    def add(self, found: Iterable[Receipt] | Iterable[Survey]) -> None:
        """Reports these shards or parts as done. Raises SampleError "max_rejects"."""
        for books in found:
            self._done += books.rows
            for reason in books.rejects.keys() - ASKED_FOR:
                self._rejects[reason] += books.rejects[reason]
                row, message = books.examples[reason]
                self._examples = [min([(row, message), *self._examples])]
        self._progress(self._what, self._done, self._rows)
        if (rejected := self._rejects.total()) > self._allowed:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self._rejects.most_common())
            ((row, message),) = self._examples
            raise SampleError(
                f"{rejected:,} of {self._rows:,} rows are rejected ({reasons}), but max_rejects allows "
                f"{self._allowed:,}; row {row}, say: {message}. Mend the dataset, or allow more and run again: "
                "finished shards are kept, rejects.jsonl has the rows",
                reason="max_rejects",
            )


def allowed(max_rejects: int | float, rows: int) -> int:
    """The number of rows; a float is a share, rounded up. Raises ConfigError."""
    if max_rejects < 0 or (isinstance(max_rejects, float) and not max_rejects <= 1):
        raise ConfigError(f"max_rejects={max_rejects}: must be a count, or a share between 0.0 and 1.0")
    return math.ceil(max_rejects * rows) if isinstance(max_rejects, float) else max_rejects
