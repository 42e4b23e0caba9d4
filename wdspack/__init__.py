"""wdspack: image-text tar shards in, dense balanced packs out.

Importing it is cheap: torch and transformers are imported when something that needs them is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wdspack.config import DataConfig, Source, load_config
from wdspack.errors import ConfigError, ResumeError, SampleError, ShardError, WdspackError
from wdspack.layouts import FixedLayout, NativeLayout, TileLayout
from wdspack.ledger import Ledger

if TYPE_CHECKING:
    from wdspack.batch import normalize
    from wdspack.dataset import PackedDataset
    from wdspack.loader import Loader, make_loader
    from wdspack.state import merge_states

_LAZY = {
    "PackedDataset": "dataset",
    "Loader": "loader",
    "make_loader": "loader",
    "merge_states": "state",
    "normalize": "batch",
}

__all__ = [
    "ConfigError",
    "DataConfig",
    "FixedLayout",
    "Ledger",
    "Loader",
    "NativeLayout",
    "PackedDataset",
    "ResumeError",
    "SampleError",
    "ShardError",
    "Source",
    "TileLayout",
    "WdspackError",
    "load_config",
    "make_loader",
    "merge_states",
    "normalize",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"wdspack.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'wdspack' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
