"""One reader for each public form of image-text data. Each is imported, with what it needs, when it is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdspack.convert.readers.chat import ChatReader
    from wdspack.convert.readers.coco import CocoReader
    from wdspack.convert.readers.folder import FolderReader
    from wdspack.convert.readers.hub import HubReader
    from wdspack.convert.readers.mds import MdsReader
    from wdspack.convert.readers.parquet import ParquetReader
    from wdspack.convert.readers.shards import ShardsReader
    from wdspack.convert.readers.table import TableReader

__all__ = [
    "ChatReader",
    "CocoReader",
    "FolderReader",
    "HubReader",
    "MdsReader",
    "ParquetReader",
    "ShardsReader",
    "TableReader",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{name.removesuffix('Reader').lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
