"""What came of a shard (Receipt), a survey (Survey), a run (Summary): resuming, rejects and totals rest on these."""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from wdspack.convert.rows import Reject

if TYPE_CHECKING:
    from rich.table import Table

Counts = Mapping[str, int]  # of rejects, by reason
Examples = Mapping[str, tuple[int, str]]  # by reason, the row and message of one reject


class Rejects:
    """Collects rejects: their number and the first of each reason; and each of them, as a line of JSON."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, tuple[int, str]] = {}
        self.lines: list[bytes] = []

    def add(self, row: int, reject: Reject) -> None:
        self.counts[reject.reason] += 1
        self.examples.setdefault(reject.reason, (row, reject.message))
        self.lines.append(json.dumps({"row": row, **asdict(reject)}).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Receipt:
    """One shard: rows = samples + rejects. nbytes: of the shard."""

    shard: int
    rows: int
    samples: int
    nbytes: int
    tokens: int
    rejects: Counts = field(default_factory=dict)
    examples: Examples = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Receipt":
        return cls(**_parsed(data))


@dataclass(frozen=True, slots=True)
class Survey:
    """Consecutive rows, read ahead of the shards. number: of the survey.

    spills: how many its rows fill. digests: of its rows' ids, see `keys.duplicates`; empty where keys are not ids.
    """

    number: int
    rows: int
    spills: int
    digests: bytes
    rejects: Counts
    examples: Examples

    def to_json(self) -> bytes:
        return json.dumps(asdict(self) | {"digests": b64encode(self.digests).decode()}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Survey":
        fields = _parsed(data)
        return cls(**fields | {"digests": b64decode(fields["digests"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run's totals.

    tokens: None where no tokenizer was named. rejects: by reason. examples: by reason, the first one's row and message.
    """

    rows: int
    samples: int
    shards: int
    bytes: int
    tokens: int | None
    rejects: Mapping[str, int]
    examples: Mapping[str, str]

    @classmethod
    def of(cls, receipts: Iterable[Receipt], *, tokenized: bool) -> "Summary":
        """Of the receipts of all shards, in order."""
        rows = samples = shards = nbytes = tokens = 0
        rejects: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for receipt in receipts:
            rows += receipt.rows
            samples += receipt.samples
            shards += 1
            nbytes += receipt.nbytes
            tokens += receipt.tokens
            rejects.update(receipt.rejects)
            for reason, (row, message) in receipt.examples.items():
                examples.setdefault(reason, f"row {row}: {message}")
        return cls(
            rows=rows,
            samples=samples,
            shards=shards,
            bytes=nbytes,
            tokens=tokens if tokenized else None,
            rejects=dict(sorted(rejects.items())),
            examples=dict(sorted(examples.items())),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> "Table":
        """For people; rejects with an example of each reason."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column(overflow="fold", style="dim")
        for name in ("rows", "samples", "shards", "bytes"):
            table.add_row(name, f"{getattr(self, name):,}")
        if self.tokens is not None:
            table.add_row("text tokens", f"{self.tokens:,}")
        table.add_row("rejects", f"{sum(self.rejects.values()):,}")
        for reason, count in self.rejects.items():
            table.add_row(f"  {reason}", f"{count:,}", escape(self.examples[reason][:200]))
        return table


def _parsed(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data)
    return fields | {"examples": {reason: tuple(example) for reason, example in fields["examples"].items()}}
