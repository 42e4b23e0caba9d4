"""Records → shards."""

from wdspack.convert.simple import Files, chat_records, write_shards

__all__ = ["Files", "chat_records", "write_shards"]
