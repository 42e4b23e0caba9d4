"""A tar header's 512 bytes → what they say of a member: ustar, GNU, PAX and v7, read as Python's tarfile reads them.

Only what webdataset's samples depend on is looked at: checksum, size, type and name. Pure functions of bytes; what is
wrong leaves as `Unsound`, to which the reader adds shard and offset.
"""

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

BLOCK = 512  # bytes; headers are one block, payloads are padded to whole ones
_REGULAR = b"0\x007"
_WITHOUT_PAYLOAD = b"\x00123456"  # folders, links, devices, pipes, whatever size they state
_LONG_NAME, _SPARSE, GLOBAL = b"LSg"
_PAX = b"xXg"  # for the next member (X is Solaris'), for all that follow
EXTENSIONS = _PAX + b"LK"  # GNU's long name and long link
_PAX_RECORD = re.compile(rb"(\d{1,20}) ([^=]+)=")
_DIGITS = re.compile(rb"\d{1,20}")

_EXTENSION_LIMIT = 1 << 20  # bytes; a forged size must not be allocated
_NAME_LIMIT = 4096  # characters, Linux' PATH_MAX; webdataset's rule for keys takes quadratic time on some names


class Unsound(Exception):
    """A header that cannot be used. reason: one word, as in `ShardError`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class Member(NamedTuple):
    """start: offset of its first header, extension headers included. size: bytes of payload behind the last."""

    start: int
    name: str
    size: int
    regular: bool


def checked_size(block: bytes) -> int:
    """The size that a header states, its checksum being right.

    The checksum is the sum of the header's bytes, its own field counted as blanks; for some old writers, of its bytes
    as signed numbers. The low half of Adler-32 is that sum plus one, modulo 65,521, for a tenth of what sum() costs.
    """
    size, recorded = _number(block[124:136]), _number(block[148:156])
    blanked = block[:148] + b"        " + block[156:]
    if zlib.adler32(blanked) & 0xFFFF != (recorded + 1) % 65521:
        signed = sum(blanked) - 256 * sum(byte > 127 for byte in blanked)
        if recorded != signed:
            raise Unsound("bad_header", "no tar header where one must stand: its checksum is wrong")
    if size < 0 or (block[156] in EXTENSIONS and size > _EXTENSION_LIMIT):
        raise Unsound("bad_header", f"a size of {size:,} bytes, which no {chr(block[156])!r} header has")
    return size


def read_member(block: bytes, size: int, stated: Mapping[str, str], start: int) -> Member:
    """A member by its own header and by what extension headers state of it."""
    kind = block[156]
    if kind == _SPARSE:
        raise Unsound("unsupported", "a sparse file; write the shard without")
    name = stated.get("path")
    if name is None:
        name = _text(block[:100])
        if block[345]:
            name = f"{_text(block[345:500])}/{name}"
    if len(name) > _NAME_LIMIT:
        raise Unsound("bad_header", f"a name of {len(name):,} characters, over {_NAME_LIMIT:,}")
    regular = kind in _REGULAR and not (kind == 0 and name.endswith("/"))  # so old archives mark folders
    if not regular and kind in _WITHOUT_PAYLOAD:
        size = 0
    elif "size" in stated:
        size = int(stated["size"])
    return Member(start, name, size, regular)


def read_records(kind: int, body: bytes) -> dict[str, str]:
    """What an extension header states of a member's "path" and "size"."""
    if kind == _LONG_NAME:
        return {"path": _text(body)}
    records: dict[str, str] = {}
    at = 0
    while kind in _PAX and at < len(body) and body[at]:
        match = _PAX_RECORD.match(body, at)  # "30 mtime=1700000000.123456789\n": length of all, key, value
        end = at + int(match[1]) if match else 0
        if not match or end <= match.end() or body[end - 1 : end] != b"\n":
            raise Unsound("bad_header", "a PAX header that is not made of records")
        key, value = match[2], body[match.end() : end - 1]
        if key.startswith(b"GNU.sparse."):
            raise Unsound("unsupported", "a sparse file; write the shard without")
        if key in (b"path", b"size"):
            if kind == GLOBAL:  # whoever starts behind it would not know
                raise Unsound("unsupported", f"a global header that sets every member's {key.decode()}")
            if key == b"size" and not _DIGITS.fullmatch(value):
                raise Unsound("bad_header", f"a size of {value!r}")
            records[key.decode()] = value.decode("utf-8", "surrogateescape").rstrip("/")
        at = end
    return records


def _number(field: bytes) -> int:
    """A numeric field: octal digits, or base 256 where its first bit is set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        return int.from_bytes(field, "big", signed=True)
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError as error:
        raise Unsound("bad_header", f"no tar header where one must stand: {field!r} is no octal number") from error


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
