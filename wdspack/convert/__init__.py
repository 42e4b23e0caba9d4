"""Records → shards: `convert` for datasets of any size, `write_shards` for samples that are in memory."""

from wdspack.convert.plan import Options
from wdspack.convert.receipts import Summary
from wdspack.convert.rows import Part, Reader, Record, Reject, Row
from wdspack.convert.run import convert
from wdspack.convert.simple import chat_records, write_shards
from wdspack.convert.tarball import Files
from wdspack.executors import LocalExecutor, RayExecutor

__all__ = [
    "Files",
    "LocalExecutor",
    "Options",
    "Part",
    "RayExecutor",
    "Reader",
    "Record",
    "Reject",
    "Row",
    "Summary",
    "chat_records",
    "convert",
    "write_shards",
]
