"""Records → shards: samples as (key, files) written in webdataset's layout, the same input the same bytes."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import webdataset as wds

from wdspack.errors import ConfigError

Files = Mapping[str, bytes]  # extension ("json", "jpg", "0.png") → contents


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
    """Writes `folder`/`name`-000000.tar, … and returns their paths in order."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths: list[str] = []
    pattern = f"{folder}/{name}-%06d.tar"
    with wds.ShardWriter(pattern, maxcount=per_shard, post=paths.append, verbose=0, encoder=False, mtime=0) as writer:
        for key, files in samples:
            writer.write({"__key__": key, **files})
    return paths
