"""Keys that are unique by construction, and duplicates among a dataset's own ids, found by their hashes."""

import hashlib
from collections.abc import Sequence
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from wdspack.errors import SampleError

_LONGEST = 500  # bytes of a key

Digests = npt.NDArray[np.uint64]


def row_key(row: int) -> str:
    """The row's number in the dataset: "000000042"."""
    return f"{row:09d}"


def id_key(id: str | None) -> str:
    """A dataset's id as a key: letters, digits, '-' and '_' as they are, all else as %XX of its UTF-8, one to one.

    Raises SampleError "no_id" or "bad_id".
    """
    if not id:
        raise SampleError("no id, but --key id needs one in each row; use --key row", reason="no_id")
    try:
        key = quote(id, safe="").replace(".", "%2E").replace("~", "%7E")
    except UnicodeEncodeError:
        raise SampleError(f"id {id[:100]!a} is not valid Unicode; use --key row", reason="bad_id") from None
    if key.startswith("__"):  # webdataset takes such names for metadata
        key = "%5F" + key[1:]
    if len(key) > _LONGEST:
        raise SampleError(f"id {id[:50]!r}… is a key of {len(key):,} bytes, over {_LONGEST}", reason="bad_id")
    return key


def id_digest(id: str) -> bytes:
    """16 bytes that name an id."""
    return hashlib.blake2b(id.encode(), digest_size=16).digest()


NO_DIGEST = bytes(16)  # of a row without a usable id


def duplicates(digests: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Rows whose id an earlier row has, ascending.

    digests: for each part its rows' `id_digest` or NO_DIGEST, joined; the parts in order. Takes 48 bytes a row.
    """
    table: Digests = np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)
    order = np.lexsort((table[:, 1], table[:, 0]))  # stable: of equal digests the earlier row comes first
    ordered = table[order]
    again = np.zeros(len(table), dtype=bool)
    again[1:] = (ordered[1:] == ordered[:-1]).all(axis=1) & ordered[1:].any(axis=1)
    return np.sort(order[again]).astype(np.int64)
