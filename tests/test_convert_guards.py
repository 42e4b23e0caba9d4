"""What a run refuses before it begins, so that nobody's files are harmed and no shards are mixed."""

import json
import os
from pathlib import Path

import fsspec
import pytest
from datasets_of import pictures
from made_up import MadeUp
from test_convert import contents

from wdspack.convert import Options, convert
from wdspack.convert.readers import ChatReader, FolderReader, ShardsReader, TableReader
from wdspack.errors import ConfigError


def rows_in(folder: Path, *captions: str) -> Path:
    """A JSONL with a row for each caption."""
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"caption": caption}) + "\n" for caption in captions))
    return path


def test_a_file_that_was_edited_in_place_is_noticed(tmp_path: Path) -> None:
    path, out = rows_in(tmp_path / "in", "one", "two"), str(tmp_path / "out")
    convert(ChatReader(urls=str(path)), out)
    convert(ChatReader(urls=str(path)), out)
    before = contents(tmp_path / "out")
    rows_in(tmp_path / "in", "one", "six")
    os.utime(path, (1, 1))
    with pytest.raises(ConfigError, match="begun otherwise: files of the dataset were changed"):
        convert(ChatReader(urls=str(path)), out)
    assert contents(tmp_path / "out") == before


def test_texts_beside_images_that_were_edited_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    [image] = pictures(1)
    (tmp_path / "in/a.jpg").write_bytes(image)
    (tmp_path / "in/a.txt").write_text("one")
    reader, out = FolderReader(folder=str(tmp_path / "in")), str(tmp_path / "out")
    convert(reader, out)
    (tmp_path / "in/a.txt").write_text("two")
    os.utime(tmp_path / "in/a.txt", (1, 1))
    with pytest.raises(ConfigError, match="were changed"):
        convert(reader, out)


def test_a_relative_path_is_the_file_it_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_in(tmp_path / "a", "one")
    rows_in(tmp_path / "b", "two")
    monkeypatch.chdir(tmp_path / "a")
    convert(ChatReader(urls="rows.jsonl"), "../out")
    convert(ChatReader(urls=str(tmp_path / "a/rows.jsonl")), str(tmp_path / "out"))
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(ConfigError, match="begun otherwise"):
        convert(ChatReader(urls="rows.jsonl"), "../out")


@pytest.mark.parametrize("given", [{"output": ""}, {"output": "a::b"}, {"spill": "zip://x::b.zip"}, {"output": "file"}])
def test_what_is_no_folder(given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("file", "b", "b.zip"):
        Path(name).write_bytes(b"mine")
    with pytest.raises(ConfigError, match=r"not a folder|is a file"):
        convert(MadeUp((3,)), **{"output": "out", "options": Options(shuffle=0), **given})  # type: ignore[arg-type]
    assert contents(tmp_path) == {"file": b"mine", "b": b"mine", "b.zip": b"mine"}


@pytest.mark.parametrize(
    "form",
    [
        lambda folder: FolderReader(folder=folder), lambda folder: ChatReader(urls=folder),
        lambda folder: ChatReader(urls=[f"{folder}/**/*.json*"]),
        lambda folder: TableReader(urls=f"{folder}/{{,out/}}*"),
    ],
)  # fmt: skip
def test_an_output_in_the_dataset(form, tmp_path: Path) -> None:
    rows_in(tmp_path / "in", "one")
    for out in ("in", "in/out"):
        with pytest.raises(ConfigError, match="where the dataset is looked for"):
            convert(form(str(tmp_path / "in")), str(tmp_path / out))
    assert set(contents(tmp_path)) == {"in/rows.jsonl"}
    convert(ChatReader(urls=f"{tmp_path}/in/*.jsonl"), str(tmp_path / "in/out"))
    with pytest.raises(ConfigError, match=r"rejects.jsonl in it would be taken"):
        convert(ChatReader(urls=f"{tmp_path}/in/*.jsonl"), str(tmp_path / "in"))


def test_settings_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory=0"):
        convert(MadeUp((3,)), str(tmp_path), memory=0)
    with pytest.raises(ConfigError, match="has 300 bytes: must have 200 at most"):
        Options(name="x" * 300)
    convert(MadeUp((3,)), str(tmp_path / "long"), Options(name="é" * 100))
    with pytest.raises(ConfigError, match=r"max_rejects=1\.5"):
        convert(MadeUp((3,)), str(tmp_path), max_rejects=1.5)
    with pytest.raises(ConfigError, match="add --canonical"):
        ShardsReader(urls=str(tmp_path), caption_prompt="What?")


def test_only_our_own_temporary_files_are_removed(tmp_path: Path) -> None:
    left = [f"{name}.0123456789ab.partial" for name in ("convert.json", "rejects.jsonl", "shard-000000.tar")]
    foreign = ["shard-notes.partial", "shard-000000.tar.partial", "other.0123456789ab.partial", "rejects.jsonl.partial"]
    for name in (*left, *foreign):
        (tmp_path / name).write_bytes(b"mine")
    convert(MadeUp((3,)), str(tmp_path))
    assert set(contents(tmp_path)) == {"convert.json", "rejects.jsonl", "shard-000000.tar", *foreign}


def test_a_rejects_file_of_unknown_origin_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rejects.jsonl").write_bytes(b"mine")
    with pytest.raises(ConfigError, match=r"has a rejects.jsonl, which would be overwritten"):
        convert(MadeUp((3,)), str(tmp_path))
    assert contents(tmp_path) == {"rejects.jsonl": b"mine"}


def test_one_run_at_a_time(tmp_path: Path) -> None:
    seen = []

    def begin_another(*_: object) -> None:
        with pytest.raises(ConfigError, match="another run writes here") as error:
            convert(MadeUp((3,), seed=1), str(tmp_path))
        seen.append(error)

    convert(MadeUp((3,)), str(tmp_path), progress=begin_another)
    assert seen
    assert set(contents(tmp_path)) == {"convert.json", "rejects.jsonl", "shard-000000.tar"}
    assert not (tmp_path / "_convert").exists()
    convert(MadeUp((3,)), str(tmp_path))


def test_a_failed_run_leaves_the_rejects_of_a_finished_one(tmp_path: Path) -> None:
    """Where there is no lock, two runs may be in one output."""
    reader, out = MadeUp((20, 20), bad=5), f"memory://{tmp_path.name}"
    options = Options(per_shard=10, key="id")

    class Overtaken(MadeUp):
        def row(self, number):
            if number == 30:
                convert(reader, out, options, max_rejects=1.0)
                raise OSError("the real error")
            return super().row(number)

    with pytest.raises(OSError, match="the real error"):
        convert(Overtaken((20, 20), bad=5), out, options, max_rejects=1.0)
    files = fsspec.filesystem("memory")
    assert files.cat_file(f"/{tmp_path.name}/rejects.jsonl").count(b"\n") == 8
    files.rm(f"/{tmp_path.name}", recursive=True)


def test_what_fails_after_the_error_does_not_hide_it(tmp_path: Path) -> None:
    class Failing(MadeUp):
        def read(self, *_):
            (tmp_path / "convert.json").write_bytes(b"{")
            raise OSError("the real error")

    with pytest.raises(OSError, match="the real error") as error:
        convert(Failing((3,)), str(tmp_path), Options(per_shard=10))
    assert "rejects.jsonl cannot be written" in error.value.__notes__[0]
