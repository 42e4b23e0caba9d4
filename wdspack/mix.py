"""Which source the next sample comes from.

Every source has a clock that runs at 1/weight: what it has served, divided by its weight. The source whose clock is
behind is served next (stride scheduling, Waldspurger and Weihl, 1995), so that after any number of samples each
source's share is off by less than one sample (or one sample's tokens), without a random draw. A source that has
ended is passed over and the others go on in proportion. Lanes start their clocks at seeded fractions, so that not
all of them begin with the same source.
"""

from collections.abc import Sequence

from wdspack.hashing import uniform


def next_source(served: Sequence[int], weights: Sequence[float], live: Sequence[bool], *keys: int) -> int | None:
    """The number of the source to read from, None when none is live.

    served: samples (or tokens) that each source has given so far in this lane. keys: name the lane, for its start.
    """
    clocks = [
        ((done + uniform(*keys, source)) / weights[source], source)
        for source, (done, alive) in enumerate(zip(served, live, strict=True))
        if alive
    ]
    return min(clocks)[1] if clocks else None
