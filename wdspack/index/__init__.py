"""What stands where in a set of shards: made once, checked against, and read instead of every byte.

    shards ──index_shards──▶ index.parquet ──verify_shards──▶ what has changed or is damaged
                                  └─────────sizes──▶ (tokens, images, tiles) of every sample under any layout it is for

Nothing that streams reads an index. It is written and read with pyarrow, which the extra `convert` installs.
"""

from wdspack.index.build import Summary, index_shards
from wdspack.index.sizes import IndexedSizes
from wdspack.index.table import Index, IndexedShard
from wdspack.index.verify import Checked, Checks, Fault, verify_shards

__all__ = [
    "Checked",
    "Checks",
    "Fault",
    "Index",
    "IndexedShard",
    "IndexedSizes",
    "Summary",
    "index_shards",
    "verify_shards",
]
