"""A shard's bytes → its samples, with the offsets at which reading can go on.

    ┌ extension header (PAX, GNU long name)         ┌ member of another key           ┌ end-of-archive marker
    [ext][header][payload|pad] [header][payload|pad] [folder] [header][payload|pad] … [zeros][zeros] zeros…
    └ offset ──────────── nbytes ─────────────────┘           └ next_offset

On sound shards these are webdataset's samples, byte for byte. On damaged ones webdataset's reader ends quietly; this
one gives every sample known to be whole, then raises a `ShardError`. A sample is known to be whole when the next key
or the end-of-archive marker follows it; one that stands open where the damage begins may lack files: it is not given.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from webdataset.tariterators import base_plus_ext

from wdspack.errors import ShardError
from wdspack.storage import Options, ShardStream, open_shard
from wdspack.tarheaders import BLOCK, EXTENSIONS, GLOBAL, Member, Unsound, checked_size, read_member, read_records
from wdspack.types import RawSample

_ZEROS = bytes(BLOCK)
_META = re.compile(r"__[^/]*__($|/)")  # names that webdataset takes for metadata
_RESERVED = ("__key__", "__url__", "__local_path__")  # what webdataset adds to a sample's files
_CHUNK = 1 << 24  # bytes asked for at once: a damaged header can state any size, which is not to be allocated


class TarReader:
    """The samples of one shard from a sample boundary on; to be iterated once.

    Consecutive members with the same key, by webdataset's `base_plus_ext`, are a sample.

    Attributes, right whenever a sample has been given and after the last one:
        ordinal: number of the sample that comes next; in the end, of samples in the shard.
        ignored: members passed over since the last sample given, by reason. What a sample itself says was ignored
            includes all up to its `next_offset`, so that going on from there neither misses nor repeats one.
        unclosed: True if the shard ended without end-of-archive marker (only with `strict_end=False`).
    """

    def __init__(
        self,
        stream: ShardStream,
        *,
        ordinal: int = 0,
        strict_end: bool = True,
        wants: Callable[[int], bool] | None = None,
    ) -> None:
        """Reads `stream` from where it stands: the start of the shard, or some sample's `next_offset`.

        ordinal: number of the sample that begins there.
        strict_end: raise if there is no end-of-archive marker. Python's tarfile writes such shards if it is not
            closed; they look like one that is cut between two members.
        wants: tells by ordinal which samples to give; the payloads of the others are skipped.
        """
        self.ordinal = ordinal
        self.ignored = Counter[str]()
        self.unclosed = False
        self._stream = stream
        self._strict_end = strict_end
        self._wants = wants
        self._key = ""  # of the sample that stands open; no key is empty

    def __iter__(self) -> Iterator[RawSample]:
        """Gives each sample as soon as it is known to be whole.

        Raises ShardError: "truncated", "not_closed", "bad_header", "trailing_data", "duplicate" (two files of a sample
        with one extension), "unsupported" (sparse files; global headers that name or size members), or what the stream
        raises.
        """
        files: dict[str, bytes] = {}
        start = end = 0
        wanted = False
        while (member := self._next_member()) is not None:
            key, extension = _split(member)
            if not key:
                self.ignored[extension] += 1
                self._pass(member.size)
                continue
            if key != self._key:
                if wanted:
                    yield self._sample(files, start, end, member.start)
                self._key, files, start = key, {}, member.start
                wanted = self._wants is None or self._wants(self.ordinal)
                self.ordinal += 1
            if extension in files or extension in _RESERVED:
                message = f"two files {extension!r} in sample {key!r}; give each file of a sample its own extension"
                raise self._error("duplicate", message, member.start)
            files[extension] = self._payload(member.size) if wanted else self._pass(member.size)
            end = self._stream.position
        marker = self._stream.position
        if not self.unclosed:
            # POSIX ends an archive with two blocks of zeros. After one alone, data means that a header was overwritten,
            # maybe within this sample; after two, as in `cat a.tar b.tar`, the sample is whole whatever follows.
            marker -= BLOCK
            self._expect_zeros(self._stream.read(BLOCK))
        if wanted:
            yield self._sample(files, start, end, marker)
        self._key = ""
        while tail := self._stream.read(_CHUNK):
            self._expect_zeros(tail)

    def _sample(self, files: Mapping[str, bytes], start: int, end: int, next_offset: int) -> RawSample:
        ignored, self.ignored = self.ignored, Counter()
        ordinal = self.ordinal - 1
        return RawSample(self._stream.url, self._key, files, start, end - start, next_offset, ordinal, ignored)

    def _next_member(self) -> Member | None:
        """Reads up to a member's payload, extension headers included; None at the end of the archive."""
        stated: dict[str, str] = {}  # by extension headers
        start: int | None = None
        while True:
            at = self._stream.position
            block = self._stream.read(BLOCK)
            if not block or block == _ZEROS:
                if start is not None:
                    raise self._error("truncated", "the archive ends between the headers of a member", at)
                self.unclosed = not block
                if self.unclosed and self._strict_end:
                    message = "no end-of-archive marker: cut, or never closed by its writer (strict_end=False takes it)"
                    raise self._error("not_closed", message, at)
                return None
            if len(block) < BLOCK:
                raise self._error("truncated", "the archive ends within a header", self._stream.position)
            try:
                size, kind = checked_size(block), block[156]
                if kind not in EXTENSIONS:
                    return read_member(block, size, stated, at if start is None else start)
                records = read_records(kind, self._payload(size))
            except Unsound as fault:
                raise self._error(fault.reason, fault.message, at) from fault
            if kind != GLOBAL:  # the others belong to the next member
                start = at if start is None else start
                stated = records | stated  # of several that say the same, the first counts, as with tarfile

    def _payload(self, size: int) -> bytes:
        chunks = []
        left = size
        while left and (chunk := self._stream.read(min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
        padding = -size % BLOCK
        if left or len(self._stream.read(padding)) < padding:
            raise self._cut()
        return b"".join(chunks)

    def _pass(self, size: int) -> bytes:
        """Passes over a payload."""
        padded = size + -size % BLOCK
        if self._stream.skip(padded) < padded:
            raise self._cut()
        return b""

    def _cut(self) -> ShardError:
        return self._error("truncated", "the archive ends within a payload or its padding", self._stream.position)

    def _expect_zeros(self, tail: bytes) -> None:
        if data := tail.lstrip(b"\0"):
            message = "data after the end-of-archive marker: archives were joined, or a header was zeroed"
            raise self._error("trailing_data", message, self._stream.position - len(data))

    def _error(self, reason: str, message: str, offset: int) -> ShardError:
        lost = f"; sample {self._key!r}, which may go on there, is not given" if self._key else ""
        advice = "fetch or write the shard again, or pass over damaged ones with on_error='skip'"
        return ShardError(f"{message}{lost}; {advice}", url=self._stream.url, offset=offset, reason=reason)


def read_sample(data: bytes, url: str, *, offset: int = 0, ordinal: int = 0) -> RawSample:
    """One sample again, from the bytes [offset, offset + nbytes) of its shard.

    Raises ShardError "changed" if they are not exactly one sample, or as `TarReader` does: the shard is another one.
    """
    stream = ShardStream(io.BytesIO(data), url, position=offset)
    samples = list(TarReader(stream, ordinal=ordinal, strict_end=False))
    if len(samples) != 1 or samples[0].nbytes != len(data):
        message = f"{len(data):,} bytes that held one sample hold {len(samples)}: the shard was replaced; restore it"
        raise ShardError(message, url=url, offset=offset, reason="changed")
    return samples[0]


def expand(
    shards: Iterable[str | Mapping[str, Any]], *, strict_end: bool = True, storage_options: Options = None
) -> Iterator[dict[str, Any]]:
    """A stage for `wds.DataPipeline`: shards ({"url": …}, or URLs) → samples as webdataset has them.

    A sample is {"__key__": str, "__url__": str, extension: bytes, …}. Raises ShardError as `TarReader` does.
    """
    for shard in shards:
        url = shard if isinstance(shard, str) else shard["url"]
        with open_shard(url, storage_options=storage_options) as stream:
            for sample in TarReader(stream, strict_end=strict_end):
                yield {"__key__": sample.key, "__url__": url, **sample.files}


def _split(member: Member) -> tuple[str, str]:
    """(key, extension), or ("", reason) of a member that webdataset ignores."""
    name = member.name
    if not member.regular:
        return "", "not_a_file"
    if name.startswith("__") and (_META.match(name) or ("/" not in name and name.endswith("__"))):
        return "", "meta"
    key, extension = base_plus_ext(name)
    return ("", "no_extension") if key is None else (key, extension.lower())
