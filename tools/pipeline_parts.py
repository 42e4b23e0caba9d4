"""What bench_pipeline.py runs in processes of their own: each task is told its settings and prints its figures as JSON.

    python tools/pipeline_parts.py TASK SETTINGS

All CPU times are seconds a 1,000 samples.
"""

import gc
import io
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

BEGUN = time.perf_counter()


class Meter:
    """CPU time by part: `with meter("decode"): …`."""

    def __init__(self, samples: int) -> None:
        self.parts: dict[str, float] = {}
        self._samples, self._name, self._begun = samples, "", 0.0

    def __call__(self, name: str) -> "Meter":
        self._name = name
        return self

    def __enter__(self) -> None:
        self._begun = time.process_time()

    def __exit__(self, *_: object) -> None:
        spent = (time.process_time() - self._begun) * 1000 / self._samples
        self.parts[self._name] = self.parts.get(self._name, 0.0) + spent


def settle(settings: dict[str, Any]) -> Any:
    """The config, on as many cores as asked for."""
    if cores := settings.get("cores"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import wdspack

    source = wdspack.Source(urls=tuple(settings["urls"]), name="bench", storage_options=settings.get("storage", {}))
    layout = wdspack.TileLayout(tile=512, max_side=1024, tokens_per_tile=64, upscale=False)
    return wdspack.DataConfig(
        sources=source, tokenizer=settings["tokenizer"], layout=layout, seq_len=4096, max_images=18, max_drop_share=0.2,
        buffer_size=settings.get("buffer", 256), epochs=settings.get("epochs", 1),
    )  # fmt: skip


def floor(settings: dict[str, Any]) -> dict[str, float]:
    """What cannot be left out, by the plain libraries, one thread: no packing, no labels, no batches.

    read: webdataset's samples by `wdspack.tar`. tokenize: `tokenizers`, the conversation written out as ChatML.
    decode: Pillow, all pixels, as RGB in NumPy. resize: torch's antialiased bicubic of each view, at its fastest (the
    channels last), and the copy into tiles, channel by channel.
    """
    config = settle(settings)
    import numpy as np
    import torch
    from PIL import Image

    from wdspack import images, records
    from wdspack.run import resolve

    torch.set_num_threads(1)
    run = resolve(config, lanes=1)
    backend, raws = run.tokenizer.backend_tokenizer, list(islice(_samples(run), settings["samples"]))
    meter, tiles = Meter(len(raws)), torch.empty((64, *config.layout.pixel_shape), dtype=torch.uint8)
    with meter("read"):
        for _ in islice(_samples(run), len(raws)):
            pass
    conversations = [found for raw in raws if (found := _or_none(records.conversation_from, raw))]
    for conversation in conversations:
        parts = (
            (m.role, "".join(p if isinstance(p, str) else "<image>" for p in m.parts)) for m in conversation.messages
        )
        with meter("tokenize"):
            text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in parts)
            backend.encode(text, add_special_tokens=False)
        for data in conversation.images:
            if (info := _or_none(images.probe, data)) is None:
                continue
            grid = config.layout.measure(info.width, info.height)
            with meter("decode"):
                try:
                    pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
                except (OSError, SyntaxError):
                    continue
            with meter("resize"):
                image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
                for rows, cols, cell, *_ in config.layout.views(grid):
                    size = rows * cell, cols * cell
                    fitted = torch.nn.functional.interpolate(image, size=size, mode="bicubic", antialias=True)[0]
                    cells = fitted.view(3, rows, cell, cols, cell).permute(1, 3, 0, 2, 4)
                    for channel in range(3):
                        tiles[: rows * cols].view(rows, cols, 3, cell, cell)[:, :, channel].copy_(cells[:, :, channel])
    return meter.parts


def stages(settings: dict[str, Any]) -> dict[str, float]:
    """The product's own stages one after the other, one thread: where its CPU seconds go."""
    config = settle(settings)
    import torch

    from wdspack import images, records
    from wdspack.assemble import assemble
    from wdspack.batch import collate
    from wdspack.errors import SampleError
    from wdspack.lane import Lane
    from wdspack.run import resolve

    torch.set_num_threads(1)
    run, layout = resolve(config, lanes=1), config.layout
    raws = list(_samples(run))
    meter = Meter(len(raws))
    with meter("read"):
        for _ in _samples(run):
            pass
    with meter("parse"):
        found = [_or_none(records.conversation_from, raw) for raw in raws]
    for conversation in filter(None, found):
        with meter("probe headers"):
            infos = [_or_none(images.probe, data) for data in conversation.images]
        if None in infos:
            continue
        grids = [layout.measure(info.width, info.height) for info in infos]
        with meter("tokenize, mask"):
            run.encoder.encode(conversation, grids)
    measurer, measured = run.measurer, Meter(len(raws))

    def measure(*given: Any) -> Any:
        with measured("measure"):
            return measurer(*given)

    run.__dict__["measurer"] = measure
    gc.collect()
    gc.freeze()  # as workers do
    with meter("lane"):
        packs = list(Lane(run, 0))
    meter.parts["pack, bookmark"] = meter.parts.pop("lane") - measured.parts["measure"] - meter.parts["read"]
    tile = torch.empty((256, *layout.pixel_shape), dtype=torch.uint8)
    for packed in packs:
        with meter("hand over, twice"):
            pickle.loads(pickle.dumps(packed, protocol=pickle.HIGHEST_PROTOCOL))
            for sample in packed.samples:
                pickle.loads(pickle.dumps(sample.images, protocol=pickle.HIGHEST_PROTOCOL))
        for image in (image for sample in packed.samples for image in sample.images):
            rows = tile[: layout.pixel_rows(image.grid)]
            try:
                with meter("decode"):
                    pixels = images.decode(image.data, image.info)
            except SampleError:
                continue
            with meter("resize"):
                views = [images.fit(pixels, view) for view in layout.views(image.grid)]
            with meter("cut into tiles"):
                start = 0
                for view, fitted in zip(layout.views(image.grid), views, strict=True):
                    images.cut(fitted, view, rows[start : start + view.rows * view.cols].numpy())
                    start += view.rows * view.cols
        with meter("assemble, collate"):
            pack = assemble(run, packed.samples, packed.bookmark)
            collate([pack], layout, tile[:0])
    normal, count = torch.empty((2, *layout.pixel_shape)), sum(s.size.tiles for packed in packs for s in packed.samples)
    with meter("(normalise, if asked for)"):
        for _ in range(count // 2):
            images.normalize(tile[:2], layout.mean, layout.std, out=normal)
    return meter.parts


def product(settings: dict[str, Any]) -> dict[str, Any]:
    """The loader from end to end. pause: seconds that the consumer sleeps for each batch."""
    before = time.perf_counter()
    import wdspack

    imported, config, pause = time.perf_counter() - before, settle(settings), settings.get("pause", 0.0)
    loader = wdspack.make_loader(
        config, batch_size=2, num_workers=settings.get("workers"), decoders=settings.get("decoders"),
        normalize=settings.get("normalize", False), prefetch=settings["prefetch"],
    )  # fmt: skip
    begun, used = time.perf_counter(), os.times()
    first, late, memory, passes = 0.0, None, list[float](), 0
    for number, _batch in enumerate(islice(loader, settings.get("batches")), 1):
        first = first or time.perf_counter() - begun
        if number == 20:
            late = loader.timing
        if pause:
            time.sleep(pause)
        elif number % 50 == 0 and settings.get("epochs") and loader.ledger.total.packed // settings["samples"] > passes:
            passes += 1
            memory.append(_resident())
    seconds, timing = time.perf_counter() - begun, loader.timing
    waited = (timing - late).waited if late else 0.0
    ledger = loader.ledger
    loader.close()
    now = os.times()
    cpu = sum(now[:4]) - sum(used[:4])
    total = ledger.total
    samples = total.packed + total.dropped.total()
    return {
        "samples": samples, "seconds": seconds, "rate": samples / seconds, "tokens": ledger.tokens / seconds,
        "fill": ledger.fill(4096), "cpu": cpu / samples * 1000, "first": first, "import": imported,
        "waited": waited, "batch": seconds / number, "memory": memory, "timing": str(timing),
        "sizes": [ledger.tokens, ledger.images],
    }  # fmt: skip


def beside(settings: dict[str, Any]) -> dict[str, float]:
    """How much a pure-Python loop is slowed by one decoder at work, each with a core of its own."""
    config = settle(settings)
    from wdspack.decode import Decoding
    from wdspack.decoders import Renderer
    from wdspack.lane import Lane
    from wdspack.processes import Processes
    from wdspack.run import resolve

    run = resolve(config, lanes=1)
    groups = [packed.samples for packed in islice(Lane(run, 0), 8)]
    ours, theirs = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {theirs})
    decoders = Processes(1, Renderer(config.layout, normalize=False))
    os.sched_setaffinity(0, {ours})

    def loop() -> float:
        begun, total = time.perf_counter(), 0
        for number in range(3_000_000):
            total += number & 7
        return time.perf_counter() - begun

    ratios = []
    for _ in range(30):
        alone = loop()
        decoding = Decoding(run, groups, decoders)
        ratios.append(loop() / alone)
        decoding.result()
    decoders.stop()
    decoders.close()
    return {"slowed": statistics.median(ratios) - 1}


def _samples(run: Any) -> Iterable[Any]:
    from wdspack.storage import open_shard
    from wdspack.tar import TarReader

    for url in run.shards[0]:
        with open_shard(url) as stream:
            yield from TarReader(stream)


def _or_none(call: Callable[..., Any], argument: Any) -> Any:
    from wdspack.errors import SampleError

    try:
        return call(argument)
    except SampleError:
        return None


def _resident() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "floor": floor, "stages": stages, "product": product, "beside": beside,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](json.loads(sys.argv[2]))))
