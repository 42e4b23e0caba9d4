"""Conversations without a picture: server logs, a storekeeper's journal, running sums.

write(rng, …) -> (facts, turns), turns being (question, answer) pairs whose answers follow from the facts.
"""

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

Written = tuple[Mapping[str, Any], tuple[tuple[str, str], ...]]

_SERVICES = ("gateway", "billing", "search", "mailer", "catalog", "session")
_LEVELS = ("INFO",) * 7 + ("WARN",) * 2 + ("ERROR",)
_EVENTS = {
    "INFO": ("request served", "cache refreshed", "job finished", "connection opened", "index rotated"),
    "WARN": ("slow response", "retry scheduled", "queue nearly full", "clock drift noticed"),
    "ERROR": ("upstream unreachable", "payload rejected", "disk quota exceeded", "handshake failed"),
}
_DEPOTS = ("the harbour", "the old mill", "the railway yard", "the hill farm", "the lighthouse")
_GOODS = ("pears", "lamp oil", "rope", "flour", "copper wire", "tea", "slate", "wool")
_REMARKS = (
    "The carter complained about the state of the road, and not without reason.",
    "It rained until noon, so the tarpaulins stayed on.",
    "Two of the crates had been opened on the way and were nailed shut again.",
    "Nothing else of note, except that the cat has had kittens in the loft.",
    "The clerk signed for them himself, since nobody else was about.",
    "We were short of hands and finished only by lamplight.",
    "A stranger asked for work and was told to come back in the spring.",
    "The scales were checked again and found to be true.",
)


def log(rng: Random, lines: int) -> Written:
    """A log of `lines` lines, roughly 60 characters each, and questions about its counts."""
    clock, records = rng.randrange(3_600), list[tuple[str, str, int]]()
    rows = list[str]()
    for _ in range(lines):
        clock += rng.randint(1, 40)
        level, service, took = rng.choice(_LEVELS), rng.choice(_SERVICES), rng.randint(2, 900)
        records.append((level, service, took))
        time = f"{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
        rows.append(f"{time} {level:5} [{service}] {rng.choice(_EVENTS[level])} in {took} ms")
    levels = Counter(level for level, _, _ in records)
    services = Counter(service for _, service, _ in records)
    asked = rng.choice(records)[1]
    slowest = max(took for _, _, took in records)
    text = "\n".join(rows)
    culprits = sorted({service for _, service, took in records if took == slowest})
    return {"kind": "log", "records": records}, (
        (f"Here is a log.\n\n{text}\n\nHow many lines report an ERROR?", f"{levels['ERROR']} of the {lines} lines."),
        (f"How many lines come from {asked}?", f"{services[asked]}."),
        ("What is the longest time, and where was it spent?", f"{slowest} ms, in {' and '.join(culprits)}."),
        (
            "Give the number of lines for each level.",
            "\n".join(f"{level}: {levels[level]}" for level in ("INFO", "WARN", "ERROR")),
        ),
    )


def journal(rng: Random, entries: int) -> Written:
    """A journal of `entries` deliveries, roughly 150 characters each, and questions about its sums."""
    records, paragraphs = list[tuple[str, str, int]](), list[str]()
    for day in range(1, entries + 1):
        depot, goods, crates = rng.choice(_DEPOTS), rng.choice(_GOODS), rng.randint(2, 80)
        records.append((depot, goods, crates))
        first = rng.choice(
            (
                f"Today {crates} crates of {goods} came in from {depot}.",
                f"From {depot} we received {crates} crates of {goods}.",
                f"A cart brought {crates} crates of {goods}; it had set out from {depot} before dawn.",
            )
        )
        paragraphs.append(f"Day {day}. {first} {rng.choice(_REMARKS)}")
    depot, goods, _ = rng.choice(records)
    received = [crates for _, what, crates in records if what == goods]
    visits = sum(where == depot for where, _, _ in records)
    most = max(crates for _, _, crates in records)
    days = [str(day) for day, (_, _, crates) in enumerate(records, 1) if crates == most]
    text = "\n\n".join(paragraphs)
    return {"kind": "journal", "records": records}, (
        (
            f"{text}\n\nHow many crates of {goods} came in altogether?",
            f"{' + '.join(map(str, received))} = {sum(received)} crates.",
        ),
        (f"How many deliveries came from {depot}?", f"{visits}."),
        ("On which day did the most crates arrive?", f"Day {' and day '.join(days)}, with {most} crates."),
    )


def sums(rng: Random, steps: int) -> Written:
    """A running total over `steps` turns."""
    total = rng.randint(2, 60)
    numbers = [total]
    turns = [(f"{total} + 0?", f"{total}")] if steps == 1 else [(f"Start at {total}.", f"{total}.")]
    for _ in range(steps - 1):
        number = rng.randint(2, 90)
        numbers.append(number)
        turns.append((f"Add {number}.", f"{total} + {number} = {total + number}."))
        total += number
    return {"kind": "sums", "numbers": numbers}, tuple(turns)
