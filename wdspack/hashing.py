"""Seeded numbers that are functions of their arguments: no generator objects, so nothing of them needs saving.

numpy's generators do not promise the same stream across versions; a resumed run needs exactly that. splitmix64
(Steele, Lea and Flood, 2014) is a dozen operations, passes BigCrush, and can start anywhere.
"""

import hashlib

import numpy as np
import numpy.typing as npt

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mix64(*keys: int) -> int:
    """A well-spread 64-bit hash of integers, in order. Negative keys count modulo 2**64."""
    state = 0
    for key in keys:
        state = (state + _GOLDEN + (key & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def uniform(*keys: int) -> float:
    """A float in [0, 1), 53 bits of `mix64(*keys)`."""
    return (mix64(*keys) >> 11) * 2.0**-53


def permutation(n: int, *keys: int) -> npt.NDArray[np.int64]:
    """A permutation of range(n), (n,) int64, that depends on `n` and `keys` alone."""
    state = np.uint64(mix64(*keys)) + np.arange(n, dtype=np.uint64) * np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable").astype(np.int64)


def digest(*parts: str | bytes) -> str:
    """32 hex digits that name the parts, in order; no two lists of parts share one (each is length-prefixed)."""
    blake = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        blake.update(len(raw).to_bytes(8, "little") + raw)
    return blake.hexdigest()
