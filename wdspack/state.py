"""What has been delivered so far: the state of a loader, made of the bookmarks of the packs last handed over.

Nothing that was only prefetched shows here, so a checkpoint cannot run ahead of training.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wdspack.bookmark import Bookmark
from wdspack.errors import ResumeError, SampleError, WdspackError
from wdspack.lane import Packed, count_pack
from wdspack.ledger import Counts, Ledger, add_all, lost_shards
from wdspack.run import Run
from wdspack.types import Sample

STATE_FORMAT = 1


class Delivered:
    """The packs delivered by some lanes of a run.

    slot: the global slot G from which all ranks would go on. own: the lanes whose packs come here. state: of
    `state_dict` or `merge_states`, to go on from.

    Raises:
        ResumeError: the state is of another run (the differences are named), or misses lanes (named).
    """

    def __init__(self, run: Run, own: Iterable[int], state: Mapping[str, Any] | None = None) -> None:
        self.run, self.own, self.slot = run, frozenset(own), 0
        self.storage: Counter[str] = Counter()  # `Ledger.storage`
        self._marks: dict[int, bytes] = {}
        self._late: dict[int, Ledger] = {}  # since the lane's worker started: what it cannot know
        if state is not None:
            check_form(state)
            run.check_identity(state["identity"])
            self.slot = int(state["slot"])
            self.storage.update(state.get("storage", {}))
            marks = {int(lane): text for lane, text in state["bookmarks"].items()}
            if missing := sorted(self.own - marks.keys() - set(state["not_started"])):
                raise ResumeError(
                    f"the state says nothing of lanes {', '.join(map(str, missing))}: it holds {len(marks)} of "
                    f"{run.lanes} lanes; join the states of all ranks with wdspack.merge_states"
                )
            self._marks = {
                lane: Bookmark.from_text(text).to_bytes() for lane, text in marks.items() if lane in self.own
            }

    def bookmarks(self) -> dict[int, Bookmark]:
        """By lane, with all that was booked late; lanes that have not begun are missing."""
        marks = {lane: Bookmark.from_bytes(raw) for lane, raw in self._marks.items()}
        return {lane: mark.with_late(self._late[lane]) if lane in self._late else mark for lane, mark in marks.items()}

    def restart(self) -> dict[int, Bookmark]:
        """The bookmarks that lanes are now started from: what was booked late is in them, and known to the lanes."""
        marks = self.bookmarks()
        self._marks = {lane: mark.to_bytes() for lane, mark in marks.items()}
        self._late = {lane: late for lane, late in self._late.items() if lane not in marks}
        return marks

    def deliver(self, packed: Packed, failed: Sequence[tuple[Sample, SampleError]] = ()) -> bytes:
        """Books a pack as handed over; returns its bookmark with what failed at decoding up to now.

        Raises SampleError for a failed image under on_error="raise", or when too many were dropped.
        """
        config = self.run.config
        if failed:
            if config.on_error == "raise":
                sample, error = failed[0]
                raise SampleError(f"{sample.url}: sample {sample.key!r}: {error}", reason=error.reason) from error
            late = self._late.get(packed.lane, Ledger()).copy()
            for sample, error in failed:
                counts = late.sources.setdefault(config.source_list[sample.place.source].name, Counts())
                counts.packed -= 1
                counts.truncated -= sample.truncated
                counts.dropped[error.reason] += 1
                count_pack(late, (sample,), sign=-1)
            self._late[packed.lane] = late
        self._marks[packed.lane] = packed.bookmark
        if packed.lane not in self._late:
            return packed.bookmark
        mark = Bookmark.from_bytes(packed.bookmark).with_late(self._late[packed.lane])
        if failed:
            mark.ledger.check_drops(config.max_drop_share)
        return mark.to_bytes()

    def filler(self, lane: int) -> None:
        """Books a filler pack that stood in for a lane that has ended."""
        self._late[lane] = self._late.get(lane, Ledger()).copy().add(Ledger(fillers=1))

    def copy(self) -> "Delivered":
        """For trying a batch: what is booked in the copy stays there. (The ledgers in it are never changed.)"""
        twin = copy.copy(self)
        twin._marks, twin._late, twin.storage = dict(self._marks), dict(self._late), self.storage.copy()
        return twin

    def check_end(self) -> None:
        """Raises WdspackError when a run has ended and nothing came of it."""
        total = self.ledger.total
        if not total.read:
            raise WdspackError(f"the shards hold no sample{lost_shards(total)}; look at them with `wdspack inspect`")
        if not total.packed:
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in total.dropped.most_common())
            raise WdspackError(
                f"every one of the {total.read:,} samples was dropped ({reasons}): there is nothing to train on"
            )

    @property
    def ledger(self) -> Ledger:
        """The sum of the lanes' books, a fresh copy."""
        late = (ledger for lane, ledger in self._late.items() if lane not in self._marks)
        total = add_all([*(mark.ledger for mark in self.bookmarks().values()), *late])
        total.storage.update(self.storage)
        return total

    def state_dict(self) -> dict[str, Any]:
        """JSON-serializable."""
        return {
            "format": STATE_FORMAT,
            "lanes": self.run.lanes,
            "slot": self.slot,
            "identity": self.run.identity,
            "bookmarks": {str(lane): mark.to_text() for lane, mark in sorted(self.bookmarks().items())},
            "not_started": sorted(self.own - self._marks.keys()),
            "storage": dict(self.storage),
        }


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks, saved at the same step, as one that any number of ranks can go on from.

    Raises:
        ResumeError: the states are of different runs or steps, or two of them hold the same lane.
    """
    merged: dict[str, Any] = {}
    for number, state in enumerate(states):
        check_form(state)
        if not merged:
            merged = {**state, "bookmarks": dict(state["bookmarks"]), "not_started": list(state["not_started"])}
            merged["storage"] = Counter(state.get("storage", {}))
            continue
        if state["slot"] != merged["slot"]:
            raise ResumeError(
                f"state {number} was saved at slot {state['slot']}, those before it at {merged['slot']}: merge states "
                "that all ranks saved at the same step"
            )
        if state["identity"] != merged["identity"]:
            raise ResumeError(f"state {number} is of a run with other settings; merge the states of one run")
        known = {*merged["bookmarks"], *map(str, merged["not_started"])}
        if twice := sorted(known & {*state["bookmarks"], *map(str, state["not_started"])}, key=int):
            raise ResumeError(
                f"state {number} holds lanes {', '.join(twice)} again: give the state of every rank just once"
            )
        merged["bookmarks"].update(state["bookmarks"])
        merged["storage"].update(state.get("storage", {}))
        merged["not_started"] = sorted([*merged["not_started"], *state["not_started"]])
    if not merged:
        raise ResumeError("no states to merge: give the state_dict of every rank")
    return {**merged, "storage": dict(merged["storage"])}


def check_form(state: Mapping[str, Any]) -> None:
    """Raises ResumeError for what is no state of this version."""
    needed = {"format", "lanes", "slot", "identity", "bookmarks", "not_started"}
    if missing := sorted(needed - (state.keys() if isinstance(state, Mapping) else set())):
        raise ResumeError(f"not a state of wdspack: it lacks {', '.join(missing)}; give what state_dict() returned")
    if state["format"] != STATE_FORMAT:
        raise ResumeError(
            f"a state of format {state['format']}, but this version reads {STATE_FORMAT}; "
            "resume with the version that wrote it"
        )
