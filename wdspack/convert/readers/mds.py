"""MosaicML's MDS directories, read without the library that writes them: it cannot be installed beside transformers 5.

index.json: {"version": 2, "shards": [{"column_names", "column_encodings", "column_sizes", "raw_data", "samples", …}]}
shard: uint32 samples │ uint32 × (samples + 1): where each begins, and where the last ends │ … │ the samples
sample: uint32 for each column of no fixed size: its bytes │ the columns
"""

import bz2
import gzip
import io
import json
import posixpath
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from wdspack.convert.compose import Draft
from wdspack.convert.readers.base import DraftReader
from wdspack.convert.readers.chat import row_id
from wdspack.convert.readers.inputs import find_files, there
from wdspack.convert.rows import Part, Reject
from wdspack.errors import ConfigError, SampleError, ShardError
from wdspack.storage import read_file

_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_PICTURES = frozenset(("jpeg", "png", "pil", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]"))
_PNG_MODES = frozenset(("1", "L", "LA", "P", "I", "I;16", "RGB", "RGBA"))
_NAMES = ("images", "image", "jpg", "jpeg", "png", "img")


@dataclass(frozen=True, kw_only=True)
class MdsReader(DraftReader):
    """A row has columns of images, and `messages`, `conversations`, `texts` (as json or str), `caption` or `text`.

    folder: what MDSWriter wrote, with index.json; several folders, or one that holds them at any depth, are read in
    order. Images are the columns encoded as such, and bytes called image or images (or `image_column`), in the order of
    the index; `pil` ones, which are raw pixels, become PNG. caption_column: where no other form applies. Other columns
    are kept but for bytes and arrays. A shard is a part, held as a whole (64 MB unless the writer was told otherwise).
    """

    folder: str | Sequence[str]
    image_column: str | None = None
    caption_column: str | None = None

    def find_parts(self) -> Sequence[Part]:
        folders = [self.folder] if isinstance(self.folder, str) else self.folder
        urls = [folder if folder.endswith(".json") else f"{folder.rstrip('/')}/" for folder in folders]
        indexes = find_files(urls, ("/index.json",), self.storage_options)
        return [part for index in indexes for part in self._shards(index)]

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        with there("a folder that MDSWriter wrote"):
            data = read_file(part.url, storage_options=self.storage_options)
        try:
            data = _decompressed(data, part.place["compression"], part.place["bytes"])
            rows = _samples(data, part.rows, start, stop)
        except Exception as error:  # of the decompressors', struct's, or ours
            message = f"not the shard that its index describes ({type(error).__name__}: {error}); fetch it again"
            raise ShardError(message, url=part.url, reason="damaged") from error
        for row in rows:
            yield self._draft(row, part.place["columns"])

    def sources(self, parts: Sequence[Part]) -> Sequence[str]:
        shards = super().sources(parts)
        return [*dict.fromkeys(f"{posixpath.dirname(url)}/index.json" for url in shards), *shards]

    def _shards(self, index: str) -> Iterator[Part]:
        with there("a folder that MDSWriter wrote, with index.json"):
            content = read_file(index, storage_options=self.storage_options)
        try:
            document = json.loads(content)
            if document["version"] != 2:
                raise ValueError(f"version {document['version']}")
            for shard in document["shards"]:
                yield self._part(shard, posixpath.dirname(index))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{index} is not MDS's index, version 2 ({type(error).__name__}: {error})") from error

    def _part(self, shard: Mapping[str, Any], folder: str) -> Part:
        if shard["format"] != "mds":
            raise ConfigError(f"{folder}: shards of the format {shard['format']!r}; give those of MDSWriter")
        columns = list(zip(shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True))
        for name, encoding, _ in columns:
            if encoding == "pkl":
                message = f"{folder}: column {name!r} is pickled, which could run any code when read"
                raise ConfigError(f"{message}; write the dataset again without it")
        file = shard["zip_data"] or shard["raw_data"]
        if posixpath.basename(file["basename"]) != file["basename"] or file["basename"] in ("", ".", ".."):
            raise ConfigError(f"{folder}: index.json names a shard {file['basename']!r}; it must be in the same folder")
        place = {
            "columns": columns,
            "compression": (shard["compression"] or "").partition(":")[0] if shard["zip_data"] else "",
            "bytes": shard["raw_data"]["bytes"],
        }
        return Part(f"{folder}/{file['basename']}", int(shard["samples"]), place)

    def _draft(self, row: bytes, columns: Sequence[tuple[str, str, int | None]]) -> Draft | Reject:
        record: dict[str, Any] = {}
        images: list[bytes | str | None] = []
        try:
            for name, encoding, value in _cells(row, columns):
                if self._is_image(name, encoding):
                    images += _images(value, encoding)
                elif (decode := _DECODERS.get(encoding)) is not None:
                    record[name] = decode(value)
        except SampleError as error:
            return Reject(row_id(record.get("id")), error.reason, str(error))
        except Exception as error:
            message = f"column {name!r} ({encoding}) cannot be read ({type(error).__name__}: {error})"
            return Reject(row_id(record.get("id")), "bad_row", f"{message}; write the row again")
        if self.caption_column is not None:
            record["caption"] = record.pop(self.caption_column, None)
        return Draft(row_id(record.get("id")), record, tuple(images))

    def _is_image(self, name: str, encoding: str) -> bool:
        if self.image_column is not None:
            return name == self.image_column
        return encoding in _PICTURES or (encoding == "bytes" and name in _NAMES)


def _decompressed(data: bytes, kind: str, size: int) -> bytes:
    if not kind:
        return data
    if kind in ("gz", "bz2"):
        return gzip.decompress(data) if kind == "gz" else bz2.decompress(data)
    import pyarrow as pa

    codecs = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}
    return bytes(pa.Codec(codecs[kind]).decompress(data, decompressed_size=size))


def _samples(data: bytes, rows: int, start: int, stop: int) -> list[bytes]:
    (stated,) = struct.unpack_from("<I", data)
    if stated != rows:
        raise ValueError(f"{stated} samples, but the index says {rows}")
    ends = struct.unpack_from(f"<{stop - start + 1}I", data, 4 * (1 + start))
    if sorted(ends) != list(ends) or ends[-1] > len(data):
        raise ValueError(f"samples up to byte {max(ends):,} of {len(data):,}")
    return [data[begin:end] for begin, end in pairwise(ends)]


def _cells(row: bytes, columns: Sequence[tuple[str, str, int | None]]) -> Iterator[tuple[str, str, bytes]]:
    at = 4 * sum(not size for _, _, size in columns)
    sizes = iter(struct.unpack_from(f"<{at // 4}I", row))
    for name, encoding, size in columns:
        nbytes = size or next(sizes)
        if at + nbytes > len(row):
            raise SampleError(f"column {name!r} ends after its row; write the row again", reason="bad_row")
        yield name, encoding, row[at : at + nbytes]
        at += nbytes


def _images(value: bytes, encoding: str) -> list[bytes | str | None]:
    if encoding in ("jpeg_array", "jpegarray"):
        return list(_listed(value, 0))
    if encoding.startswith("list["):
        found = _listed(value, 4)  # its first four bytes are for later versions
        return [_png(one) for one in found] if encoding == "list[pil]" else list(found)
    if encoding == "str":
        return [value.decode()]
    return [_png(value) if encoding == "pil" else value]


def _listed(value: bytes, at: int) -> list[bytes]:
    (count,) = struct.unpack_from("<I", value, at)
    found = []
    begin = at + 4 + 4 * count
    for size in struct.unpack_from(f"<{count}I", value, at + 4):
        found.append(value[begin : begin + size])
        begin += size
    return found


def _png(value: bytes) -> bytes:
    """Raw pixels (width, height and the mode's length as uint32, the mode, the pixels) as a PNG, without loss; in RGB
    where PNG lacks their mode."""
    width, height, length = struct.unpack_from("<3I", value)
    image = Image.frombytes(value[12 : 12 + length].decode(), (width, height), value[12 + length :])
    if image.mode not in _PNG_MODES:
        image = image.convert("RGB")
    out = io.BytesIO()
    image.save(out, "png")
    return out.getvalue()


def _scalar(kind: str, value: bytes) -> Any:
    return np.frombuffer(value, kind)[0].item()


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "str": lambda value: value.decode(),
    "json": lambda value: json.loads(value.decode()),
    "int": lambda value: int.from_bytes(value, "little", signed=True),
    "str_int": lambda value: int(value.decode()),
    "str_float": lambda value: float(value.decode()),
    "str_decimal": lambda value: value.decode(),
    **{kind: partial(_scalar, kind) for kind in _SCALARS},
}
