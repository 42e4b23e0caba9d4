"""The books: for every source, read = packed + dropped (by reason) + held. Always.

    ledger.sources["llava"].read      samples that left the shards
    ledger.sources["llava"].packed    … of them delivered in a pack
    ledger.sources["llava"].dropped   … given up, by reason
    ledger.sources["llava"].held      … waiting in a buffer

Ledgers add up: over the lanes of a rank, over ranks (`gather`), and across a resume.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from wdspack.errors import SampleError

# Reasons that say nothing of the data's health: the user chose the budget.
BY_CHOICE = frozenset({"too_long", "too_many_images", "too_many_tiles"})


@dataclass
class Counts:
    """What became of one source.

    read, packed, held: samples. tokens: of samples as read, before any drop. dropped: samples by reason.
    truncated: packed or held samples that lost their last turns. ignored: tar members that are not part of a sample,
    by reason. shards: "finished" ones, "unclosed" ones among them, and "lost_<reason>" ones.
    """

    read: int = 0
    packed: int = 0
    held: int = 0
    tokens: int = 0
    truncated: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    shards: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Counts") -> None:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, f.name, mine + theirs)


@dataclass
class Ledger:
    """The counts of every source, and of the packs delivered.

    packs: real ones. fillers: packs of padding that kept ranks in step. tokens, supervised, images, tiles: in real
    packs (a blank image not counted). attention: sum of segment length², a measure of attention work.
    storage: "requests" and "bytes" of remote shards, "retried_<why>", "waited_ms" until bytes came, and what the cache
    did ("cache_hits", "cache_misses", "cache_evicted", "cache_failed"). It depends on the weather: equal ledgers may
    differ in it.
    """

    sources: dict[str, Counts] = field(default_factory=dict)
    packs: int = 0
    fillers: int = 0
    tokens: int = 0
    supervised: int = 0
    images: int = 0
    tiles: int = 0
    attention: int = 0
    storage: Counter[str] = field(default_factory=Counter, compare=False)

    def add(self, other: "Ledger") -> "Ledger":
        """Adds another ledger's counts to these; returns self."""
        for name, counts in other.sources.items():
            self.sources.setdefault(name, Counts()).add(counts)
        self.storage.update(other.storage)
        for f in fields(self):
            if f.name not in ("sources", "storage"):
                setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        return self

    @property
    def total(self) -> Counts:
        """All sources together."""
        total = Counts()
        for counts in self.sources.values():
            total.add(counts)
        return total

    def fill(self, seq_len: int) -> float:
        """Share of the real packs' positions that hold tokens."""
        return self.tokens / (self.packs * seq_len) if self.packs else 0.0

    def unaccounted(self) -> dict[str, int]:
        """read − packed − dropped − held of the sources for which it is not zero: none, unless wdspack is at fault."""
        differences = {name: c.read - c.packed - c.dropped.total() - c.held for name, c in self.sources.items()}
        return {name: n for name, n in differences.items() if n}

    def check_drops(self, limit: float, after: int = 1000) -> None:
        """Raises SampleError when more than `limit` of at least `after` samples were dropped, over-long ones aside."""
        total = self.total
        dropped = sum(n for reason, n in total.dropped.items() if reason not in BY_CHOICE)
        if total.read >= after and dropped > limit * total.read:
            reasons = ", ".join(
                f"{reason} {n:,}" for reason, n in total.dropped.most_common() if reason not in BY_CHOICE
            )
            raise SampleError(
                f"{dropped:,} of {total.read:,} samples were dropped ({reasons}), more than max_drop_share={limit:g} "
                "allows; mend the data, or raise max_drop_share",
                reason="max_drop_share",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` reads it back."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("sources", "storage")}
        sources = {name: _counts_dict(counts) for name, counts in self.sources.items()}
        return {**plain, "sources": sources, "storage": dict(self.storage)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Ledger":
        def restored(counts: Mapping[str, Any]) -> Counts:
            plain: dict[str, Any] = {k: Counter(v) if isinstance(v, Mapping) else v for k, v in counts.items()}
            return Counts(**plain)

        sources = {name: restored(counts) for name, counts in raw["sources"].items()}
        return cls(**{**raw, "sources": sources, "storage": Counter(raw.get("storage", {}))})

    def copy(self) -> "Ledger":
        return Ledger.from_dict(self.to_dict())

    def gather(self, group: Any = None) -> "Ledger":
        """The sum of all ranks' ledgers, on every rank; to be called on every rank.

        group: a process group of torch.distributed, the default one where None. Without torch.distributed there is
        one rank, and the sum is a copy.
        """
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return self.copy()
        parts: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(parts, self.to_dict(), group=group)
        return add_all(Ledger.from_dict(part) for part in parts)

    def __str__(self) -> str:
        width = max([6, *map(len, self.sources)])
        lines = [f"{'source':<{width}} {'read':>10} = {'packed':>10} + {'dropped':>8} + {'held':>8}"]
        for name, c in [*self.sources.items(), *([("total", self.total)] if len(self.sources) > 1 else [])]:
            lines.append(f"{name:<{width}} {c.read:>10,} = {c.packed:>10,} + {c.dropped.total():>8,} + {c.held:>8,}")
        for title, counter in (
            ("dropped", self.total.dropped),
            ("ignored", self.total.ignored),
            ("shards", self.total.shards),
            ("storage", self.storage),
        ):
            if counter:
                lines.append(f"{title}: " + ", ".join(f"{reason} {n:,}" for reason, n in sorted(counter.items())))
        share = self.fillers / max(1, self.packs + self.fillers)
        lines.append(f"packs: {self.packs:,} real, {self.fillers:,} fillers ({share:.1%} of the slots)")
        return "\n".join(lines)


def add_all(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum; a new ledger."""
    total = Ledger()
    for ledger in ledgers:
        total.add(ledger)
    return total


def lost_shards(counts: Counts) -> str:
    """ " (shards lost: denied 4)", or nothing."""
    lost = {name.removeprefix("lost_"): n for name, n in sorted(counts.shards.items()) if name.startswith("lost_")}
    return f" (shards lost: {', '.join(f'{reason} {n:,}' for reason, n in lost.items())})" if lost else ""


def _counts_dict(counts: Counts) -> dict[str, Any]:
    return {
        f.name: dict(value) if isinstance(value := getattr(counts, f.name), Counter) else value for f in fields(counts)
    }
