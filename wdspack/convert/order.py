"""A permutation of 10^9 rows that needs no memory: the place of each row is computed from its number and the seed."""

import math

import numpy as np
import numpy.typing as npt

from wdspack.hashing import mix64

_ROUNDS = 8
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Array = npt.NDArray[np.int64]


def places(rows: Array, n: int, seed: int) -> Array:
    """Where each of `rows` stands in a permutation of range(n) that depends on `n` and `seed` alone; like `rows`.

    1. Write a row as two digits (left, right) of base ceil(sqrt(n)): a square just larger than n.
    2. Eight Feistel rounds: (left, right) → (right, left + hash(right) mod base), each of which can be undone, so that
       the whole is a permutation of the square (Luby and Rackoff, 1988, take four rounds of a good hash).
    3. What falls outside range(n) goes on (cycle walking; Black and Rogaway, 2002): a permutation of range(n).
    """
    base = np.uint64(max(1, math.isqrt(max(0, n - 1)) + 1))
    keys = [np.uint64(mix64(seed, n, number)) for number in range(_ROUNDS)]
    found = rows.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        left, right = np.divmod(found[outside], base)
        for key in keys:
            left, right = right, (left + _hash(right ^ key) % base) % base
        found[outside] = left * base + right
        outside = outside[found[outside] >= n]
    return found.astype(np.int64)


def _hash(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        state = (state ^ (state >> np.uint64(shift))) * multiplier
    return state ^ (state >> np.uint64(31))
