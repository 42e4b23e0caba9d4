"""Small datasets in every public form, written by that form's own library, and what they say.

Each function fills a folder and returns (reader, conversations): what its rows must become, in order.
"""

import csv
import importlib.util
import io
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import webdataset as wds
from corpora import picture
from PIL import Image

from wdspack.convert.readers import (
    ChatReader,
    CocoReader,
    FolderReader,
    HubReader,
    MdsReader,
    ParquetReader,
    ShardsReader,
    TableReader,
)
from wdspack.convert.rows import Reader
from wdspack.types import Conversation, Message

Built = tuple[Reader, list[Conversation]]
KINDS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm")
TEXTS = ("Why?", 'a "quoted", text', "line\nbreak\ttab", "naïve ☃ 日本語", "<image> is a tag", "<|im_end|>", " spaces ")


def pictures(n: int, seed: object = 0) -> list[bytes]:
    rng = random.Random(str(seed))
    return [picture(rng, KINDS[number % len(KINDS)]) for number in range(n)]


def says(*parts: str | int) -> str:
    return "".join("<image>" if isinstance(part, int) else part for part in parts)


def dialogue(*turns: tuple[str | int, ...], images: Sequence[bytes] = ()) -> Conversation:
    return Conversation(
        tuple(Message(("user", "assistant")[at % 2], parts) for at, parts in enumerate(turns)), tuple(images)
    )


def captioned(images: Sequence[bytes], prompt: str = "") -> list[Conversation]:
    question = (0, prompt) if prompt else (0,)
    return [dialogue(question, (f"{at} {TEXTS[at % len(TEXTS)]}",), images=[image]) for at, image in enumerate(images)]


def caption_of(said: Conversation) -> str:
    return str(said.messages[-1].parts[0])


def cauldron(folder: Path) -> Built:
    """Embedded images and `texts`, written by `datasets`."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(_exchanges(said := _exchanged()), features=_features(datasets))
    data.to_parquet(str(folder / "train.parquet"), batch_size=3)
    return ParquetReader(urls=str(folder)), said


def saved(folder: Path) -> Built:
    """The same, saved to disk as `datasets` does."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(_exchanges(said := _exchanged()), features=_features(datasets))
    data.save_to_disk(str(folder / "saved"))
    return HubReader(name=str(folder / "saved")), said


def named(folder: Path) -> Built:
    """The same, by a name for `load_dataset`."""
    datasets = pytest.importorskip("datasets")
    cauldron(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
        reader = HubReader(name=str(folder))
        reader.parts()  # from here on the dataset is held
    return reader, _exchanged()


def imagefolder(folder: Path) -> Built:
    """A folder of images that `datasets` lists itself: its rows hold absolute paths."""
    datasets = pytest.importorskip("datasets")
    (folder / "set").mkdir()
    said = captioned(pictures(5))
    for at, one in enumerate(said):
        (folder / f"set/{at}.png").write_bytes(one.images[0])
    lines = [json.dumps({"file_name": f"{at}.png", "text": caption_of(one)}) for at, one in enumerate(said)]
    (folder / "set/metadata.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
        reader = HubReader(name=str(folder / "set"))
        reader.parts()
    return reader, said


def referenced(folder: Path) -> Built:
    """Parquet of pyarrow with paths of images, one a row, and captions."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = pictures(11)
    (folder / "img").mkdir()
    for at, data in enumerate(images):
        (folder / f"img/{at}.bin").write_bytes(data)
    said = captioned(images, "What is it?")
    table = pa.table({"image": [f"img/{at}.bin" for at in range(11)], "text": [caption_of(one) for one in said]})
    pq.write_table(table, folder / "a.parquet", row_group_size=4)
    return ParquetReader(urls=str(folder / "*.parquet"), caption_prompt="What is it?"), said


def llava(folder: Path) -> Built:
    """A JSON array, images in a folder of their own, markers anywhere."""
    images = pictures(9)
    (folder / "pics/train").mkdir(parents=True)
    rows, said = [], []
    for at, data in enumerate(images):
        (folder / f"pics/train/{at}.jpg").write_bytes(data)  # mostly mislabelled
        question = ((0, "\nWhat?"), ("Look: ", 0), ("a ", 0, " b"))[at % 3]
        said.append(dialogue(question, ("It.",), ("More?",), (f"{at} more",), images=[data]))
        turns = [("human", says(*question)), ("gpt", "It."), ("human", "More?"), ("gpt", f"{at} more")]
        rows.append({
            "id": f"train/{at}", "image": f"train/{at}.jpg",
            "conversations": [{"from": who, "value": what} for who, what in turns],
        })  # fmt: skip
    said.append(dialogue(("Only text?",), ("Yes.",)))
    rows.append(
        {"id": 9, "conversations": [{"from": "human", "value": "Only text?"}, {"from": "gpt", "value": "Yes."}]}
    )
    (folder / "llava.json").write_text(json.dumps(rows, indent=1))
    return ChatReader(urls=str(folder / "llava.json"), images=str(folder / "pics")), said


def messages(folder: Path) -> Built:
    """Chat format a line, two images a row; every other row names them in its entries."""
    images = pictures(12)
    said, lines = [], []
    for at in range(0, 12, 2):
        for number in (at, at + 1):
            (folder / f"{number}.png").write_bytes(images[number])
        said.append(dialogue(("x ", 0, TEXTS[at // 2], 1), (f"{at} so",), images=images[at : at + 2]))
        names = [f"{at}.png", f"{at + 1}.png"]
        entries: list[dict[str, Any]] = [{"type": "image"}, {"type": "image"}]
        record: dict[str, Any] = {"id": at, "images": names}
        if at % 4:
            entries = [{"type": "image", "path": names[0]}, {"type": "image_url", "image_url": {"url": names[1]}}]
            record = {"id": at}
        content = [_text("x "), entries[0], _text(TEXTS[at // 2]), entries[1]]
        answer: Any = f"{at} so" if at % 3 else [_text(f"{at} so")]
        record["messages"] = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps(record, ensure_ascii=False))
    (folder / "rows.jsonl").write_text("\n\n".join(lines), encoding="utf-8-sig")
    return ChatReader(urls=str(folder / "rows.jsonl")), said


def coco_captions(folder: Path) -> Built:
    images = pictures(5)
    document: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
    said = []
    for at, data in enumerate(images):
        (folder / f"{at:012d}.jpg").write_bytes(data)
        captions = [f"caption {number} of {at}" for number in range(1 + at % 3)]
        document["images"].append({"id": 100 - at, "file_name": f"{at:012d}.jpg", "width": 9, "height": 9})
        document["annotations"] += [{"id": 0, "image_id": 100 - at, "caption": text} for text in captions]
        turns: list[tuple[str | int, ...]] = []
        for number, text in enumerate(captions):
            turns += [("Describe it in other words.",) if number else (0, "Describe the image."), (text,)]
        said.append(dialogue(*turns, images=[data]))
    document["annotations"] = [
        {**note, "id": at} for at, note in enumerate(sorted(document["annotations"], key=lambda note: note["image_id"]))
    ]
    (folder / "captions.json").write_text(json.dumps(document))
    return CocoReader(url=str(folder / "captions.json"), images=str(folder)), said


def coco_instances(folder: Path) -> Built:
    """Boxes worked out by hand: pixels of an image of 200 × 100 → thousandths."""
    images = pictures(2)
    for at, data in enumerate(images):
        (folder / f"{at}.jpg").write_bytes(data)
    document = {
        "images": [{"id": at, "file_name": f"{at}.jpg", "width": 200, "height": 100} for at in range(2)],
        "categories": [{"id": 7, "name": "dog"}, {"id": 9, "name": "person"}],
        "annotations": [
            {"id": 1, "image_id": 0, "category_id": 7, "bbox": [20.0, 10.0, 50.5, 30.0], "iscrowd": 0},
            {"id": 2, "image_id": 0, "category_id": 9, "bbox": [0, 0, 200, 100], "iscrowd": 1},
        ],
    }
    (folder / "instances.json").write_text(json.dumps(document))
    question = (0, "List the objects in the image with their bounding boxes.")
    answers = ("dog [100, 100, 352, 400]\ncrowd of person [0, 0, 1000, 1000]", "There are none.")
    said = [dialogue(question, (answer,), images=[image]) for answer, image in zip(answers, images, strict=True)]
    return CocoReader(url=str(folder / "instances.json"), images=str(folder)), said


def beside(folder: Path) -> Built:
    """Images with .txt or .json beside them, at two depths; rows come sorted by path."""
    images = pictures(4)
    (folder / "data/b").mkdir(parents=True)
    said = captioned(images, "Say.")
    for at, (data, one) in enumerate(zip(images, said, strict=True)):
        stem = folder / "data" / ("b" if at >= 2 else ".") / f"v1.{at}"
        stem.with_name(stem.name + ".JPG").write_bytes(data)
        if at % 2:
            text = {
                "messages": [
                    {"role": "user", "content": "<image>Say."},
                    {"role": "assistant", "content": caption_of(one)},
                ]
            }
            stem.with_name(stem.name + ".json").write_text(json.dumps(text))
        else:
            stem.with_name(stem.name + ".txt").write_text(caption_of(one) + "\n", encoding="utf-8")
    return FolderReader(folder=str(folder / "data"), caption_prompt="Say."), [said[2], said[3], said[0], said[1]]


def table(folder: Path, ending: str = "csv") -> Built:
    """Quoted commas, quotes and line breaks, as pandas writes them."""
    images = pictures(len(TEXTS))
    said = captioned(images)
    for at, data in enumerate(images):
        (folder / f"{at}.jpg").write_bytes(data)
    rows = [{"n": at, "caption": caption_of(one), "path": f"{at}.jpg"} for at, one in enumerate(said)]
    if importlib.util.find_spec("pandas"):
        import pandas as pd

        pd.DataFrame(rows).to_csv(folder / f"t.{ending}", sep="," if ending == "csv" else "\t", index=False)
    else:
        with (folder / f"t.{ending}").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="," if ending == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    return TableReader(urls=str(folder / f"t.{ending}")), said


def tsv(folder: Path) -> Built:
    return table(folder, "tsv")


def img2dataset(folder: Path) -> Built:
    """Shards as img2dataset writes them: jpg, txt, and a json of metadata with the caption once more."""
    said = captioned(pictures(6))
    with wds.ShardWriter(f"{folder}/%05d.tar", maxcount=4, verbose=0) as writer:
        for at, one in enumerate(said):
            caption = caption_of(one)
            metadata = {
                "caption": caption,
                "url": f"http://x/{at}",
                "key": f"{at:09d}",
                "status": "success",
                "exif": "{}",
            }
            sample = {"jpg": one.images[0], "txt": caption, "json": json.dumps(metadata).encode()}
            writer.write({"__key__": f"{at:09d}", **sample})
    return ShardsReader(urls=f"{folder}/{{00000..00001}}.tar", canonical=True), said


def mds_by_hand(folder: Path) -> Built:
    """What the format's description says, packed here: it works where the library is not installed."""
    images = pictures(5)
    said = captioned(images)
    for shard, rows in enumerate((range(3), range(3, 5))):
        samples = []
        for at in rows:
            text = caption_of(said[at]).encode()
            samples.append(_uint32(len(images[at]), len(text)) + at.to_bytes(8, "little") + images[at] + text)
        starts = [4 * (len(samples) + 2)]
        for sample in samples:
            starts.append(starts[-1] + len(sample))
        data = _uint32(len(samples), *starts) + b"".join(samples)
        (folder / f"shard.{shard:05d}.mds").write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [_mds_shard(folder, n) for n in range(2)]}))
    return MdsReader(folder=str(folder)), said


def mds(folder: Path, compression: str | None = None) -> Built:
    """MDSWriter's own, several images a row and one as raw pixels."""
    said = []
    columns = {"images": "list[png]", "raw": "pil", "conversations": "json", "id": "str", "score": "float32"}
    with (
        streaming() as library,
        library.MDSWriter(out=str(folder), columns=columns, size_limit=4000, compression=compression) as writer,
    ):
        for at in range(5):
            shown = [Image.open(io.BytesIO(picture(random.Random(at + number)))) for number in range(3)]
            said.append((at, [_png(image) for image in shown]))
            talk = [{"from": "human", "value": f"<image><image><image>{at}?"}, {"from": "gpt", "value": f"It is {at}."}]
            writer.write({"images": shown[:2], "raw": shown[2], "conversations": talk, "id": f"m{at}", "score": 0.5})
    return MdsReader(folder=str(folder)), [
        dialogue((0, 1, 2, f"{at}?"), (f"It is {at}.",), images=images) for at, images in said
    ]


def mds_compressed(folder: Path) -> Built:
    return mds(folder, "zstd:3")


FORMS: Mapping[str, Callable[[Path], Built]] = {
    form.__name__: form
    for form in (
        cauldron, saved, named, imagefolder, referenced, llava, messages, coco_captions, coco_instances, beside,
        table, tsv, img2dataset, mds_by_hand, mds, mds_compressed,
    )
}  # fmt: skip


@contextmanager
def streaming() -> Iterator[ModuleType]:
    """The library that writes MDS, without its vision datasets: they want a torchvision that fits torch.

    It is installed without its dependencies, which pin transformers below 5 and bring several clouds' clients.
    """
    if importlib.util.find_spec("streaming") is None:
        needs = "mosaicml-streaming brotli catalogue cramjam python-snappy zstd"
        pytest.skip(f"pip install --no-deps {needs}")
    absent = _Absent("streaming.vision")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "streaming.vision", absent)
        import streaming as library

        yield library


class _Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def _exchanged() -> list[Conversation]:
    images = pictures(10)
    return [
        dialogue((*range(at % 3), f"{at}?"), ("Yes.",), (TEXTS[at % 7],), (f"{at}!",), images=images[at : at + at % 3])
        for at in range(8)
    ]


def _exchanges(said: Sequence[Conversation]) -> list[dict[str, Any]]:
    return [
        {
            "images": [{"bytes": image, "path": None} for image in one.images],
            "texts": [
                {
                    "user": str(one.messages[at].parts[-1]),
                    "assistant": str(one.messages[at + 1].parts[0]),
                    "source": "s",
                }
                for at in (0, 2)
            ],
        }
        for one in said
    ]


def _features(datasets: Any) -> Any:
    text = {name: datasets.Value("string") for name in ("user", "assistant", "source")}
    return datasets.Features({"images": datasets.Sequence(datasets.Image()), "texts": [text]})


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def _uint32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def _mds_shard(folder: Path, number: int) -> dict[str, Any]:
    name = f"shard.{number:05d}.mds"
    raw = {"basename": name, "bytes": (folder / name).stat().st_size, "hashes": {}}
    return {
        "column_encodings": ["int", "bytes", "str"], "column_names": ["id", "image", "caption"],
        "column_sizes": [8, None, None], "compression": None, "format": "mds", "hashes": [], "raw_data": raw,
        "samples": (3, 2)[number], "size_limit": 1 << 26, "version": 2, "zip_data": None,
    }  # fmt: skip


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "png")
    return out.getvalue()
