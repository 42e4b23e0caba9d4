"""Text files too large for memory → stretches of whole rows, by byte offset, found in one pass.

A splitter turns a stream into (start, end, row's bytes); the same one finds the stretches and reads them again.
Structure is looked for in Latin-1, where a byte is a character whatever the text's encoding: offsets are exact, and a
row that is not UTF-8 costs itself only.
"""

import csv
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from wdspack.convert.readers.base import PART_ROWS
from wdspack.convert.readers.inputs import Options
from wdspack.convert.rows import Part
from wdspack.errors import ConfigError
from wdspack.storage import ShardStream, open_shard

CHUNK = 1 << 20  # bytes read at a time
MAX_ROW = 1 << 26  # bytes of one row: what is longer is damage, such as a quote that never closes
_BLANK = " \t\r\n"
_BOM = b"\xef\xbb\xbf"

T = TypeVar("T")
Split = Callable[["Window"], Iterator[tuple[int, int, T]]]
"""What a splitter gives of each row: where it starts and ends in the file, and what it holds."""


class Window:
    """The bytes [start, stop) of a stream, in chunks. `at` is the offset of the next one."""

    def __init__(self, stream: ShardStream, stop: int | None = None) -> None:
        self.url, self.at = stream.url, stream.position
        self._stream, self._stop = stream, stop

    def read(self, n: int = 0) -> bytes:
        """Up to `n` bytes, or a chunk; none at the end."""
        n = n or CHUNK
        data = self._stream.read(n if self._stop is None else min(n, self._stop - self.at))
        self.at += len(data)
        return data


def stretches(url: str, split: Split[T], storage_options: Options, *, start: int = 0) -> list[Part]:
    """The file's parts of up to `PART_ROWS` rows, from byte `start` on; place: (offset, end).

    A gzip file, which can only be read from its start, is one part.
    """
    parts: list[Part] = []
    with open_shard(url, start=start, storage_options=storage_options) as stream:
        rows = split(Window(stream))
        size = None if stream.compressed else PART_ROWS
        while first := next(rows, None):
            ends = [first[1], *(end for _, end, _ in islice(rows, None if size is None else size - 1))]
            parts.append(Part(url, len(ends), (first[0], ends[-1])))
    return parts


def rows_of(part: Part, start: int, stop: int, split: Split[T], storage_options: Options) -> Iterator[T]:
    """Rows [start, stop) of a part that `stretches` found."""
    offset, end = part.place
    with open_shard(part.url, start=offset, storage_options=storage_options) as stream:
        for _, _, row in islice(split(Window(stream, end)), start, stop):
            yield row


def split_lines(window: Window) -> Iterator[tuple[int, int, bytes | None]]:
    """Lines that are not blank, without their ends; None for one of more than `MAX_ROW` bytes."""
    for start, end, line in _lines(window):
        if line is None or (text := line.strip()):
            yield start, end, None if line is None else text


def split_array(window: Window) -> Iterator[tuple[int, int, bytes]]:
    """The values of a JSON array; also those of a stretch of it, which has no brackets. One value at a time is held.

    Raises ConfigError where the file is not JSON.
    """
    decoder, text, base, begun = json.JSONDecoder(), "", window.at, window.at > 0
    closes = not begun

    def more() -> bool:  # as much again, so that a long value is not parsed over and over
        nonlocal text
        chunk = window.read(max(CHUNK, len(text), len(_BOM))).decode("latin-1")
        text += chunk
        return bool(chunk)

    at = 0
    while True:
        at = _past(text, at, _BLANK + ",")
        if at == len(text):
            base, text, at = base + at, "", 0
            if more():
                continue
            if closes:
                raise ConfigError(f"{window.url} is a JSON array that ends without its bracket; fetch it again")
            return
        if not begun:
            marked = base + at == 0 and text.startswith(_BOM.decode("latin-1"))
            at, begun = (len(_BOM), False) if marked else (at + 1, True)  # the caller has seen the bracket
            continue
        if text[at] == "]":
            return
        try:
            _, end = decoder.raw_decode(text, at)
            after = _past(text, end, _BLANK)
            fault = "" if after == len(text) or text[after] in ",]" else "no comma"
        except (ValueError, RecursionError) as error:
            end = after = at
            fault = type(error).__name__
        if fault or after == len(text):  # it may be half a value: "0" of "0.5"
            base, text, end, at = base + at, text[at:], end - at, 0
            if len(text) <= MAX_ROW and more():
                continue
            if fault:
                message = f"{window.url} is not a JSON array: {fault} after byte {base:,}"
                raise ConfigError(f"{message}; mend it there, or write one object a line (.jsonl)")
        yield base + at, base + end, text[at:end].encode("latin-1")
        at = end
        if at > CHUNK:
            base, text, at = base + at, text[at:], 0


def split_table(delimiter: str, quote: str) -> Split[list[bytes]]:
    """A splitter of CSV rows into fields. Raises ConfigError where quotes do not pair up."""
    dialect = {"delimiter": delimiter, "strict": True} | (
        {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    )

    def split(window: Window) -> Iterator[tuple[int, int, list[bytes]]]:
        start = end = window.at

        def texts() -> Iterator[str]:
            nonlocal end
            for at, after, line in _lines(window):
                end = after
                if line is None:
                    message = f"{window.url} has a line of more than {MAX_ROW:,} bytes at byte {at:,}"
                    raise ConfigError(f"{message}; split it in rows")
                yield line.decode("latin-1")

        csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW))  # of the process; the default is 128 kB
        rows = csv.reader(texts(), **dialect)  # type: ignore[arg-type]
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                message = f"{window.url} is not a table: {error}, in the row at byte {start:,}"
                raise ConfigError(f"{message}; if quotes are plain characters in it, give quote=''") from error
            if row is None:
                return
            if row:
                yield start, end, [field.encode("latin-1") for field in row]
            start = end

    return split


def starts_with_bracket(url: str, storage_options: Options) -> bool:
    """Whether a file is a JSON array rather than a value a line."""
    with open_shard(url, storage_options=storage_options) as stream:
        return stream.read(CHUNK).removeprefix(_BOM).lstrip()[:1] == b"["


def _lines(window: Window) -> Iterator[tuple[int, int, bytes | None]]:
    """(start, end, line with its end); a byte order mark is passed over. None for a line of more than `MAX_ROW` bytes,
    which is not held."""
    at, rest, nbytes = window.at, b"", 0  # of the line that is not whole; of a long one no bytes are kept
    while chunk := window.read():
        if not at and not nbytes and chunk.startswith(_BOM):
            at, chunk = len(_BOM), chunk[len(_BOM) :]
        first, *others = chunk.split(b"\n")
        for following in others:
            size = nbytes + len(first) + 1
            yield at, at + size, rest + first + b"\n" if size <= MAX_ROW else None
            at, rest, nbytes, first = at + size, b"", 0, following
        nbytes += len(first)
        rest = rest + first if nbytes <= MAX_ROW else b""
    if nbytes:
        yield at, at + nbytes, rest if nbytes <= MAX_ROW else None


def _past(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at
