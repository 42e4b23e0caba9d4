"""The knapsack itself: which of a few dozen samples complete a pack best, exactly.

candidates (tokens, weight) ──▶ one big integer: bit (weight × stride + tokens) is set where a subset sums to that
                            ──▶ the best bit ──walked back through the integer's history──▶ the subset
"""

from collections.abc import Sequence
from math import floor, inf


def closest_subset(
    tokens: Sequence[int],
    weights: Sequence[int],
    *,
    room: int,
    bare: int,
    cap: int,
    aim: float,
    unit: float,
    over: float = 0,
    slack: int = 0,
) -> list[int]:
    """Indices, ascending, of the candidates that together come closest to `room` tokens and to a weight of `aim`.

    tokens, weights: of each candidate; at least 1 and 0. A weight is a number of images, or of tiles.
    room: tokens that may be added, at least 0; bare: the same where no weight is added (at most room).
    cap: weight that may be added, at least 0; aim: the weight wanted, any number.
    unit: tokens of padding that are as bad as a weight 1 off the aim.
    over: the same again for each weight beyond aim + 1.
    slack: tokens of padding that are as good as none.

    Of all subsets within room and cap it is the one of least cost: padding + unit × |weight − aim|, and over × what the
    weight exceeds aim + 1 by. With one shortcut: as soon as some subset of the candidates seen leaves no more than
    `slack` padding, less than 1 from the aim, the rest are not looked at. They are seen in the order given, but those
    of more than half the room before the others.

    Subset sum by bitset: Bellman's dynamic programme with one bit a state, and the rows of all weights in one integer,
    so that adding a candidate is a shift and an or. Sums above `room` land in a gap between two rows and are masked
    away before another shift could carry them into the next row. Of the candidates that take more than half the room
    no two go together, so each just adds its own bit; for the others the gap need be only half a row.
    """
    half = room // 2
    width = (room + 1 + half + 7) // 8  # bytes a row: bits 0…room and the gap
    stride = 8 * width
    row = ((2 << room) - 1).to_bytes(width, "little")
    mask = int.from_bytes(row * (cap + 1), "little")

    low, slack = max(0, min(floor(aim), cap)), min(slack, room)
    goal, full = low * stride + room - slack, (2 << slack) - 1
    wanted = full if low or bare == room else 0  # the last bits of row low,
    if low < aim:
        wanted |= full << stride  # and of the row above it

    reach, steps, history = 1, [], []  # history: reach before each step
    for index, size in enumerate(tokens):
        if half < size <= room and weights[index] <= cap:
            steps.append(index)
            history.append(reach)
            reach |= 1 << weights[index] * stride + size
    if not reach >> goal & wanted:
        for index, size in enumerate(tokens):
            if size <= half and (weight := weights[index]) <= cap:
                steps.append(index)
                history.append(reach)
                reach |= reach << weight * stride + size & mask
                if reach >> goal & wanted:
                    break

    rows = reach.to_bytes(width * (cap + 1), "little")
    least, at = inf, 0
    for weight in range(cap + 1):
        sums = int.from_bytes(rows[weight * width : (weight + 1) * width], "little")
        if weight == 0:
            sums &= (2 << max(bare, 0)) - 1
        most = sums.bit_length() - 1
        if most >= 0 and (cost := room - most + unit * abs(weight - aim) + over * max(0, weight - aim - 1)) < least:
            least, at = cost, weight * stride + most

    chosen, sought = [], 1 << at  # `before & sought` is twice as fast as `before >> at & 1`
    for index, before in zip(reversed(steps), reversed(history), strict=True):
        if not before & sought:  # not to be had without this one
            chosen.append(index)
            at -= weights[index] * stride + tokens[index]
            sought = 1 << at
    return sorted(chosen)
