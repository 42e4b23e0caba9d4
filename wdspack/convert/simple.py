"""Samples that are in memory → shards in a folder."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from wdspack.convert.plan import shard_name
from wdspack.convert.store import Store
from wdspack.convert.tarball import Files, TarFile, members
from wdspack.errors import ConfigError


def chat_records(folder: str | Path) -> Iterator[tuple[str, Files]]:
    """Samples of a folder with `records.jsonl`: a line is {"id", "messages", "images": paths in the folder, in order}.

    Raises ConfigError when there is no such file.
    """
    folder = Path(folder)
    records = folder / "records.jsonl"
    if not records.is_file():
        raise ConfigError(f"{records}: no such file; give a folder that holds records.jsonl and its images")
    with records.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            paths = [folder / path for path in record.get("images", ())]
            alone = len(paths) == 1
            images = {
                path.suffix[1:] if alone else f"{number}{path.suffix}": path.read_bytes()
                for number, path in enumerate(paths)
            }
            document = json.dumps({"messages": record["messages"]}, ensure_ascii=False).encode()
            # A dot would end the key and begin the extension.
            yield str(record["id"]).replace(".", "_"), {"json": document, **images}


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
