"""Bytes of shards, by URL, from local disks and object stores, whatever happens on the way.

    opening ──▶ stream      shards as they are read
    reading                 ranges, small files, listings
      └─ requests ─ cache ─ prefetch ─ files
            access          retries, budget, counts
            remotes         one request: S3, HTTP, any fsspec filesystem
            clients         fsspec's filesystems
            faults          what an exception means

The only package that knows of files, object stores and gzip. A filesystem is looked up where it is used, never kept:
its clients do not survive a fork. All failures leave as `ShardError`.
"""

from wdspack.storage.access import Access
from wdspack.storage.clients import Options
from wdspack.storage.opening import Successive, open_shard
from wdspack.storage.reading import list_files, read_file, read_ranges, stat_shard
from wdspack.storage.requests import Stat
from wdspack.storage.stream import ShardStream

__all__ = [
    "Access", "Options", "ShardStream", "Stat", "Successive", "list_files", "open_shard", "read_file", "read_ranges",
    "stat_shard",
]  # fmt: skip
