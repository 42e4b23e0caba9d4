"""What can go wrong with a GET, and when: a `Fault` says it, a `Plan` of them is asked about each request."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

Kind = Literal["reset", "cut", "short", "stall", "slow", "answer", "call"]

_SAID = {
    "SlowDown": "Please reduce your request rate.",
    "ExpiredToken": "The provided token has expired.",
    "InternalError": "We encountered an internal error. Please try again.",
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, and when.

    kind: "reset" breaks the connection off; "cut" closes it in good order though more was promised; "short" promises
        fewer bytes than were asked for, and keeps that; "stall" sends nothing more, ever; "slow" goes on at `rate`;
        "answer" answers with `status` and the S3 error `code`; "call" does nothing but call `then`.
    path: part of the path of the GETs that it concerns. at: it concerns those whose byte range covers this offset of
        the object, and strikes just before that byte. after: else it strikes after so many bytes of the body.
    skip: GETs to pass over first. times: GETs to strike then; math.inf for all. share: chance of each of them.
    rate: bytes a second. then: called as it strikes, in a thread of the proxy.
    """

    kind: Kind
    path: str = ""
    at: int | None = None
    after: int = 0
    skip: int = 0
    times: float = 1
    share: float = 1.0
    rate: float = 20_000
    status: int = 503
    code: str = "SlowDown"
    then: Callable[[], None] | None = None

    def position(self, path: str, start: int, stop: float) -> int | None:
        """Of the byte of the body [start, stop) that it strikes before; None where it does not concern this GET."""
        if self.path not in path or not (self.at is None or start <= self.at < stop):
            return None
        return self.after if self.at is None else self.at - start

    @property
    def body(self) -> bytes:
        """Of an "answer", in S3's own form."""
        error = f"<Error><Code>{self.code}</Code><Message>{_SAID.get(self.code, self.code)}</Message></Error>"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{error}'.encode()


class Plan:
    """Faults, in the order in which they are tried; one strikes a GET at most. Safe to use from several threads."""

    def __init__(self, faults: Iterable[Fault], seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._faults = [(fault, Counter[str]()) for fault in faults]

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._faults += [(fault, Counter[str]()) for fault in faults]

    def strike(self, path: str, start: int, stop: float) -> tuple[Fault | None, int]:
        """The fault that strikes this GET of the bytes [start, stop), and before which byte of the body."""
        with self._lock:
            for fault, seen in self._faults:
                position = fault.position(path, start, stop)
                if position is None or seen["struck"] >= fault.times:
                    continue
                seen["met"] += 1
                if seen["met"] > fault.skip and self._random.random() < fault.share:
                    seen["struck"] += 1
                    return fault, position
        return None, 0


def parse_fault(text: str) -> Fault:
    """`reset,at=1000,times=inf` is `Fault(kind="reset", at=1000, times=math.inf)`. Raises ValueError."""
    kind, *settings = text.split(",")
    converters = {
        f.name: {str: str, float: float}.get(f.type, int)  # type: ignore[call-overload]
        for f in fields(Fault)
        if f.name not in ("kind", "then")
    }
    given = dict(setting.partition("=")[::2] for setting in settings)
    kinds = [kind for kind in get_args(Kind) if kind != "call"]
    if kind not in kinds or not given.keys() <= converters.keys():
        allowed = f"a kind ({', '.join(kinds)}), then any of {', '.join(converters)} as name=value"
        raise ValueError(f"{text!r} is no fault: give {allowed}, with commas between")
    try:
        return Fault(kind=kind, **{name: converters[name](value) for name, value in given.items()})
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
