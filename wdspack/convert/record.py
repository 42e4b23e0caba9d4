"""What an output says of itself, so that a run that was killed goes on, and another one does not get mixed into it.

    convert.json           the plan; in the end also totals and the list of shards (a manifest that streaming takes)
    rejects.jsonl          a line for each row that is in no shard: row, part, id, reason, message
    _convert/lock          held by the run that is at it, if the output is local
    _convert/receipts/     what came of each finished shard ┐
    _convert/surveys/      what came of each survey         ├ removed in the end
    _convert/spill/        rows on their way to a shard     ┘

A shard is finished if it is there, and as long as its receipt says.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from wdspack.convert.plan import Plan, differences
from wdspack.convert.receipts import Receipt, Summary, Survey
from wdspack.convert.store import Store
from wdspack.convert.work import RECEIPTS, SURVEYS, WORK, rejects_name
from wdspack.errors import ConfigError
from wdspack.hashing import digest

RECORD, REJECTS = "convert.json", "rejects.jsonl"
_SHARD = ("rows", "samples", "nbytes", "tokens")  # what is remembered of a finished run's shards
_TOGETHER = 1000  # small files asked for at once


class Record:
    """The output of one plan.

    complete: what the run came to, if it had been finished before, else None.
    finished: receipts of the shards that need not be made; those of a complete run do not know of rejects.
    """

    def __init__(self, store: Store, plan: Plan, identity: Mapping[str, Any]) -> None:
        """Takes the output for this plan, and removes what killed writers left there. One run at a time.

        Raises ConfigError if it has shards of another plan, or of none.
        """
        self._store, self._plan, self._identity = store, plan, identity
        self.complete: Summary | None = None
        there = store.sizes()
        shard = re.compile(re.escape(plan.options.name) + r"-\d{6,}\.tar")
        self._ours = re.compile(f"{shard.pattern}|{re.escape(RECORD)}|{re.escape(REJECTS)}")
        receipts: list[Receipt] = []
        if RECORD in there:
            try:
                old = json.loads(store.get([RECORD])[0])
                version, _, _ = old["version"], old["plan"], old["complete"]
            except (ValueError, KeyError, TypeError):
                version = None
            if version != 1:
                raise ConfigError(f"{store.at(RECORD)} is not a record of this version; give an empty folder")
            receipts = self._resume(old)
        else:
            if foreign := sorted(filter(shard.fullmatch, there)):
                message = f"has {len(foreign):,} shards ({foreign[0]}, …) but no {RECORD} that says of what"
                raise ConfigError(f"{store.url}: {message}; give an empty folder, or another --name")
            if REJECTS in there:
                message = f"has a {REJECTS}, which would be overwritten, but no {RECORD} that says of what"
                raise ConfigError(f"{store.url}: {message}; move it, or give an empty folder")
            store.put(RECORD, self._document(complete=False))
        store.remove_temporary(self._ours)
        self.finished = {
            receipt.shard: receipt for receipt in receipts if there.get(plan.name(receipt.shard)) == receipt.nbytes
        }

    def surveys(self, kind: str) -> dict[int, Survey]:
        """By number, the surveys that have been made. kind: what else they depend on; those of another do not count."""
        found = map(Survey.from_json, self._read(_surveys(kind), ".json"))
        return {survey.number: survey for survey in found}

    def add_survey(self, survey: Survey, kind: str) -> None:
        """Remembers a survey."""
        self._store.put(f"{_surveys(kind)}/{survey.number:06d}.json", survey.to_json())

    def write_rejects(self, found: Iterable[Receipt] | Iterable[Survey]) -> None:
        """Writes the rejects of shards or surveys, in the order given, in place of those that were written."""
        with self._store.writing(REJECTS) as file:
            for books in found:
                if not books.rejects:
                    continue
                folder, number = (RECEIPTS, books.shard) if isinstance(books, Receipt) else (SURVEYS, books.number)
                for line in self._store.get([rejects_name(folder, number)])[0].splitlines():
                    reject = json.loads(line)
                    row = reject.pop("row")
                    named = {"row": row, "part": self._plan.part_of(row).url, **reject}
                    file.write(json.dumps(named).encode() + b"\n")

    def write_rejects_so_far(self, found: Iterable[Receipt] | Iterable[Survey]) -> None:
        """The same for a run that failed, so that one can see why; those of a run that was finished stay."""
        if not self.complete and not json.loads(self._store.get([RECORD])[0])["complete"]:
            self.write_rejects(found)

    def finish(self, receipts: Sequence[Receipt], summary: Summary) -> None:
        """Says that all is done, and removes what was needed only until now. receipts: of all shards, in order."""
        if self.complete is None:
            self.write_rejects(receipts)
            shards = [
                {"url": self._plan.name(receipt.shard)} | {field: getattr(receipt, field) for field in _SHARD}
                for receipt in receipts
            ]
            self._store.put(RECORD, self._document(complete=True, summary=summary.to_dict(), shards=shards))
        self._store.remove_temporary(self._ours)  # of workers that died, if others took over
        self._store.clear(WORK)

    def _document(self, **fields: Any) -> bytes:
        return json.dumps({"version": 1, "plan": self._identity, **fields}, indent=1).encode() + b"\n"

    def _resume(self, old: Mapping[str, Any]) -> list[Receipt]:
        if changed := list(differences(old["plan"], dict(self._identity))):
            advice = "run it with the same dataset and options, or give an empty folder"
            raise ConfigError(f"{self._store.url} was begun otherwise: {'; '.join(changed[:10])}; {advice}")
        if not old["complete"]:
            return list(map(Receipt.from_json, self._read(RECEIPTS, ".json")))
        self.complete = Summary(**old["summary"])
        return [
            Receipt(number, **{field: shard[field] for field in _SHARD}) for number, shard in enumerate(old["shards"])
        ]

    def _read(self, folder: str, extension: str) -> Iterator[bytes]:
        names = [f"{folder}/{name}" for name in sorted(self._store.sizes(folder)) if name.endswith(extension)]
        for first in range(0, len(names), _TOGETHER):
            yield from self._store.get(names[first : first + _TOGETHER])


def _surveys(kind: str) -> str:
    return f"{SURVEYS}/{digest(kind)[:8]}"
