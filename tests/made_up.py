"""Datasets made up row by row, for the conversion's tests; a module, as worker processes must be able to import it."""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wdspack.convert import Part, Reader, Record, Reject, Row


@dataclass(frozen=True)
class MadeUp(Reader):
    """Rows that are functions of their number: every `bad`-th is a reject, ids repeat every `cycle` rows.

    counts: rows of the parts. pause: seconds a row takes. deadly: reading this row kills the process, as long as the
    file `once` is not there.
    """

    counts: tuple[int, ...]
    seed: int = 0
    bad: int = 0
    cycle: int = 0
    pause: float = 0.0
    deadly: int = -1
    once: str = ""

    def parts(self) -> Sequence[Part]:
        return [Part(f"part-{number}", rows, sum(self.counts[:number])) for number, rows in enumerate(self.counts)]

    def read(self, part: Part, start: int, stop: int) -> Iterator[Row]:
        for number in range(part.place + start, part.place + stop):
            if self.pause:
                time.sleep(self.pause)
            if number == self.deadly and not os.path.exists(self.once):
                open(self.once, "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield self.row(number)

    def describe(self) -> dict[str, Any]:
        return {"form": "made up", "seed": self.seed, "bad": self.bad, "cycle": self.cycle}

    def row(self, number: int) -> Row:
        """The dataset's row `number`."""
        id = self.id(number)
        if self.rejects(number):
            return Reject(id, "made_up" if number % 2 else "other", f"row {number} is bad")
        rng = random.Random(f"{self.seed} {number}")
        images = {f"{i}.jpg": rng.randbytes(rng.choice((0, 1, 511, 512, 513, 3000))) for i in range(rng.randrange(4))}
        return Record(id, {"json": b'{"messages": [], "number": %d}' % number, **images})

    def id(self, number: int) -> str:
        return f"a/{number % self.cycle if self.cycle else number}.x"

    def rejects(self, number: int) -> bool:
        return bool(self.bad) and number % self.bad == self.bad - 1
