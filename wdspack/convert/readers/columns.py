"""Arrow tables of image-text rows, as in parquet files and the cache of `datasets`: which columns, and their rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wdspack.convert.compose import Draft
from wdspack.convert.readers.chat import image_in, row_id
from wdspack.convert.readers.ratings import MinRating, aspects, rated
from wdspack.convert.rows import Reject
from wdspack.errors import ConfigError, SampleError
from wdspack.records import CAPTIONS, CHATS

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 64  # rows held at once


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What of a table is read.

    image: the column of images (default: `images` or `image`, if there is one): binary, a path, {bytes, path} as
    `datasets` writes it, or lists of these. caption: a column of captions, where no other form applies.
    min_rating: see `wdspack.convert.readers.ratings`. All columns that are not binary are kept.
    """

    image: str | None = None
    caption: str | None = None
    min_rating: MinRating | None = None

    def checked(self, schema: "pa.Schema", url: str) -> list[str]:
        """The names of the columns to read. Raises ConfigError if the table is not of a form that is known."""
        image, names = self._image(schema), schema.names
        given = ", ".join(f"{field.name}: {field.type}" for field in schema)
        for wanted in filter(None, (self.image, self.caption)):
            if wanted not in names:
                raise ConfigError(f"{url} has no column {wanted!r}, but {given}; name one of these")
        if image is not None and not _holds_images(schema.field(image).type):
            what = "binary, a path, a struct of bytes and path, or a list of these"
            raise ConfigError(
                f"{url}: the column of images is {given}; it must be {what}; name another as the image column"
            )
        if self.caption is None and not any(name in names for name in (*CHATS, *CAPTIONS)):
            allowed = ", ".join((*CHATS, *CAPTIONS))
            raise ConfigError(f"{url} has the columns {given}, but none of {allowed}; name the caption column")
        if self.min_rating is not None:
            rates, wanted_aspects = aspects(names), [] if isinstance(self.min_rating, int) else list(self.min_rating)
            if not rates or not set(wanted_aspects) <= set(rates):
                found = ", ".join(rates) or "none"
                raise ConfigError(
                    f"{url}: min_rating={self.min_rating!r}, but the aspects rated are {found}; use these"
                )
        return [name for name in names if name == image or not _is_binary(schema.field(name).type)]

    def drafts(self, table: "pa.Table | pa.RecordBatch") -> Iterator[Draft | Reject]:
        """One for each row, in order."""
        image = self._image(table.schema)
        several = image is None or _is_list(table.schema.field(image).type)
        for row in table.to_pylist():
            cell = row.pop(image) if image is not None else ()
            yield self._draft(row, cell or () if several else [cell])  # one image that is null is missing, not none

    def _draft(self, row: Mapping[str, Any], images: Any) -> Draft | Reject:
        record = {name: value for name, value in row.items() if value is not None}
        try:
            if self.min_rating is not None:
                record = rated(record, self.min_rating)
        except SampleError as error:
            return Reject(row_id(row.get("id")), error.reason, str(error))
        if self.caption is not None:
            record["caption"] = record.pop(self.caption, None)
        return Draft(row_id(row.get("id")), record, tuple(map(image_in, images)))

    def _image(self, schema: "pa.Schema") -> str | None:
        return self.image or next((name for name in ("images", "image") if name in schema.names), None)


def _is_list(kind: "pa.DataType") -> bool:
    from pyarrow import types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def _holds_images(kind: "pa.DataType") -> bool:
    from pyarrow import types

    if _is_list(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        return any(field.name in ("bytes", "path", "url") for field in kind)
    return _is_bytes(kind) or bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: "pa.DataType") -> bool:
    """Whether values hold bytes, however deep: JSON cannot."""
    return _is_bytes(kind) or any(_is_binary(kind.field(at).type) for at in range(kind.num_fields))


def _is_bytes(kind: "pa.DataType") -> bool:
    from pyarrow import types

    tests = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(test(kind) for test in tests)
