"""A sample → the bytes of its members in a tar, the same for the same sample: no times, no owners, extensions sorted.

The headers are `tarfile`'s, to the byte. webdataset's writer is not used: importing it imports torch, which each
worker would wait for, and it cannot write keys of more than 100 bytes.
"""

import re
from collections.abc import Iterable, Mapping
from tarfile import BLOCKSIZE, PAX_FORMAT, RECORDSIZE, TarInfo
from typing import BinaryIO

from wdspack.errors import SampleError

Files = Mapping[str, bytes]  # extension ("json", "jpg", "0.png") → contents
Block = bytes | memoryview

_KEY = re.compile(r"(?!__)(?:[^/\0]+/)*[^./\0]+")  # webdataset: the first dot after the last slash ends the key
_EXTENSION = re.compile(r"(?!_)[^/\0A-Z]+")
_CLIMBING = re.compile(r"(?:^|/)\.{1,2}(?:/|$)")
_BLANK = TarInfo("").tobuf(PAX_FORMAT)  # name at 0, size at 124 (eleven octal digits), checksum at 148 (six, a NUL)
_BLANK_SUM = sum(_BLANK[:124]) + sum(_BLANK[135:148]) + sum(b" " * 8) + sum(_BLANK[156:])
_PADDING = tuple(bytes(-n % BLOCKSIZE) for n in range(BLOCKSIZE))  # by bytes in the last block


def members(key: str, files: Files) -> list[bytes]:
    """Headers, contents and padding, to be written one after the other; contents are not copied.

    Raises SampleError "bad_key", "bad_extension" or "no_files" where webdataset would read back something else.
    """
    if not _KEY.fullmatch(key) or _CLIMBING.search(key):
        message = f"key {key[:200]!r}: a key is a relative path without '.' in its last part, not beginning with '__'"
        raise SampleError(message, reason="bad_key")
    if not files:
        raise SampleError(f"sample {key!r} has no files; a sample needs one at least", reason="no_files")
    blocks: list[bytes] = []
    for extension in sorted(files):
        if not _EXTENSION.fullmatch(extension):
            message = f"extension {extension[:200]!r}: lower case, without '/', not beginning with '_', is allowed"
            raise SampleError(message, reason="bad_extension")
        data = files[extension]
        blocks += (header(f"{key}.{extension}", len(data)), data, _PADDING[len(data) % BLOCKSIZE])
    return blocks


def header(name: str, size: int) -> bytes:
    """A member's header, and what extends it, as `tarfile` makes it.

    That takes most of the time of writing a small sample. Most names are short and ASCII: for these it is enough to put
    name, size and checksum into a template.
    """
    if len(name) > 100 or not name.isascii() or size >= 8**11:
        member = TarInfo(name)
        member.size = size
        return member.tobuf(PAX_FORMAT)
    digits = b"%011o" % size
    raw = name.encode()
    checksum = _BLANK_SUM + sum(raw) + sum(digits)
    return b"".join(
        (raw.ljust(100, b"\0"), _BLANK[100:124], digits, _BLANK[135:148], b"%06o\0" % checksum, _BLANK[155:])
    )


class TarFile:
    """Writes members to an open file. nbytes: written so far."""

    def __init__(self, file: BinaryIO) -> None:
        self.nbytes = 0
        self._file = file

    def write(self, blocks: Iterable[Block]) -> None:
        """Appends what `members` gives."""
        for block in blocks:
            self._file.write(block)
            self.nbytes += len(block)

    def finish(self) -> None:
        """Writes the end-of-archive marker, up to a whole record as tar does. Closing the file is up to the caller."""
        end = 2 * BLOCKSIZE
        self.write([bytes(end + -(self.nbytes + end) % RECORDSIZE)])
