"""Samples that are in memory → shards in a folder."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from wdspack.convert.keys import id_key
from wdspack.convert.plan import shard_name
from wdspack.convert.readers.chat import ChatReader
from wdspack.convert.rows import Reject
from wdspack.convert.store import Store
from wdspack.convert.tarball import Files, TarFile, members
from wdspack.errors import ConfigError


def chat_records(folder: str | Path) -> Iterator[tuple[str, Files]]:
    """Samples of a folder with `records.jsonl`: a line is {"id", "messages", "images": paths in the folder, in order}.

    Raises ConfigError when there is no such file, or a line cannot be read.
    """
    reader = ChatReader(urls=str(Path(folder, "records.jsonl")))
    for part in reader.parts():
        for row in reader.read(part, 0, part.rows):
            if isinstance(row, Reject):
                raise ConfigError(f"{part.url}: record {row.id}: {row.message}")
            yield id_key(row.id), row.files


def write_shards(
    samples: Iterable[tuple[str, Files]], folder: str | Path, *, name: str = "shard", per_shard: int = 256
) -> list[str]:
    """Writes `folder`/`name`-000000.tar, … in place of those that were there; returns their paths in order.

    samples: (key, files); equal samples give equal bytes. Raises SampleError for a key or extension that would not read
    back as it is.
    """
    store = Store(str(folder))
    for old in store.sizes():
        if old.startswith(f"{name}-") and old.endswith(".tar"):
            store.remove(old)
    paths: list[str] = []
    source = iter(samples)
    while batch := list(islice(source, per_shard)):
        shard = shard_name(name, len(paths))
        with store.writing(shard) as file:
            tar = TarFile(file)
            for key, files in batch:
                tar.write(members(key, files))
            tar.finish()
        paths.append(store.at(shard))
    return paths
