"""Converts a dataset: the plan, the passes over it, and the books.

reader ──make_plan──▶ Plan ──[survey all rows]───▶ write_shards | gather_shard ──▶ Receipts ──▶ Summary
                             only to shuffle, or to
                             find ids given twice
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from wdspack.convert import work
from wdspack.convert.keys import duplicates
from wdspack.convert.lock import alone
from wdspack.convert.order import places
from wdspack.convert.plan import Options, Plan, identity, make_plan
from wdspack.convert.receipts import Receipt, Summary, Survey
from wdspack.convert.record import RECORD, REJECTS, Record
from wdspack.convert.rows import Reader
from wdspack.convert.store import Store
from wdspack.convert.tally import Progress, Tally, allowed
from wdspack.convert.work import Gathering, Job, Stock, Stretch
from wdspack.errors import ConfigError
from wdspack.executors import Executor, LocalExecutor, Run
from wdspack.hashing import digest

_LONGEST_STRETCH = 8  # shards made in one pass over the part they share, at first: results, and progress, come early


def convert(
    reader: Reader,
    output: str,
    options: Options | None = None,
    *,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_rejects: int | float = 0.05,
    dry_run: bool = False,
    spill: str | None = None,
    memory: int = 1 << 28,
    progress: Progress | None = None,
) -> Summary:
    """Writes the reader's rows as shards in the folder `output`, a path or URL; run again, it goes on where it was.

    One run at a time in an output; of local ones a second is refused.

    The shards, rejects.jsonl and convert.json depend on the dataset and `options` alone.

    executor: what does the work; this process, by default.
    storage_options: of the output's filesystem.
    max_rejects: most rows that may be rejected; a float is a share of all rows, rounded up.
    dry_run: read and check every row, write nothing.
    spill: where to lay rows by for a shuffle; in the output by default.
    memory: bytes of rows a worker holds to lay by; to make a shuffled shard it holds that shard, too.
    progress: is told how far it is.

    Raises ConfigError for options that cannot work, or an output that was begun otherwise or is within the dataset;
    SampleError "max_rejects"; and what the reader, the storage or the executor raises. Finished shards stay.
    """
    options, executor = options or Options(), executor or LocalExecutor()
    if output.startswith("memory:") and not (isinstance(executor, LocalExecutor) and executor.workers == 1):
        raise ConfigError(f"{output}: this process' memory cannot be written by others; use workers=1")
    if memory < 1:
        raise ConfigError(f"memory={memory}: must be 1 byte or more; 256 MB is usual")
    allowed(max_rejects, 0)
    store = Store(output, storage_options or {})
    _outside(store, reader)
    same = spill is None or spill.partition("://")[0] == output.partition("://")[0]
    elsewhere = Store(output if spill is None else spill, store.storage_options if same else {})
    with executor.started() as run:
        plan = make_plan(reader, options)
        who = identity(plan, reader)
        own = f"wdspack-{digest(str(who), store.url)[:16]}"  # of this run alone: it is cleared in the end
        laid_by = store.within(f"{work.WORK}/spill") if spill is None else elsewhere.within(own)
        job = Job(
            reader=reader,
            options=options,
            rows=plan.rows,
            per_shard=plan.per_shard,
            output=None if dry_run else store,
            spill=None if dry_run or options.shuffle is None else laid_by,
            memory=memory,
        )
        rejectable = allowed(max_rejects, plan.rows)
        with nullcontext() if dry_run or store.folder is None else alone(store.folder, f"{work.WORK}/lock"):
            record = None if dry_run else Record(store, plan, who)
            return _Conversion(plan, job, record, run, executor.workers, rejectable, progress or _silent).convert()


def _outside(store: Store, reader: Reader) -> None:
    """Raises ConfigError for an output in the dataset: a run that goes on would read what it wrote."""
    for name in (RECORD, REJECTS, f"{work.RECEIPTS}/000000.json"):
        if reader.finds(store.at(name)):
            message = f"{store.url} is where the dataset is looked for: {name} in it would be taken for a part"
            raise ConfigError(f"{message}; give a folder outside, or name the dataset's files")


class _Conversion:
    """The passes of one run, and the books of the parts and shards that are done."""

    def __init__(
        self,
        plan: Plan,
        job: Job,
        record: Record | None,
        run: Run,
        workers: int,
        allowed: int,
        progress: Progress,
    ) -> None:
        self._plan, self._job, self._record, self._run, self._workers = plan, job, record, run, workers
        self._allowed, self._progress = allowed, progress
        self._receipts = dict(record.finished) if record else {}
        self._surveys: dict[int, Survey] = {}

    def convert(self) -> Summary:
        pending = [shard for shard in range(self._plan.shards) if shard not in self._receipts]
        try:
            if pending and (self._job.spill or self._job.options.key == "id"):
                self._survey()
            self._make(pending)
        except BaseException as error:
            if self._record:
                try:
                    self._record.write_rejects_so_far(self._receipts.values() or self._surveys.values())
                except Exception as another:
                    error.add_note(f"rejects.jsonl cannot be written, either: {type(another).__name__}: {another}")
            raise
        receipts = [self._receipts[shard] for shard in range(self._plan.shards)]
        summary = Summary.of(receipts, tokenized=self._job.options.tokenizer is not None)
        if self._record:
            summary = self._record.complete or summary
            self._record.finish(receipts, summary)
        if self._job.spill:
            self._job.spill.clear()
        return summary

    def _survey(self) -> None:
        """Makes the surveys that have not been made."""
        memory = self._job.memory
        kind = f"{memory} {self._job.spill.url if self._job.spill else ''}"
        self._surveys = self._record.surveys(kind) if self._record else {}
        stocks = (Stock(number, pieces) for number, pieces in enumerate(self._plan.surveys(memory)))
        missing = [stock for stock in stocks if stock.number not in self._surveys]
        tally = self._tally("reading")
        tally.add(self._surveys.values())
        for survey in self._run(partial(work.survey, self._job), missing):
            if self._record:
                self._record.add_survey(survey, kind)
            self._surveys[survey.number] = survey
            tally.add([survey])

    def _make(self, pending: Sequence[int]) -> None:
        """Makes the shards that are not there."""
        twice = self._duplicates()
        results: Iterator[list[Receipt]]
        if self._job.spill:
            gatherings = self._gatherings(pending, twice)
            results = self._run(partial(work.gather_shard, self._job), gatherings)
        else:
            results = self._run(partial(work.write_shards, self._job), self._stretches(pending, twice))
        tally = self._tally("writing")
        tally.add(self._receipts.values())
        for receipts in results:
            self._receipts |= {receipt.shard: receipt for receipt in receipts}
            tally.add(receipts)

    def _stretches(self, pending: Sequence[int], twice: Mapping[int, frozenset[int]]) -> Iterator[Stretch]:
        """Consecutive shards that begin in one part go together, so that it need not be read for each of them.

        To begin in a part's middle may cost as much as reading it up to there (gzip, a large row group). So a stretch
        is as long as all of the part before it, which reads a part twice in all, or is each worker's share of the run.
        """
        plan = self._plan
        least = max(1, min(_LONGEST_STRETCH, len(pending) // (4 * self._workers)))
        fair = max(least, -(-len(pending) // self._workers))
        first = 0
        while first < len(pending):
            number = plan.part_number(pending[first] * plan.per_shard)
            begins = -(-plan.part_start(number) // plan.per_shard)  # the first shard that begins in the part
            longest = min(max(least, pending[first] - begins), fair)
            end = first + 1
            while (
                end < min(len(pending), first + longest)
                and pending[end] == pending[end - 1] + 1
                and plan.part_number(pending[end] * plan.per_shard) == number
            ):
                end += 1
            start, stop = pending[first] * plan.per_shard, min((pending[end - 1] + 1) * plan.per_shard, plan.rows)
            rejected = frozenset[int]().union(*(twice.get(shard, ()) for shard in pending[first:end]))
            yield Stretch(pending[first], tuple(plan.pieces(start, stop)), rejected)
            first = end

    def _gatherings(self, pending: Sequence[int], twice: Mapping[int, frozenset[int]]) -> Iterator[Gathering]:
        surveys = sorted(self._surveys.items())
        spills = tuple(work.spill_name(number, chunk) for number, survey in surveys for chunk in range(survey.spills))
        for shard in pending:
            yield Gathering(shard, self._plan.rows_in(shard), spills, twice.get(shard, frozenset()))

    def _tally(self, what: str) -> Tally:
        return Tally(what, self._plan.rows, self._allowed, self._progress)

    def _duplicates(self) -> dict[int, frozenset[int]]:
        """Rows whose id came before, by shard."""
        if not self._surveys or self._job.options.key != "id":
            return {}
        rows = duplicates([survey.digests for _, survey in sorted(self._surveys.items())])
        at = places(rows, self._plan.rows, self._job.options.shuffle or 0) if self._job.spill else rows
        found = defaultdict(set)
        for row, shard in zip(rows.tolist(), (at // self._plan.per_shard).tolist(), strict=True):
            found[shard].add(row)
        return {shard: frozenset(members) for shard, members in found.items()}


def _silent(_: str, __: int, ___: int) -> None:
    pass
