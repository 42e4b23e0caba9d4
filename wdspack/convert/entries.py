"""Row → Entry: what a shard will hold of it, or why nothing. An entry can be laid by as bytes, and read back.

What is done to a row is done here, once, whether the run shuffles or not.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wdspack.convert.keys import id_key, row_key
from wdspack.convert.plan import Options
from wdspack.convert.rows import Reject, Row
from wdspack.convert.tarball import Block, members
from wdspack.convert.tokens import text_tokens
from wdspack.errors import SampleError

_LENGTHS = struct.Struct("<IQ")  # of the head, of the body


@dataclass(frozen=True, slots=True)
class Entry:
    """A row, ready to be written.

    row: its number in the dataset. id: as the dataset has it. blocks: the sample's bytes in the tar, nothing for a
    reject. tokens: of its text, if they are counted.
    """

    row: int
    id: str | None
    blocks: Sequence[Block] = ()
    tokens: int = 0
    reject: Reject | None = None


def entry_of(number: int, row: Row, options: Options) -> Entry:
    """The entry of the dataset's row `number`; what cannot be written becomes a reject."""
    if isinstance(row, Reject):
        return Entry(number, row.id, reject=row)
    try:
        key = id_key(row.id) if options.key == "id" else row_key(number)
        blocks = members(key, row.files)
    except SampleError as error:
        return Entry(number, row.id, reject=Reject(row.id, error.reason, str(error)))
    tokens = text_tokens(row.files, options.tokenizer) if options.tokenizer else 0
    return Entry(number, row.id, blocks, tokens)


def duplicate(entry: Entry) -> Entry:
    """The same row as a reject: an earlier row has its id."""
    message = f"id {entry.id!r} is that of an earlier row, which is kept; make ids unique, or use --key row"
    return Entry(entry.row, entry.id, reject=Reject(entry.id, "duplicate_id", message))


def to_bytes(entry: Entry) -> list[Block]:
    """The entry as bytes, to be written one after the other."""
    reject = entry.reject and (entry.reject.reason, entry.reject.message)
    head = json.dumps((entry.row, entry.id, entry.tokens, reject)).encode()
    body = sum(map(len, entry.blocks))
    return [_LENGTHS.pack(len(head), body), head, *entry.blocks]


def from_bytes(data: bytes) -> Iterator[Entry]:
    """The entries of joined `to_bytes`; their blocks are views of `data`."""
    view, at = memoryview(data), 0
    while at < len(data):
        head, body = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        row, id, tokens, reject = json.loads(data[at : at + head])
        at += head
        blocks = (view[at : at + body],) if body else ()
        at += body
        yield Entry(row, id, blocks, tokens, Reject(id, *reject) if reject else None)
