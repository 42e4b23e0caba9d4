"""What bench_pipeline.py --peers compares with: the same samples through other loaders, each in a process of its own.

    python tools/pipeline_peers.py NAME SETTINGS      prints the figures of one pass as JSON
    python tools/pipeline_peers.py prepare SETTINGS   writes what the peer called settings["peer"] reads, in "folder"

Everything that is not the peer's own is the product's: a sample is measured by `run.measurer` (so tokens, labels and
drops are equal), its images are drawn by `images.render`. Two worker processes do all that, each with one torch thread,
after a shuffle over 256 samples or the peer's own; pixels cross to the main process as uint8 tensors in shared memory.

webdataset: the tar shards, no packing: `NAIVE_BATCH` samples a batch, padded to its longest.
energon: megatron-energon on the tar shards, which it indexes first. Its own packing: a buffer of 256 measured samples
    is packed first fit decreasing, by tokens and images (`select_samples_to_pack`), and its images are drawn when their
    pack is due (`postencode_sample`); 2 packs a batch, as the product has it.
mosaicml: mosaicml-streaming on the samples written as MDS, images drawn in `__getitem__`, batches as webdataset's.

`pip install 'wdspack[peers]'` brings them but for mosaicml-streaming, whose requirements would take transformers back
to 4: `pip install --no-deps mosaicml-streaming` after it.
"""

import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, partialmethod
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from pipeline_parts import settle
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from wdspack import images
from wdspack.assemble import IGNORE, assemble
from wdspack.batch import collate
from wdspack.errors import SampleError
from wdspack.packing import pack_all
from wdspack.packing.baselines import NAIVE_BATCH
from wdspack.run import Run, resolve
from wdspack.types import Place, RawSample, Sample

BUFFER, PACKS = 256, 2  # samples a shuffle or a packing looks at; packs a batch

Drawn = tuple[Sample, torch.Tensor]
Batch = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """module: what it is imported as. loader: its batches, from the run, its folder and the number of workers."""

    module: str
    prepare: Callable[[Run, Path], None]
    loader: Callable[[Run, Path, int], Iterable[Batch | None]]

    @property
    def missing(self) -> str:
        """What to install where it is not there, else ""."""
        if find_spec(self.module.partition(".")[0]) and find_spec(self.module):
            return ""
        more = " && pip install --no-deps mosaicml-streaming" if self.module == "streaming" else ""
        return f"{self.module} is not installed: pip install 'wdspack[peers]'{more}"


def figures(peer: Peer, settings: dict[str, Any]) -> dict[str, Any]:
    """One pass; `keys` are those of the samples delivered, the rest is as `pipeline_parts.product` has it."""
    torch.set_num_threads(1)
    run = resolve(settle(settings), lanes=1)
    loader = peer.loader(run, Path(settings["folder"]), settings.get("workers") or 2)
    begun, used = time.perf_counter(), os.times()
    first, keys, tokens, pictures, places = 0.0, list[str](), 0, 0, 0
    for batch in filter(None, loader):
        first = first or time.perf_counter() - begun
        meta = batch["meta"]
        keys += [key for _, key in chain.from_iterable(meta["keys"])]
        pictures += sum(int(counts.sum()) for counts in meta["images_per_segment"])
        tokens, places = tokens + int(meta["attention_mask"].sum()), places + batch["input_ids"].numel()
    seconds = time.perf_counter() - begun
    del loader  # energon's keeps its workers until then
    gc.collect()
    assert not multiprocessing.active_children(), "the CPU time of a worker is known when it has ended"
    samples, cpu = settings["samples"], sum(os.times()[:4]) - sum(used[:4])
    return {
        "samples": samples, "seconds": seconds, "rate": samples / seconds, "tokens": tokens / seconds,
        "fill": tokens / places, "cpu": cpu / samples * 1000, "first": first, "sizes": [tokens, pictures], "keys": keys,
    }  # fmt: skip


def measured(run: Run, key: str, files: Mapping[str, bytes]) -> Sample | None:
    """A sample as the product measures it; None for one that the product drops."""
    try:
        return run.measurer(RawSample("", key, files, 0, 0, 0, 0, {}), Place(0, 0, 0, 0, 0))
    except SampleError:
        return None


def drawn(run: Run, sample: Sample | None) -> Drawn | None:
    """With its tiles, (N, 3, H, W) uint8; None where an image does not decode."""
    if sample is None:
        return None
    layout, start = run.config.layout, 0
    tiles = torch.empty((sample.size.tiles, *layout.pixel_shape), dtype=torch.uint8)
    try:
        for image in sample.images:
            stop = start + layout.pixel_rows(image.grid)
            images.render(image.data, image.info, image.grid, layout, tiles[start:stop].numpy())
            start = stop
    except SampleError:
        return None
    return sample, tiles


def padded(run: Run, found: Sequence[Drawn | None]) -> Batch | None:
    """A batch with a row for each sample, as long as the longest; None where none is left."""
    pairs = [pair for pair in found if pair]
    if not pairs:
        return None
    ids = [torch.from_numpy(sample.encoded.input_ids).long() for sample, _ in pairs]
    taught = [torch.from_numpy(sample.encoded.supervised) for sample, _ in pairs]
    labels = [row.where(mask, IGNORE) for row, mask in zip(ids, taught, strict=True)]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=run.pad_id),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE),
        "pixel_values": joined(run, [tiles for _, tiles in pairs]),
        "meta": {
            "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
            "keys": [[(sample.url, sample.key)] for sample, _ in pairs],
            "images_per_segment": [torch.tensor([len(sample.images)]) for sample, _ in pairs],
        },
    }


def joined(run: Run, tiles: Sequence[torch.Tensor]) -> torch.Tensor:
    """(ΣN, 3, H, W) in shared memory from the start, as torch's `default_collate` has it: it is not copied again."""
    shape = sum(map(len, tiles)), *run.config.layout.pixel_shape
    size = torch.Size(shape).numel()
    out = torch.empty(0, dtype=torch.uint8)
    out.set_(torch.UntypedStorage._new_shared(max(1, size)), 0, shape)
    return torch.cat(list(tiles), out=out) if size else out


def files_of(crude: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: data for name, data in crude.items() if not name.startswith("__")}


def _prepare_nothing(run: Run, folder: Path) -> None:
    pass


def webdataset_loader(run: Run, _: Path, workers: int) -> Iterable[Batch | None]:
    import webdataset as wds

    def draw(crude: dict[str, Any]) -> Drawn | None:
        return drawn(run, measured(run, crude["__key__"], files_of(crude)))

    dataset = (
        wds.WebDataset(list(run.shards[0]), shardshuffle=100, seed=0, empty_check=False)
        .shuffle(BUFFER)
        .map(draw)
        .select(bool)
        .batched(NAIVE_BATCH, collation_fn=partial(padded, run))
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork")


def energon_prepare(run: Run, folder: Path) -> None:
    from megatron import energon

    (folder / "energon" / ".nv-meta").mkdir(parents=True)
    paths = [Path(url).resolve() for url in run.shards[0]]
    for path in paths:
        (folder / "energon" / path.name).symlink_to(path)
    energon.CrudeWebdataset.prepare_dataset(
        folder / "energon", [path.name for path in paths], split_parts_ratio=[("train", 1.0)], workers=1
    )
    kind = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (folder / "energon" / ".nv-meta" / "dataset.yaml").write_text(kind)


def energon_loader(run: Run, folder: Path, workers: int) -> Iterable[Batch | None]:
    from megatron import energon
    from tqdm import tqdm

    tqdm.__init__ = partialmethod(tqdm.__init__, disable=True)  # one for each worker's first buffer
    budget = {"seq_len": run.config.seq_len, "max_images": run.config.max_images}

    def unless_none(found: Any) -> Any:
        if found is None:
            raise energon.SkipSample
        return found

    @energon.stateless
    def cook(crude: dict[str, Any]) -> dict[str, Any]:
        key = crude["__key__"].rpartition("/")[2]
        return {**energon.basic_sample_keys(crude), "sample": unless_none(measured(run, key, files_of(crude)))}

    class Packing(energon.TaskEncoder):
        cookers = (energon.Cooker(cook),)
        decoder = None

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            groups = pack_all([each["sample"].size for each in samples], **budget, strategy="ffd")
            return [[samples[index] for index in group] for group in groups]

        @energon.stateless
        def postencode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
            return {**sample, "drawn": unless_none(drawn(run, sample["sample"]))}

        @energon.stateless
        def pack_selected_samples(self, samples: list[Any]) -> list[Drawn]:
            return [each["drawn"] for each in samples]

        @energon.stateless
        def batch(self, samples: list[list[Drawn]]) -> Batch:
            packs = [assemble(run, [sample for sample, _ in pack]) for pack in samples]
            pixels = joined(run, [tiles for pack in samples for _, tiles in pack])
            return collate(packs, run.config.layout, pixels)

    dataset = energon.get_train_dataset(
        folder / "energon",
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=PACKS,
        packing_buffer_size=BUFFER,
        shuffle_buffer_size=BUFFER,
        max_samples_per_sequence=None,
        task_encoder=Packing(),
        repeat=False,
    )
    return energon.get_loader(dataset)


def mosaicml_prepare(run: Run, folder: Path) -> None:
    import webdataset as wds

    with _streaming().MDSWriter(out=str(folder / "mds"), columns={"key": "str", "files": "pkl"}) as writer:
        for crude in wds.WebDataset(list(run.shards[0]), shardshuffle=False):
            writer.write({"key": crude["__key__"], "files": files_of(crude)})


def mosaicml_loader(run: Run, folder: Path, workers: int) -> Iterable[Batch | None]:
    class Dataset(_streaming().StreamingDataset):
        def __getitem__(self, at: int) -> Drawn | None:
            row = super().__getitem__(at)
            return drawn(run, measured(run, row["key"], row["files"]))

    dataset = Dataset(local=str(folder / "mds"), shuffle=True, batch_size=NAIVE_BATCH, allow_unsafe_types=True)
    return DataLoader(
        dataset, NAIVE_BATCH, num_workers=workers, collate_fn=partial(padded, run), multiprocessing_context="fork"
    )


def _streaming() -> Any:
    """mosaicml-streaming without its vision datasets, which want a torchvision that fits torch."""
    sys.modules.setdefault("streaming.vision", ModuleType("streaming.vision"))
    import streaming

    return streaming


PEERS: dict[str, Peer] = {
    "webdataset": Peer("webdataset", _prepare_nothing, webdataset_loader),
    "energon": Peer("megatron.energon", energon_prepare, energon_loader),
    "mosaicml": Peer("streaming", mosaicml_prepare, mosaicml_loader),
}


def main(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    peer = PEERS[settings["peer"] if task == "prepare" else task]
    if peer.missing:
        raise SystemExit(peer.missing)
    if task != "prepare":
        return figures(peer, settings)
    peer.prepare(resolve(settle(settings), lanes=1), Path(settings["folder"]))
    return {}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
