"""Shards in a bucket, reached directly or through a proxy, and where to break them."""

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wdspack
from wdspack.serve import S3Server


def bucketed(server: S3Server, paths: Iterable[str], prefix: str) -> list[str]:
    """Uploads shards as `prefix`/name; returns their URLs, in the same order."""
    client, urls = server.client(), []
    for path in map(Path, paths):
        client.put_object(Bucket=server.bucket, Key=f"{prefix}/{path.name}", Body=path.read_bytes())
        urls.append(f"s3://{server.bucket}/{prefix}/{path.name}")
    return urls


def source(server: S3Server, urls: Iterable[str], endpoint: str = "", **options: Any) -> wdspack.Source:
    """A source called `shard`, as that of the local shards is; endpoint: a proxy's, where there is one."""
    storage = {**server.storage_options, "endpoint_url": endpoint or server.endpoint, **options}
    return wdspack.Source(urls=tuple(urls), name="shard", storage_options=storage)


def places(path: str) -> dict[str, int]:
    """Offsets within a shard where a connection may break, by what is there."""
    with tarfile.open(path) as tar:
        member = tar.getmembers()[5]
    return {
        "header": member.offset + 100,
        "data": member.offset_data + member.size // 2,
        "boundary": member.offset,
        "last": Path(path).stat().st_size - 1,
    }
