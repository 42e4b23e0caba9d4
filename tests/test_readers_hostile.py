"""What strangers put into datasets costs a reject or is an error that says what to do; nothing outside is read."""

import base64
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import broken_picture
from datasets_of import FORMS, pictures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from test_readers import document, records_of, rejects_of, rows_of, samples_in

from wdspack.convert import write_shards
from wdspack.convert.imageroot import ImageRoot
from wdspack.convert.readers import (
    ChatReader,
    CocoReader,
    FolderReader,
    MdsReader,
    ParquetReader,
    ShardsReader,
    TableReader,
    stretches,
)
from wdspack.convert.rows import Reader, Record, Reject
from wdspack.errors import ConfigError, SampleError, ShardError
from wdspack.images import decode, probe
from wdspack.records import conversation_from

[SOUND] = pictures(1)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png_of(width: int, height: int) -> bytes:
    """A sound PNG up to its pixels, of which it has none."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", b""), (b"IEND", b""))
    coded = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(coded)


def jpeg_of(width: int, height: int) -> bytes:
    """A sound JPEG whose frame header says another size."""
    data = bytearray(encoded(Image.new("RGB", (16, 16)), "jpeg"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def chat_of(folder: Path, *images: bytes, name: str = "x.jpg", **options: Any) -> ChatReader:
    """A row for each image, which is written under one name with a number."""
    lines = []
    for at, data in enumerate(images):
        (folder / f"{at}{name}").write_bytes(data)
        lines.append(json.dumps({"id": f"r{at}", "image": f"{at}{name}", "caption": "words"}))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return ChatReader(urls=str(folder / "rows.jsonl"), **options)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "broken_image"),
        (b"<html>404</html>", "broken_image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "broken_image"),
        (SOUND[:20], "broken_image"),
        (b"\xff\xd8\xff", "broken_image"),
        (b"\xff\xd8\xff\xe0\xff\xff", "broken_image"),
        (jpeg_of(0, 10), "broken_image"),
        (png_of(100_000, 100_000), "image_too_large"),
        (jpeg_of(65_000, 65_000), "image_too_large"),
        (encoded(Image.new("L", (30_000, 3_000)), "png"), "image_too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:6]),
)
def test_images_that_training_would_drop_are_rejected(image: bytes, reason: str, tmp_path: Path) -> None:
    assert rejects_of(chat_of(tmp_path, image, SOUND)) == [("r0", reason)]


def test_cut_images_are_found_by_decoding_them(tmp_path: Path) -> None:
    import random

    cut = [broken_picture(random.Random(0)), encoded(Image.effect_noise((64, 64), 90), "jpeg")[:-900]]
    assert rejects_of(chat_of(tmp_path, *cut, SOUND)) == []
    assert rejects_of(chat_of(tmp_path, *cut, SOUND, check_images="decode")) == [
        ("r0", "broken_image"), ("r1", "broken_image"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"'header'.*or 'decode'"):
        chat_of(tmp_path, check_images="look")


def test_unusual_images_are_carried_as_they_are_and_can_be_decoded(tmp_path: Path) -> None:
    frames = [Image.new("P", (9, 7), at) for at in range(3)]
    deep = Image.fromarray(__import__("numpy").arange(63, dtype="uint16").reshape(7, 9) * 900)
    unusual = {
        "gif": encoded(frames[0], "gif", save_all=True, append_images=frames[1:]),
        "webp": encoded(
            Image.new("RGBA", (9, 7)), "webp", save_all=True, append_images=[Image.new("RGBA", (9, 7), "red")]
        ),
        "jpg": encoded(Image.new("CMYK", (9, 7), (10, 20, 30, 40)), "jpeg"),
        "png": encoded(deep, "png"),
        "tif": encoded(deep, "tiff"),
    }
    records = records_of(chat_of(tmp_path, *unusual.values(), name=".jpeg"))  # all but one mislabelled
    for (extension, data), record in zip(unusual.items(), records, strict=True):
        assert dict(record.files)[extension] == data
        assert decode(data, probe(data)).shape == (7, 9, 4)


@pytest.mark.parametrize(
    "path",
    [
        "../secret.jpg", "a/../../secret.jpg", "./../secret.jpg", "{tmp}/secret.jpg", "/etc/passwd", "//etc/passwd",
        "..\\secret.jpg", "a\\..\\..\\secret.jpg", "C:\\secret.jpg", "%2e%2e/secret.jpg", "%2E%2E%2fsecret.jpg",
        "%252e%252e/secret.jpg", "..%5csecret.jpg", "file://{tmp}/secret.jpg", "http://127.0.0.1/secret.jpg",
        "memory://secret.jpg", "x.jpg::file://{tmp}/secret.jpg", "s3://bucket/x.jpg", "x\0.jpg", "link.jpg",
        "up/secret.jpg",
    ],
)  # fmt: skip
@pytest.mark.parametrize("remote", [False, True])
def test_nothing_outside_the_image_root_is_read(path: str, remote: bool, tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(SOUND)
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "up").symlink_to(tmp_path)
    rows = [{"id": "r", "image": path.format(tmp=tmp_path), "caption": "c"}]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    is_link = path in ("link.jpg", "up/secret.jpg")
    reader = ChatReader(urls=str(root / "rows.jsonl"), images="memory://root" if remote else None)
    assert rejects_of(reader) == [("r", "missing_image" if remote and is_link else "outside_root")]


def test_paths_within_the_root_that_look_odd(tmp_path: Path) -> None:
    root = ImageRoot(str(tmp_path))
    (tmp_path / "a").mkdir()
    for name in ("100%.jpg", "a..b.jpg", "%41.jpg", "a/é ☃.jpg", "12:30.jpg", "~x.jpg"):
        (tmp_path / name).write_bytes(name.encode())
        assert root.fetch(name) == root.fetch(f"./{name}") == root.fetch(str(tmp_path / name)) == name.encode()
    (tmp_path / "in.jpg").symlink_to(tmp_path / "100%.jpg")
    assert root.fetch("in.jpg") == b"100%.jpg"
    assert root.fetch("a\\é ☃.jpg") == "a/é ☃.jpg".encode()
    assert root.fetch("data:image/png;base64," + base64.b64encode(SOUND).decode()) == SOUND
    os.mkfifo(tmp_path / "pipe.jpg")
    for missing in ("none.jpg", "a", "pipe.jpg", "", ".", "x" * 5000):
        with pytest.raises(SampleError) as caught:
            root.fetch(missing)
        assert caught.value.reason == "missing_image"
    with pytest.raises(SampleError, match="malformed"):
        root.fetch("data:image/png;base64,a")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"{", "bad_json"),
        (b"null", "bad_json"),
        (b"[1]", "bad_json"),
        (b'{"a": NaN', "bad_json"),
        (b"[" * 100_000, "bad_json"),
        (b'{"caption": "\xff"}', "bad_text"),
        (b'{"caption": "\\ud800"}', "bad_text"),
        (b'{"caption": "c", "source": "\\ud800"}', "bad_text"),
        (b'{"image": "\\ud800.jpg", "caption": "c"}', "bad_text"),
        (b'{"id": "\\ud800", "image": "ok.jpg", "caption": "c"}', "bad_text"),
        (b'{"image": "no.jpg", "caption": "c"}', "missing_image"),
        (b'{"images": ["ok.jpg", null], "caption": "c"}', "missing_image"),
        (b'{"images": [3], "caption": "c"}', "missing_image"),
        (b'{"images": {"x": "ok.jpg"}, "caption": "c"}', "missing_image"),
        (b'{"image": "ok.jpg", "caption": null}', "no_text"),
        (b'{"image": "ok.jpg", "caption": " "}', "no_text"),
        (b'{"image": "ok.jpg", "caption": 7}', "bad_messages"),
        (b'{"image": "ok.jpg", "conversations": "x"}', "bad_messages"),
        (b'{"image": "ok.jpg", "conversations": {"from": "human"}}', "bad_messages"),
        (b'{"image": "ok.jpg", "conversations": [null]}', "bad_messages"),
        (b'{"image": "ok.jpg", "conversations": [{"from": "tool", "value": ""}]}', "bad_messages"),
        (b'{"image": "ok.jpg", "conversations": [{"from": "human", "value": "<image>"}]}', "no_answer"),
        (b'{"image": "ok.jpg", "conversations": [{"from": "gpt", "value": "none"}]}', "image_mismatch"),
        (b'{"image": "ok.jpg", "messages": []}', "no_answer"),
        (b'{"messages": [{"role": "assistant", "content": null}]}', "bad_messages"),
        (b'{"messages": [{"role": "assistant", "content": [{"type": "video"}]}]}', "bad_messages"),
        (b'{"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}', "missing_image"),
    ],
    ids=repr,
)
def test_rows_that_cannot_be_used(row: bytes, reason: str, tmp_path: Path) -> None:
    """Each is rejected with its reason, and the rows around it are not touched."""
    (tmp_path / "ok.jpg").write_bytes(SOUND)
    sound = b'{"id": 1, "image": "ok.jpg", "caption": "c"}'
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join((sound, row, sound)))
    rows = rows_of(ChatReader(urls=str(tmp_path / "rows.jsonl")))
    assert [row.reason if isinstance(row, Reject) else row.id for row in rows] == ["1", reason, "1"]
    rejected = rows[1]
    assert isinstance(rejected, Reject)
    assert len(rejected.message) < 600


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["a.jpg", "<image>", ".."]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "image",
                    "images",
                    "messages",
                    "conversations",
                    "texts",
                    "caption",
                    "role",
                    "content",
                    "from",
                    "value",
                    "type",
                    "text",
                    "path",
                    "bytes",
                    "url",
                    "user",
                    "assistant",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(rows=st.lists(JSON, min_size=1, max_size=5))
def test_any_json_is_a_record_that_can_be_read_or_a_reject(rows: list[Any], tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(SOUND)
    rows = [{}, *rows]  # a first row that is a list would make the lines look like an array
    for text, name in (("\n".join(map(json.dumps, rows)), "a.jsonl"), (json.dumps(rows), "a.json")):
        (tmp_path / name).write_text(text)
        found = rows_of(ChatReader(urls=str(tmp_path / name)))
        assert len(found) == len(rows)
        records = [row for row in found if isinstance(row, Record)]
        for sample in samples_in(write_shards(((str(at), r.files) for at, r in enumerate(records)), tmp_path / "out")):
            conversation_from(sample)
            json.loads(sample.files["json"], parse_constant=pytest.fail)


# -- whole files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b"\n\n", "holds no rows"),
        (b"[]", "holds no rows"),
        (b'[{"caption": "c"}', "ends without its bracket"),
        (b'[{"caption": "c"}, {"cap', "not a JSON array.*after byte 19"),
        (b'[{"caption": "c"}, oops]', "not a JSON array.*after byte 19"),
        (b"[" * 100_000, "not a JSON array"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_files_that_are_not_of_the_form(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        ChatReader(urls=str(tmp_path / "a.json")).parts()


@pytest.mark.parametrize(
    "reader",
    [
        lambda folder: ChatReader(urls=folder + "/a.jsonl"), lambda folder: ChatReader(urls=folder + "/*.jsonl"),
        lambda folder: TableReader(urls=folder + "/a.csv"), lambda folder: ParquetReader(urls=folder + "/a.parquet"),
        lambda folder: CocoReader(url=folder + "/a.json"), lambda folder: FolderReader(folder=folder + "/a"),
        lambda folder: MdsReader(folder=folder + "/a"), lambda folder: ShardsReader(urls=folder + "/*.tar"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["", "memory://nowhere"])
def test_what_is_not_there(reader: Callable[[str], Reader], place: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give"):
        reader(place or str(tmp_path)).parts()


def test_parquet_of_other_columns(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "a.parquet")
    for columns, message in (
        ({"images": [[1]], "text": ["x"]}, "the column of images is images: list<.*: int64>.*must be binary"),
        ({"images": [[b"x"]], "label": [3]}, "none of messages, conversations, texts, caption, text"),
        ({"images": pa.array([], pa.list_(pa.binary())), "text": pa.array([], pa.string())}, "holds no rows"),
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(ConfigError, match=message):
            ParquetReader(urls=path).parts()
    with pytest.raises(ConfigError, match="no column 'img', but"):
        ParquetReader(urls=path, image_column="img").parts()

    one = {"image": [{"bytes": SOUND, "path": None}, None, {"bytes": None, "path": None}], "text": ["x"] * 3}
    for column in (one["image"], [SOUND, None, None]):
        pq.write_table(pa.table({**one, "image": column}), path)
        assert [reason for _, reason in rejects_of(ParquetReader(urls=path))] == ["missing_image"] * 2

    exchange = [{"user": "u", "assistant": "a"}]
    rows = {
        "images": [[SOUND], None, [None], [b""], [SOUND], [SOUND]],
        "texts": [exchange, exchange, exchange, exchange, None, [{"user": "u", "assistant": None}]],
    }
    pq.write_table(pa.table(rows), path)
    assert [row.reason if isinstance(row, Reject) else "" for row in rows_of(ParquetReader(urls=path))] == [
        "", "", "missing_image", "broken_image", "no_text", "bad_messages",
    ]  # fmt: skip

    pq.write_table(pa.table({"image": [1.5], "text": [3]}), path)
    with pytest.raises(ConfigError, match="must be binary"):
        ParquetReader(urls=path).parts()
    pq.write_table(pa.table({"text": [3]}), path)
    assert rejects_of(ParquetReader(urls=path)) == [(None, "bad_messages")]

    sound = Path(path).read_bytes()
    for damaged in (sound[:-30], b"", b"PAR1" * 5):
        Path(path).write_bytes(damaged)
        with pytest.raises(ConfigError, match="not a sound parquet file"):
            ParquetReader(urls=path).parts()


def test_rows_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "MAX_ROW", 5000)
    monkeypatch.setattr(stretches, "CHUNK", 1000)
    rows = [{"id": at, "caption": "c" * size} for at, size in enumerate((10, 4900, 6000, 10, 20_000))]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = rows_of(ChatReader(urls=str(tmp_path / "a.jsonl")))
    assert [row.reason if isinstance(row, Reject) else row.id for row in found] == [
        "0", "1", "too_large", "3", "too_large",
    ]  # fmt: skip


def test_a_table_with_a_large_field(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(SOUND)
    (tmp_path / "a.csv").write_text("path,caption\na.jpg," + "c" * 200_000 + "\na.jpg,d\n")
    assert len(records_of(TableReader(urls=str(tmp_path / "a.csv")))) == 2


def test_tables_with_rows_of_other_lengths(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(SOUND)
    lines = [
        b"path,caption",
        b"a.jpg,one",
        b"a.jpg",
        b"a.jpg,two,three",
        b"",
        b"a.jpg,\xff",
        b",none",
        b"a.jpg,",
        b"../a.jpg,x",
    ]
    (tmp_path / "a.csv").write_bytes(b"\r\n".join(lines))
    rows = rows_of(TableReader(urls=str(tmp_path / "a.csv")))
    assert [row.reason if isinstance(row, Reject) else "" for row in rows] == [
        "", "bad_row", "bad_row", "bad_text", "missing_image", "no_text", "outside_root",
    ]  # fmt: skip
    (tmp_path / "a.csv").write_bytes(b'path,caption\n"a.jpg,one\n' + b"a.jpg,two\n" * 20_000)
    with pytest.raises(ConfigError, match="at byte 13"):
        TableReader(urls=str(tmp_path / "a.csv")).parts()
    (tmp_path / "a.csv").write_bytes(b"path,caption\n")
    with pytest.raises(ConfigError, match="no rows"):
        TableReader(urls=str(tmp_path / "a.csv")).parts()


def test_coco_of_other_shapes(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "a.jpg", "width": 10, "height": 10}
    categories = [{"id": 1, "name": "dog"}]
    (tmp_path / "a.jpg").write_bytes(SOUND)

    def reader(document: Any) -> CocoReader:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(document))
        return CocoReader(url=str(path))

    for content, message in (
        ([], "not of the form"),
        ({"images": [image]}, "KeyError: 'annotations'"),
        ({"images": [image], "annotations": [{"image_id": 1}]}, "KeyError: 'categories'"),
        ({"images": [], "annotations": []}, "no rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            reader(content).parts()
    for note, reason in (
        ({"category_id": 1, "bbox": None}, "bad_annotation"),
        ({"category_id": 1, "bbox": [1, 2, 3]}, "bad_annotation"),
        ({"category_id": 1, "bbox": [1, 2, 3, float("nan")]}, "bad_annotation"),
        ({"category_id": 2, "bbox": [1, 2, 3, 4]}, "bad_annotation"),
    ):
        notes = [{"image_id": 1, **note}]
        assert rejects_of(reader({"images": [image], "categories": categories, "annotations": notes})) == [
            ("1", reason)
        ]
    assert rejects_of(reader({"images": [image], "annotations": []})) == [("1", "no_text")]
    strays = [{"image_id": 2, "caption": "c"}, {"caption": "c"}, {"image_id": 1, "caption": "c"}, {"image_id": 1}]
    rows = rows_of(reader({"images": [image], "annotations": strays[:3]}))
    assert [row.reason if isinstance(row, Reject) else "" for row in rows] == ["", "bad_annotation", "bad_annotation"]
    assert "image 2, which is not listed" in rows[1].message
    assert rejects_of(reader({"images": [image], "annotations": strays[2:]})) == [("1", "bad_annotation")]
    stray = {**image, "file_name": "../a.jpg"}
    captions = [{"image_id": 1, "caption": "c"}]
    assert rejects_of(reader({"images": [stray], "annotations": captions})) == [("1", "outside_root")]


def test_folders_with_other_files(tmp_path: Path) -> None:
    for name, data in {
        "a.jpg": SOUND, "a.txt": b"words", "b.jpg": SOUND, "c.txt": b"words", "d.jpg": SOUND, "d.png": SOUND,
        "d.txt": b"w",
        "e.jpg": SOUND, "e.txt": b"\xff", "f.jpg": SOUND, "f.json": b"{", "g.html": b"", "h.jpg": b"", "h.txt": b"w",
        "i.jpg": SOUND, "i.json": b'{"caption": "json"}', "i.txt": b"txt",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
    outside = tmp_path.parent / "secret.jpg"
    outside.write_bytes(SOUND)
    (tmp_path / "z.jpg").symlink_to(outside)
    (tmp_path / "z.txt").write_text("words")
    assert rejects_of(FolderReader(folder=str(tmp_path))) == [
        ("b", "no_text"), ("c", "no_image"), ("d", "several_images"), ("e", "bad_text"), ("f", "bad_json"),
        ("h", "broken_image"), ("z", "outside_root"),
    ]  # fmt: skip
    kept = [row for row in rows_of(FolderReader(folder=str(tmp_path))) if isinstance(row, Record)]
    assert [row.id for row in kept] == ["a", "i"]
    assert document(kept[1])["caption"] == "json"
    assert document(kept[1])["messages"][1]["content"][0]["text"] == "txt"


def test_damaged_shards_are_found_before_the_run(tmp_path: Path) -> None:
    [url] = write_shards([(str(at), {"txt": b"words", "jpg": SOUND}) for at in range(3)], tmp_path)
    Path(url).write_bytes(Path(url).read_bytes()[:3000])
    with pytest.raises(ShardError, match=r"cut|ends within"):
        ShardsReader(urls=url).parts()


def test_bad_samples_of_sound_shards(tmp_path: Path) -> None:
    samples = [
        ("a", {"txt": b"words", "jpg": b""}),
        ("b", {"json": b"{", "jpg": SOUND}),
        ("c", {"txt": b"w", "0.jpg": SOUND, "0.png": SOUND}),
        ("d", {"cls": b"3"}),
        ("e", {"txt": b"words", "jpg": SOUND}),
    ]
    write_shards(samples, tmp_path)
    assert rejects_of(ShardsReader(urls=str(tmp_path), canonical=True)) == [
        ("a", "broken_image"), ("b", "bad_json"), ("c", "image_mismatch"), ("d", "no_text"),
    ]  # fmt: skip
    assert rejects_of(ShardsReader(urls=str(tmp_path))) == [("a", "broken_image")]


def test_images_that_are_carried_are_checked(tmp_path: Path) -> None:
    cut = encoded(Image.effect_noise((64, 64), 90), "jpeg")[:-900]
    write_shards([("cut", {"0.jpg": SOUND, "1.jpg": cut}), ("large", {"png": png_of(300, 300)})], tmp_path)
    assert rejects_of(ShardsReader(urls=str(tmp_path))) == []
    assert rejects_of(ShardsReader(urls=str(tmp_path), check_images="decode", max_image_pixels=80_000)) == [
        ("cut", "broken_image"), ("large", "image_too_large"),
    ]  # fmt: skip


def test_mds_that_lies(tmp_path: Path) -> None:
    reader, _ = FORMS["mds_by_hand"](tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())

    def changed(**fields: Any) -> MdsReader:
        document = {"version": 2, "shards": [{**index["shards"][0], **fields}]}
        (tmp_path / "index.json").write_text(json.dumps(document))
        return MdsReader(folder=str(tmp_path))

    for fields, message in (
        ({"raw_data": {"basename": "../a.mds", "bytes": 1}}, "must be in the same folder"),
        ({"column_encodings": ["pkl", "bytes", "str"]}, "run any code"),
        ({"format": "csv"}, "MDSWriter"),
        ({"column_names": ["a"]}, "not MDS's index"),
        ({"samples": 0}, "no rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            changed(**fields).parts()
    with pytest.raises(ShardError, match="3 samples, but the index says 2"):
        rows_of(changed(samples=2))
    assert {reason for _, reason in rejects_of(changed(column_sizes=[800, None, None]))} == {"bad_row"}
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(ConfigError, match="not MDS's index"):
        reader.parts()
    shard = tmp_path / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ShardError, match="not the shard that its index describes"):
        rows_of(changed())
