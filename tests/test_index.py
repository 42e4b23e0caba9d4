"""An index says of shards what they are, to every byte; and what streaming would measure, without reading them."""

import io
import json
import logging
import os
import shutil
import tarfile
import zlib
from collections import Counter
from itertools import islice
from pathlib import Path

import fsspec
import pytest
import webdataset as wds
from corpora import Shards
from PIL import Image
from s3 import bucketed

pytest.importorskip("pyarrow", reason="pip install 'wdspack[convert]'")

import wdspack
from wdspack import ConfigError, FixedLayout, NativeLayout, ShardError, TileLayout
from wdspack.compare import measured, measured_sizes
from wdspack.convert import chat_records, write_shards
from wdspack.index import Index, build, index_shards, verify_shards
from wdspack.index import table as index_table
from wdspack.index.wording import NAMED
from wdspack.layouts import Layout
from wdspack.tokenizer import train_tokenizer

EVERY_WORDING = tuple(NAMED.values())
LAYOUTS: list[Layout] = [
    TileLayout(),
    TileLayout(tile=256, max_side=512, tokens_per_tile=16, upscale=False),
    TileLayout(style="nanovlm", tile=256, max_side=1024),
    FixedLayout(tokens=7),
    NativeLayout(),
    NativeLayout(patch=16, max_pixels=32 * 32 * 40),
]


def image(width, height, kind="png", **options):
    out = io.BytesIO()
    Image.new("RGB", (width, height), (width % 256, height % 256, 9)).save(out, kind, **options)
    return out.getvalue()


def turned(width, height):
    exif = Image.Exif()
    exif[0x0112] = 6
    return image(width, height, "jpeg", exif=exif)


def chat(*contents, **fields):
    roles = ["user", "assistant"] * len(contents)
    return json.dumps(
        {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)], **fields}
    )


def asks(images, text):
    return [{"type": "image"}] * images + [{"type": "text", "text": text}]


def written(path, *samples):
    with wds.TarWriter(str(path), mtime=0, encoder=False) as writer:
        for number, files in enumerate(samples):
            writer.write({"__key__": f"k{number}", **{name: _bytes(data) for name, data in files.items()}})
    return str(path)


def _bytes(data):
    return data.encode() if isinstance(data, str) else data


PECULIAR = [
    {"json": chat(asks(0, "no image"), "none")},
    {"json": chat(asks(1, "one"), "a " * 50), "png": image(900, 300)},
    {"json": chat(asks(3, "three"), "first", "more?", "<image> <|im_end|> </think> stays text"),
     "0.png": image(30, 40), "1.jpg": turned(640, 200), "2.webp": image(64, 64, "webp")},
    {"json": chat("between <image>\n\nand <image> them", " <image> in strings"), "0.png": image(1, 7),
     "1.png": image(2000, 1999), "2.png": image(5, 5)},
    {"json": "{"},
    {"json": chat(asks(2, "too few"), "x"), "png": image(3, 3)},
    {"json": chat(asks(2, "second broken"), "x"), "0.png": image(20, 20), "1.png": b"\x89PNG\r\n\x1a\nbroken"},
    {"json": chat(asks(2, "large, then broken"), "x"), "0.png": image(2000, 1000), "1.png": b"GIF8"},
    {"json": chat(asks(1, "too narrow for some"), "x"), "png": image(900, 2)},
    {"json": chat("a kept\U0010f8d3\U000f93a7mark", "x")},
    {"json": chat(asks(1, "mark and narrow \U0010f8d3\U000f93a7"), "x"), "png": image(900, 2)},
    {"txt": "a caption of an image\n", "jpg": image(100, 50, "jpeg")},
    {"json": json.dumps({"conversations": [{"from": "human", "value": "hi <image>"}, {"from": "gpt", "value": "yes"}]}),
     "jpg": image(50, 500, "jpeg")},
    {"json": json.dumps({"texts": [{"user": "q", "assistant": "a"}] * 2}), "0.jpg": image(9, 9, "jpeg")},
]  # fmt: skip
MARKED = [{"json": chat(asks(1, "what is <row_1_col_7> here?"), "a marker"), "png": image(80, 80)}]


@pytest.fixture
def peculiar(tmp_path):
    """Shards of every form and fault, in a folder."""
    written(tmp_path / "a-0.tar", *PECULIAR)
    written(tmp_path / "a-1.tar")
    written(tmp_path / "a-2.tar", *PECULIAR[:3] * 4)
    return tmp_path


def config_for(folder, tokenizer, layout=LAYOUTS[0], **options):
    source = wdspack.Source(**{"urls": f"{folder}/*.tar", **options.pop("source", {})})
    return wdspack.DataConfig(sources=source, tokenizer=tokenizer, layout=layout, **options)


def read_sizes(config):
    return [(sample and sample.size, reason) for sample, reason in measured(config)]


def indexed_sizes(config, index="auto"):
    origins = Counter()
    return list(measured_sizes(config, index, origins=origins)), dict(origins)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_it_says_where_samples_stand_as_tarfile_does(tmp_path, suffix):
    made = Shards(tmp_path, counts=[7, 0, 5], bad_json=0.3, suffix=suffix)
    summary = index_shards(f"{tmp_path}/")
    assert (summary.samples, summary.read, summary.kept, summary.damaged) == (12, 3, 0, {})
    assert summary.faulty == Counter(made.faults.values())
    with Index(str(tmp_path / "index.parquet")) as index:
        assert list(index.shards) == made.urls
        for url in made.urls:
            shard = index.find(url)
            members: dict[str, list[tarfile.TarInfo]] = {}
            with tarfile.open(url) as tar:
                for member in tar:
                    members.setdefault(member.name.split(".")[0], []).append(member)
                contents = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
            rows = index.samples(url).to_pylist()
            assert (shard.size, shard.samples) == (os.stat(url).st_size, len(members))
            assert [row["key"] for row in rows] == list(members)
            for row in rows:
                first, *_, last = [*members[row["key"]], members[row["key"]][-1]]
                assert row["offset"] == first.offset
                assert row["offset"] + row["nbytes"] == last.offset_data + (last.size + 511) // 512 * 512
                assert row["reason"] == made.faults.get(row["key"])
                crc = 0
                for member in members[row["key"]]:
                    extension = member.name.partition(".")[2].encode()
                    data = contents[member.name]
                    crc = zlib.crc32(extension + b"\0%d\0" % len(data) + data, crc)
                assert row["crc32"] == crc
                if row["reason"] is None:
                    pictures = [m.name for m in members[row["key"]] if m.name.endswith("png")]
                    sizes = [Image.open(io.BytesIO(contents[name])).size for name in pictures]
                    assert list(zip(row["widths"], row["heights"], strict=True)) == sizes


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{type(layout).__name__}{LAYOUTS.index(layout)}")
def test_index_and_layout_are_what_streaming_measures(peculiar, tokenizer_path, layout):
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    for limit in (89_478_485, 1_000_000, 500):
        config = config_for(peculiar, tokenizer_path, layout, max_image_pixels=limit, seq_len=100)
        expected = read_sizes(config)
        assert len(expected) == len(PECULIAR) + 12
        assert len({reason for _, reason in expected}) > 4
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("wdspack.storage.open_shard", None)
            found, origins = indexed_sizes(config)
        assert found == expected
        assert origins == {"index": 3}


@pytest.mark.parametrize(("name", "layout"), [("smollm2", LAYOUTS[2]), ("qwen3", LAYOUTS[4])])
def test_it_counts_for_real_tokenizers_and_samples(shared, tmp_path, name, layout):
    tokenizer = str(shared / "tokenizers" / name)
    write_shards(islice(chat_records(shared / "data/corpus"), 60), tmp_path)
    index_shards(f"{tmp_path}/", tokenizer=tokenizer, layouts=[layout])
    config = config_for(tmp_path, tokenizer, layout)
    found, origins = indexed_sizes(config)
    assert origins == {"index": 1}
    assert found == read_sizes(config)
    assert len(found) == 60


def test_a_caption_prompt_counts(peculiar, tokenizer_path):
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING, caption_prompt="What is it?")
    config = config_for(peculiar, tokenizer_path, source={"caption_prompt": "What is it?"})
    assert indexed_sizes(config) == (read_sizes(config), {"index": 3})
    with pytest.raises(ConfigError, match="another caption prompt"):
        indexed_sizes(config_for(peculiar, tokenizer_path), f"{peculiar}/index.parquet")


def test_texts_that_spell_grid_markers_are_counted_for_the_layouts_own(tmp_path, tokenizer_path):
    written(tmp_path / "a-0.tar", *MARKED)
    written(tmp_path / "a-1.tar", *PECULIAR[:2])
    index_shards(f"{tmp_path}/", tokenizer=tokenizer_path, layouts=[TileLayout(tile=256)])
    for side, expected in ((2048, {"index": 2}), (512, {"index": 1, "markers": 1})):
        config = config_for(tmp_path, tokenizer_path, TileLayout(tile=256, max_side=side))
        assert indexed_sizes(config) == (read_sizes(config), expected)


def test_shards_that_changed_are_read(peculiar, tokenizer_path):
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    replaced = peculiar / "a-2.tar"
    size = replaced.stat().st_size
    written(replaced, *([PECULIAR[1], PECULIAR[2], PECULIAR[0]] * 4))
    assert replaced.stat().st_size == size
    os.utime(replaced, (1, 1))
    written(peculiar / "a-3.tar", PECULIAR[0])
    config = config_for(peculiar, tokenizer_path)
    assert indexed_sizes(config) == (read_sizes(config), {"index": 2, "changed": 1, "not_indexed": 1})


def test_a_shard_that_was_damaged_is_read_and_raises_as_streaming_does(peculiar, tokenizer_path):
    data = (peculiar / "a-0.tar").read_bytes()
    (peculiar / "a-0.tar").write_bytes(data[:3000])
    summary = index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    assert list(summary.damaged) == [str(peculiar / "a-0.tar")]
    config = config_for(peculiar, tokenizer_path)
    with pytest.raises(ShardError, match=r"a-0\.tar"):
        indexed_sizes(config)
    lenient = config.replace(on_error="skip")
    found, origins = indexed_sizes(lenient)
    assert origins == {"index": 2, "damaged": 1}
    assert Counter(found) == Counter(read_sizes(lenient))
    assert (None, "shard_lost_truncated") in found


def test_a_shard_that_is_gone_is_lost_as_streaming_loses_it(peculiar, tokenizer_path):
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    (peculiar / "a-0.tar").unlink()
    config = config_for(peculiar, tokenizer_path, on_error="skip", source={"urls": f"{peculiar}/a-{{0..2}}.tar"})
    found, origins = indexed_sizes(config)
    assert origins == {"missing": 1, "index": 2}
    assert Counter(found) == Counter(read_sizes(config))
    with pytest.raises(ShardError, match="not found"):
        indexed_sizes(config.replace(on_error="skip_samples"))


def test_an_unclosed_shard_is_sound_for_whoever_says_so(tmp_path, tokenizer_path):
    data = Path(written(tmp_path / "a.tar", *PECULIAR[:3])).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        last = tar.getmembers()[-1]
    (tmp_path / "a.tar").write_bytes(data[: last.offset_data + (last.size + 511) // 512 * 512])
    index_shards(str(tmp_path / "a.tar"), tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    lenient = config_for(tmp_path, tokenizer_path, source={"strict_end": False})
    assert indexed_sizes(lenient) == (read_sizes(lenient), {"index": 1})
    with pytest.raises(ShardError, match="no end-of-archive"):
        indexed_sizes(config_for(tmp_path, tokenizer_path))


def test_without_an_index_shards_are_read(peculiar, tokenizer_path, monkeypatch, caplog):
    config = config_for(peculiar, tokenizer_path)
    expected = read_sizes(config)
    assert indexed_sizes(config) == (expected, {"no_index": 3})
    assert not caplog.records
    with pytest.raises(ShardError, match="no such index"):
        indexed_sizes(config, f"{peculiar}/index.parquet")
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    assert indexed_sizes(config, None) == (expected, {"no_index": 3})

    def missing():
        raise ConfigError("pip install 'wdspack[convert]'")

    monkeypatch.setattr(index_table, "import_pyarrow", missing)
    with caplog.at_level(logging.WARNING, "wdspack"):
        assert indexed_sizes(config) == (expected, {"no_index": 3})
    assert "wdspack[convert]" in caplog.text


@pytest.mark.parametrize(
    ("made_for", "says"),
    [({}, "another layout"), ({"layouts": [NativeLayout()]}, "another layout"), ({"other": True}, "another tokenizer")],
)
def test_an_index_for_something_else_is_not_used(peculiar, tokenizer_path, tmp_path_factory, made_for, says, caplog):
    options = dict(made_for)
    if options.pop("other", False):
        folder = tmp_path_factory.mktemp("other")
        train_tokenizer(["other words"], vocab_size=300).save_pretrained(folder)
        options = {"tokenizer": str(folder), "layouts": EVERY_WORDING}
    elif options:
        options["tokenizer"] = tokenizer_path
    index_shards(f"{peculiar}/", **options)
    config = config_for(peculiar, tokenizer_path)
    with caplog.at_level(logging.WARNING, "wdspack"):
        assert indexed_sizes(config) == (read_sizes(config), {"no_index": 3})
    assert says in caplog.text


@pytest.fixture
def opened(monkeypatch):
    """The names of shards that indexing opens."""
    names = []

    def opening(url, **options):
        names.append(Path(url).name)
        return original(url, **options)

    original = build.open_shard
    monkeypatch.setattr(build, "open_shard", opening)
    return names


def contents(path):
    with Index(str(path)) as index:
        return index.header, index.shards, [index.samples(url).to_pylist() for url in index.shards]


def test_only_what_changed_is_read_again(peculiar, tokenizer_path, opened):
    options = {"tokenizer": tokenizer_path, "layouts": EVERY_WORDING}
    place = peculiar / "index.parquet"
    index_shards(f"{peculiar}/", **options)
    assert opened == ["a-0.tar", "a-1.tar", "a-2.tar"]
    first = place.read_bytes()
    opened.clear()
    summary = index_shards(f"{peculiar}/", **options)
    assert opened == []
    assert (summary.read, summary.kept, summary.samples) == (0, 3, len(PECULIAR) + 12)
    assert place.read_bytes() == first

    os.utime(peculiar / "a-2.tar", (1, 1))
    written(peculiar / "a-1.tar", PECULIAR[1])
    written(peculiar / "a-0z.tar", PECULIAR[2])
    (peculiar / "a-0.tar").unlink()
    summary = index_shards(f"{peculiar}/", **options)
    assert opened == ["a-0z.tar", "a-1.tar", "a-2.tar"]
    incremental = contents(place)
    opened.clear()
    index_shards(f"{peculiar}/", afresh=True, **options)
    assert len(opened) == 3
    assert contents(place) == incremental
    assert sorted(path.name for path in peculiar.iterdir()) == ["a-0z.tar", "a-1.tar", "a-2.tar", "index.parquet"]


def test_damaged_shards_and_other_counts_are_read_again(peculiar, tokenizer_path, opened):
    (peculiar / "a-1.tar").write_bytes(b"x" * 1024)
    index_shards(f"{peculiar}/")
    opened.clear()
    index_shards(f"{peculiar}/")
    assert opened == ["a-1.tar"]
    opened.clear()
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=[NativeLayout()])
    assert opened == ["a-0.tar", "a-1.tar", "a-2.tar"]


def test_what_was_done_before_an_interruption_is_kept(peculiar, opened):
    def interrupting(done, _):
        if done == stop:
            raise KeyboardInterrupt

    stop = 2
    with pytest.raises(KeyboardInterrupt):
        index_shards(f"{peculiar}/", progress=interrupting)
    assert len(contents(peculiar / "index.parquet")[1]) == 2
    opened.clear()
    index_shards(f"{peculiar}/")
    assert opened == ["a-2.tar"]
    whole = contents(peculiar / "index.parquet")

    os.utime(peculiar / "a-0.tar", (1, 1))
    stop = 1
    with pytest.raises(KeyboardInterrupt):
        index_shards(f"{peculiar}/", progress=interrupting)
    header, shards, rows = contents(peculiar / "index.parquet")
    assert (header, list(shards), rows) == (whole[0], list(whole[1]), whole[2])
    opened.clear()
    assert index_shards(f"{peculiar}/").kept == 3


def test_processes_make_the_same_file(peculiar, tokenizer_path):
    options = {"tokenizer": tokenizer_path, "layouts": EVERY_WORDING, "afresh": True}
    index_shards(f"{peculiar}/", workers=1, **options)
    alone = (peculiar / "index.parquet").read_bytes()
    index_shards(f"{peculiar}/", workers=2, **options)
    assert (peculiar / "index.parquet").read_bytes() == alone


def test_many_shards_share_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(index_table, "_GROUP", 8)
    made = Shards(tmp_path, counts=[3, 0, 9, 1, 1, 1, 2, 0, 0, 5, 0], images=1)
    index_shards(f"{tmp_path}/")
    keys = list(made.answers)
    with Index(str(tmp_path / "index.parquet")) as index:
        assert index._file.metadata.num_row_groups == 3
        found = {url: index.samples(url, ["key"])["key"].to_pylist() for url in reversed(made.urls)}
    assert [key for url in made.urls for key in found[url]] == keys
    assert [len(found[url]) for url in made.urls] == [3, 0, 9, 1, 1, 1, 2, 0, 0, 5, 0]


def test_a_set_that_moves_takes_its_index_along(peculiar, tokenizer_path, tmp_path_factory):
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    moved = tmp_path_factory.mktemp("moved") / "set"
    shutil.copytree(peculiar, moved, copy_function=shutil.copy2)
    shutil.rmtree(peculiar)
    config = config_for(moved, tokenizer_path)
    assert indexed_sizes(config) == (read_sizes(config), {"index": 3})


def test_any_fsspec_url_will_do(peculiar, tokenizer_path):
    memory = fsspec.filesystem("memory")
    for path in peculiar.iterdir():
        memory.pipe(f"/set/{path.name}", path.read_bytes())
    try:
        index_shards("memory://set/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
        config = config_for("memory://set", tokenizer_path)
        assert indexed_sizes(config) == (read_sizes(config), {"index": 3})
        index_shards("memory://set/", "memory://elsewhere/i.parquet")
        with Index("memory://elsewhere/i.parquet") as index:
            assert [url.rpartition("/")[2] for url in index.shards] == ["a-0.tar", "a-1.tar", "a-2.tar"]
            assert all(url.startswith("memory://") for url in index.shards)
    finally:
        memory.rm("/set", recursive=True)
        memory.rm("/elsewhere", recursive=True)


def test_in_a_bucket_the_etag_tells(peculiar, tokenizer_path, s3):
    urls = bucketed(s3, sorted(map(str, peculiar.iterdir())), "indexed")
    folder, options = urls[0].rpartition("/")[0], {"storage_options": s3.storage_options}
    counting = {"tokenizer": tokenizer_path, "layouts": EVERY_WORDING, **options}
    index_shards(f"{folder}/", **counting)
    config = config_for(folder, tokenizer_path, source=options)
    assert indexed_sizes(config) == (read_sizes(config), {"index": 3})
    assert index_shards(f"{folder}/", **counting).kept == 3

    other = written(peculiar / "a-2.tar", *([PECULIAR[1], PECULIAR[2], PECULIAR[0]] * 4))
    bucketed(s3, [other], "indexed")
    assert indexed_sizes(config) == (read_sizes(config), {"index": 2, "changed": 1})
    checked = verify_shards(index=f"{folder}/index.parquet", **options)
    assert [[fault.kind for fault in shard.faults] for shard in checked] == [[], [], ["version", "offset"]]
    summary = index_shards(f"{folder}/", **counting)
    assert (summary.read, summary.kept) == (1, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layouts": [TileLayout()]}, "give both or none"),
        ({"tokenizer": "x"}, "give both or none"),
        ({"tokenizer": "/no/such", "layouts": [TileLayout()]}, "cannot be loaded"),
        ({"tokenizer": "x", "layouts": [TileLayout(), TileLayout(tile=256)]}, "two layouts of a kind"),
        ({"workers": 0}, "1 or more"),
    ],
)
def test_mistakes_are_explained(peculiar, options, says):
    with pytest.raises(ConfigError, match=says):
        index_shards(f"{peculiar}/", **options)
    assert [path.suffix for path in peculiar.iterdir()] == [".tar"] * 3


def test_another_tokenizer_in_the_same_place_counts_anew(peculiar, tmp_path_factory):
    place = tmp_path_factory.mktemp("retrained")
    counts = []
    for texts, size in ((["amber"], 270), (["no image at all " * 9, "a first question more?"], 400)):
        train_tokenizer(texts, vocab_size=size).save_pretrained(place)
        index_shards(f"{peculiar}/", tokenizer=str(place), layouts=[FixedLayout()])
        config = config_for(peculiar, str(place), FixedLayout())
        found, origins = indexed_sizes(config)
        assert (found, origins) == (read_sizes(config), {"index": 3})
        counts.append(found)
    assert counts[0] != counts[1]


def test_shards_of_several_folders_need_a_place(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "x.tar", PECULIAR[0])
    with pytest.raises(ConfigError, match="out="):
        index_shards(f"{tmp_path}/[ab]/x.tar")
    index_shards(f"{tmp_path}/[ab]/x.tar", str(tmp_path / "new" / "i.parquet"))
    with Index(str(tmp_path / "new" / "i.parquet")) as index:
        assert list(index.shards) == [f"{tmp_path}/a/x.tar", f"{tmp_path}/b/x.tar"]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda _: b"", lambda data: b"PAR1" + bytes(99) + data[103:]]
)
def test_a_damaged_index_is_made_anew(peculiar, damage, caplog):
    place = peculiar / "index.parquet"
    index_shards(f"{peculiar}/")
    sound = place.read_bytes()
    place.write_bytes(damage(sound))
    summary = index_shards(f"{peculiar}/")
    assert (summary.read, summary.kept) == (3, 0)
    assert "all shards are read, as the index there is damaged" in caplog.text
    assert place.read_bytes() == sound


def test_shards_that_the_index_does_not_serve_for_are_named(peculiar, tokenizer_path, caplog):
    index_shards(f"{peculiar}/", tokenizer=tokenizer_path, layouts=EVERY_WORDING)
    (peculiar / "a-0.tar").write_bytes((peculiar / "a-0.tar").read_bytes()[:3000])
    with pytest.raises(ShardError, match=r"a-0\.tar"):
        indexed_sizes(config_for(peculiar, tokenizer_path))
    assert "a-0.tar is read itself, as the index does not serve (changed)" in caplog.text
    assert "a-1.tar" not in caplog.text


def test_no_other_file_is_taken_for_an_index(peculiar):
    import pyarrow as pa
    from pyarrow import parquet

    place = peculiar / "index.parquet"
    place.write_bytes(b"hello")
    with pytest.raises(ShardError, match=r"index\.parquet: cannot be read"):
        index_shards(f"{peculiar}/")
    parquet.write_table(pa.table({"mine": [1]}), place)
    with pytest.raises(ConfigError, match="is not an index"):
        index_shards(f"{peculiar}/")
