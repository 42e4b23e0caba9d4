"""Every public form, written by its own library, converts, streams and packs: each image, text and turn comes back."""

import json
import pickle
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from datasets_of import FORMS, caption_of, captioned, pictures
from hypothesis import given
from hypothesis import strategies as st

import wdspack
from wdspack.convert import Options, convert, write_shards
from wdspack.convert.compose import canonical, encode_json
from wdspack.convert.readers import ChatReader, FolderReader, HubReader, ParquetReader, ShardsReader, TableReader
from wdspack.convert.readers.ratings import min_rating_of
from wdspack.convert.rows import Reader, Record, Reject, Row
from wdspack.errors import ConfigError
from wdspack.records import conversation_from, conversation_of
from wdspack.storage import open_shard
from wdspack.tar import TarReader
from wdspack.types import Conversation, Message, RawSample


def rows_of(reader: Reader) -> list[Row]:
    return list(chain.from_iterable(reader.read(part, 0, part.rows) for part in reader.parts()))


def records_of(reader: Reader) -> list[Record]:
    rows = rows_of(reader)
    assert [row for row in rows if isinstance(row, Reject)] == []
    return [row for row in rows if isinstance(row, Record)]


def rejects_of(reader: Reader) -> list[tuple[str | None, str]]:
    return [(row.id, row.reason) for row in rows_of(reader) if isinstance(row, Reject)]


def converted(reader: Reader, folder: Path) -> list[str]:
    """Shards of the reader's rows; none may be rejected."""
    convert(reader, str(folder), Options(per_shard=4), max_rejects=0)
    return sorted(map(str, folder.glob("*.tar")))


def samples_in(urls: Sequence[str]) -> list[RawSample]:
    samples = []
    for url in urls:
        with open_shard(url) as stream:
            samples += list(TarReader(stream))
    return samples


def document(record: Record) -> dict[str, Any]:
    return json.loads(record.files["json"])


@pytest.mark.parametrize("form", FORMS)
def test_what_goes_in_comes_back(form: str, tmp_path: Path, tokenizer_path: str) -> None:
    (tmp_path / "in").mkdir()
    reader, expected = FORMS[form](tmp_path / "in")
    urls = converted(reader, tmp_path / "out")
    samples = samples_in(urls)
    assert [conversation_from(sample) for sample in samples] == expected
    for sample in samples:  # every image is called what it is
        names = [name.rpartition(".")[2] for name in sample.files if name != "json"]
        assert [{"jpg": "JPEG", "tif": "TIFF", "ppm": "PPM"}.get(name, name.upper()) for name in names] == [
            _format(data) for name, data in sample.files.items() if name != "json"
        ]
    config = wdspack.DataConfig(
        sources=urls,
        tokenizer=tokenizer_path,
        layout=wdspack.FixedLayout(size=16, tokens=4),
        seq_len=512,
        epochs=1,
        lanes=1,
    )
    packed = [key for pack in wdspack.PackedDataset(config) for key in pack["keys"]]
    assert sorted(packed) == sorted((sample.url, sample.key) for sample in samples)


def _format(data: bytes) -> str:
    import io

    from PIL import Image

    return str(Image.open(io.BytesIO(data)).format)


@pytest.mark.parametrize("form", FORMS)
def test_parts_can_be_read_anywhere_and_in_any_process(form: str, tmp_path: Path) -> None:
    reader, expected = FORMS[form](tmp_path)
    parts = reader.parts()
    assert sum(part.rows for part in parts) == len(expected)
    again = pickle.loads(pickle.dumps(reader))
    assert again.parts() == parts
    assert json.loads(json.dumps(again.describe())) == reader.describe()
    for part in pickle.loads(pickle.dumps(parts)):
        rows = list(reader.read(part, 0, part.rows))
        assert len(rows) == part.rows
        for start in range(part.rows + 1):
            for stop in range(start, part.rows + 1):
                assert list(again.read(part, start, stop)) == rows[start:stop]


@given(
    st.lists(
        st.lists(st.one_of(st.just(b"\xff\xd8\xff"), st.sampled_from(["<image>", "x", "\n", "日", '"'])), max_size=5),
        min_size=1,
        max_size=5,
    )
)
def test_canonical_messages_are_read_as_the_same_conversation(turns: list[list[bytes | str]]) -> None:
    images: list[bytes] = []
    messages = []
    for at, turn in enumerate(turns):
        parts: list[str | int] = []
        for part in turn:
            if isinstance(part, bytes):
                parts.append(len(images))
                images.append(part)
            else:
                parts.append(part)
        messages.append(Message(("assistant", "user")[at % 2], tuple(parts)))
    said = Conversation(tuple(messages), tuple(images))
    read = json.loads(encode_json({"messages": canonical(said)}))
    assert conversation_of(read, said.images) == said


# -- the forms' own rules


def test_the_shared_corpus(shared: Path) -> None:
    records = records_of(ChatReader(urls=str(shared / "data/corpus/records.jsonl")))
    lines = [json.loads(line) for line in (shared / "data/corpus/records.jsonl").read_text().splitlines()]
    assert len(records) == len(lines) == 301
    for record, line in zip(records, lines, strict=True):
        assert record.id == line["id"]
        kept = document(record)
        assert kept["messages"] == line["messages"]
        assert kept["source"] == line["source"]
        images = [(shared / "data/corpus" / path).read_bytes() for path in line.get("images", ())]
        assert [data for name, data in record.files.items() if name != "json"] == images


def ratings_table(path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [{"user": f"{at}?", "assistant": f"{at}."} for at in range(3)]
    rows = {
        "images": [[{"bytes": image, "path": "x.png"}] for image in pictures(4)],
        "texts": [texts] * 4,
        "source": ["chartqa"] * 4,
        "relevance_ratings": [[5, 2, 4], [5, 5, 5], [1, 2, 2], None],
        "relevance_min": [2, 5, 1, None],
        "formatting_ratings": [[3, 5, None], [2, 2, 2], [5, 5, 5], [None, 1, 4]],
        "formatting_min": [3, 2, 5, 1],
        "digest": [b"\0\1"] * 4,
    }
    pq.write_table(pa.table(rows), path)


def questions(record: Record) -> list[str]:
    said = document(record)["messages"]
    return [entry["text"] for turn in said[::2] for entry in turn["content"] if entry["type"] == "text"]


def test_exchanges_rated_low_are_left_out(tmp_path: Path) -> None:
    ratings_table(tmp_path / "a.parquet")
    every = records_of(ParquetReader(urls=str(tmp_path)))
    assert [questions(record) for record in every] == [["0?", "1?", "2?"]] * 4
    assert document(every[0])["source"] == "chartqa"
    assert document(every[0])["relevance_ratings"] == [5, 2, 4]
    assert "digest" not in document(every[0])

    rows = rows_of(ParquetReader(urls=str(tmp_path), min_rating=3))
    assert [questions(row) if isinstance(row, Record) else row.reason for row in rows] == [
        ["0?", "2?"], "low_rating", "low_rating", ["0?", "2?"],
    ]  # fmt: skip
    first = document(rows[0])
    assert (first["relevance_ratings"], first["relevance_min"]) == ([5, 4], 4)
    assert (first["formatting_ratings"], first["formatting_min"], first["dropped_turns"]) == ([3, None], 3, 1)
    assert first["messages"][0]["content"][0] == {"type": "image"}

    rows = rows_of(ParquetReader(urls=str(tmp_path), min_rating={"relevance": 2}))
    assert [len(questions(row)) for row in rows if isinstance(row, Record)] == [3, 3, 2, 3]
    with pytest.raises(ConfigError, match=r"the aspects rated are relevance, formatting"):
        ParquetReader(urls=str(tmp_path), min_rating={"beauty": 2}).parts()


@pytest.mark.parametrize(
    ("texts", "ratings", "reason"),
    [
        ([{"user": "?", "assistant": "!"}], [1, 2], "bad_ratings"),
        ([{"user": "?", "assistant": "!"}], ["5"], "bad_ratings"),
        ("[]", [5], "bad_messages"),
        (None, [5], "no_text"),
    ],
)
def test_ratings_that_do_not_fit(texts: Any, ratings: list[Any], reason: str, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"texts": [texts], "relevance_ratings": [ratings]}), tmp_path / "a.parquet")
    assert rejects_of(ParquetReader(urls=str(tmp_path), min_rating=3)) == [(None, reason)]
    for stated, meant in ((["3"], 3), (["a=1", "b=2"], {"a": 1, "b": 2}), ([], None)):
        assert min_rating_of(stated) == meant
    with pytest.raises(ConfigError, match="aspect=number"):
        min_rating_of(["high"])


def test_coco_means_what_pycocotools_says(tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    reader, _ = FORMS["coco_captions"](tmp_path)
    truth = coco.COCO(str(tmp_path / "captions.json"))
    for record in records_of(reader):
        answers = [turn["content"][0]["text"] for turn in document(record)["messages"] if turn["role"] == "assistant"]
        assert answers == [note["caption"] for note in truth.loadAnns(truth.getAnnIds(int(str(record.id))))]


def test_what_turns_say_of_themselves_is_kept(tmp_path: Path) -> None:
    calls = [{"name": "look", "arguments": {"at": 1}}]
    rows = [
        {
            "messages": [
                {"role": "user", "content": "q", "weight": 0},
                {"role": "assistant", "content": "a", "tool_calls": calls},
            ]
        },
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "train": False, "x": None}]},
        {"texts": [{"user": "q", "assistant": "a", "source": "vqa"}], "weight": 2},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = [document(record) for record in records_of(ChatReader(urls=str(tmp_path / "rows.jsonl")))]
    for made in found:
        assert [(turn.pop("role"), turn.pop("content")[0]["text"]) for turn in made["messages"]] == [
            ("user", "q"), ("assistant", "a"),
        ]  # fmt: skip
    assert found == [
        {"messages": [{"weight": 0}, {"tool_calls": calls}]},
        {"messages": [{}, {"train": False}]},
        {"messages": [{}, {"source": "vqa"}], "weight": 2},
    ]


def test_paths_that_are_there_are_taken_literally(tmp_path: Path) -> None:
    row = json.dumps({"id": "x", "caption": "words"})
    for name in ("a[1].jsonl", "{b}.jsonl", "c*.jsonl"):
        (tmp_path / name).write_text(row)
        assert len(rows_of(ChatReader(urls=str(tmp_path / name)))) == 1
    folder = tmp_path / "some [2024] {x}"
    folder.mkdir()
    (folder / "a.jsonl").write_text(row)
    assert len(rows_of(ChatReader(urls=str(folder)))) == 1
    (folder / "a.jpg").write_bytes(pictures(1)[0])
    (folder / "a.txt").write_text("words")
    [record] = records_of(FolderReader(folder=str(folder)))
    assert record.id == "a"
    [shard] = write_shards([("k", {"txt": b"words"})], folder)
    assert len(rows_of(ShardsReader(urls=shard))) == 1
    assert len(rows_of(ChatReader(urls=f"{tmp_path}/a[[]1].json*"))) == 1, "still a glob"


def test_shards_are_carried_as_they_are(tmp_path: Path) -> None:
    files = {"jpg": pictures(1)[0], "cls": b"3", "json": b"not even {}"}
    urls = write_shards([(f"a/{at}", {**files, "txt": b"%d" % at}) for at in range(7)], tmp_path, per_shard=3)
    records = records_of(ShardsReader(urls=f"{tmp_path}/shard-{{000000..000002}}.tar"))
    assert [(record.id, dict(record.files)) for record in records] == [
        (f"a/{at}", {**files, "txt": b"%d" % at}) for at in range(7)
    ]
    assert [part.rows for part in ShardsReader(urls=urls).parts()] == [3, 3, 1]


def test_made_canonical_a_shard_keeps_its_other_files(tmp_path: Path) -> None:
    [image] = pictures(1)
    write_shards([("k", {"png": image, "txt": b"words", "cls": b"3"})], tmp_path)
    [record] = records_of(ShardsReader(urls=str(tmp_path), canonical=True))
    assert set(record.files) == {"json", "jpg", "cls"}


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_rows_larger_than_what_is_read_at_once(ending: str, tmp_path: Path) -> None:
    """2,500 rows of mixed sizes, one of 3 MB: parts of 1,024 rows, found by offset, whatever the rows hold."""
    rows = [{"id": at, "text": 'é[]{}"\\' * (1 + at % 50)} for at in range(2500)]
    rows[700]["text"] = "x]" * 1_500_000
    lines = [json.dumps(row, ensure_ascii=bool(row["id"] % 2)) for row in rows]
    text = "\n".join(lines) + "\n" if ending == "jsonl" else "[" + " , \n".join(lines) + "]\n"
    (tmp_path / f"a.{ending}").write_text(text, encoding="utf-8")
    reader = ChatReader(urls=str(tmp_path))
    parts = reader.parts()
    assert [part.rows for part in parts] == [1024, 1024, 452]
    for row, record in zip(rows, records_of(reader), strict=True):
        assert document(record)["messages"][1]["content"] == [{"type": "text", "text": row["text"]}]
    [late] = reader.read(parts[2], 451, 452)
    assert late.id == "2499"


def test_any_filesystem(tmp_path: Path) -> None:
    """Rows and images by URL: memory:// stands for an object store."""
    import fsspec

    memory = fsspec.filesystem("memory")
    images = pictures(40)
    for at, data in enumerate(images):
        memory.pipe(f"/readers/img/{at}.png", data)
    said = captioned(images)
    lines = [json.dumps({"image": f"img/{at}.png", "caption": caption_of(one)}) for at, one in enumerate(said)]
    memory.pipe("/readers/rows.jsonl", "\n".join(lines).encode())
    try:
        records = records_of(ChatReader(urls="memory://readers/*.jsonl"))
        assert [list(record.files.values())[1] for record in records] == images
        memory.pipe("/readers/img/a/b.txt", b"words")
        memory.pipe("/readers/img/a/b.jpg", images[0])
        rows = rows_of(FolderReader(folder="memory://readers/img/"))
        assert [row.id for row in rows if isinstance(row, Record)] == ["a/b"]
        assert [row.reason for row in rows if isinstance(row, Reject)] == ["no_text"] * 40
        if pq := pytest.importorskip("pyarrow.parquet"):
            ratings_table(tmp_path / "a.parquet")
            memory.pipe("/readers/p/a.parquet", (tmp_path / "a.parquet").read_bytes())
            assert (
                len(records_of(ParquetReader(urls="memory://readers/p")))
                == pq.read_metadata(tmp_path / "a.parquet").num_rows
            )
    finally:
        memory.rm("/readers", recursive=True)


def test_gzip_rows(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 1500))
    reader = ChatReader(urls=str(tmp_path))
    [part] = reader.parts()
    assert part.rows == len(records_of(reader)) == 1500


def test_tables_without_names_and_with_plain_quotes(tmp_path: Path) -> None:
    [image] = pictures(1)
    (tmp_path / "i.jpg").write_bytes(image)
    (tmp_path / "a.tsv").write_text('"5 inches" tall, he said\ti.jpg\n')
    with pytest.raises(ConfigError, match=r"not a table.*quote=''"):
        TableReader(urls=str(tmp_path / "a.tsv"), header=["caption", "path"]).parts()
    [record] = records_of(TableReader(urls=str(tmp_path / "a.tsv"), header=["caption", "path"], quote=""))
    assert document(record)["messages"][1]["content"][0]["text"] == '"5 inches" tall, he said'
    with pytest.raises(ConfigError, match="name the columns"):
        TableReader(urls=str(tmp_path / "a.tsv"), quote="").parts()


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'wdspack\[convert\]'"):
        HubReader(name="nobody/nothing").parts()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(ConfigError, match=r"pip install 'wdspack\[convert\]'"):
        ParquetReader(urls=str(tmp_path)).parts()
