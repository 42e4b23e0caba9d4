"""What has happened to shards since they were indexed is found, and told apart."""

import io
import json
import os
import random
import runpy
import sys
import tarfile
from pathlib import Path

import pytest
import webdataset as wds
from corpora import Shards, broken_picture, picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pip install 'wdspack[convert]'")

from wdspack import ConfigError, ShardError
from wdspack.index import Checks, index_shards, verify_shards
from wdspack.index.cli import checked_table

TOOLS = Path(__file__).parents[1] / "tools"
BLOCK = 512


@pytest.fixture
def indexed(tmp_path):
    """Three shards and their index."""
    made = Shards(tmp_path, counts=[4, 6, 3], images=2, words=8)
    index_shards(f"{tmp_path}/")
    return made


def faults(folder, urls=None, index=True, **checks):
    place = f"{folder}/index.parquet" if index else None
    return [
        (Path(fault.shard).name, fault.kind, fault.key)
        for shard in verify_shards(urls, index=place, checks=Checks(**checks))
        for fault in shard.faults
    ]


def put(path, data):
    """Other contents under the same modification time, as when a disk decays."""
    stamp = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def members(path):
    with tarfile.open(path) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]


def contents(path):
    return [(member.name, data) for member, data in members(path)]


def rewrite(path, changed):
    stamp = path.stat()
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for member, data in changed:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_nothing_is_wrong_with_what_nothing_happened_to(indexed, tmp_path):
    checked = list(verify_shards(index=f"{tmp_path}/index.parquet", checks=Checks(decode=True)))
    assert [shard.samples for shard in checked] == [4, 6, 3]
    assert [shard.shard for shard in checked] == indexed.urls
    assert not any(shard.faults for shard in checked)
    for shard in checked:
        first, last = members(shard.shard)[0][0], members(shard.shard)[-1][0]
        assert shard.nbytes == last.offset_data + (last.size + BLOCK - 1) // BLOCK * BLOCK - first.offset
    assert faults(tmp_path, quick=True) == faults(tmp_path, index=False, urls=f"{tmp_path}/*.tar") == []
    parallel = verify_shards(index=f"{tmp_path}/index.parquet", checks=Checks(decode=True), workers=2)
    assert list(parallel) == checked


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_is_found_wherever_it_matters(indexed, tmp_path, data):
    path = Path(indexed.urls[1])
    sound, contents_before = path.read_bytes(), contents(path)
    place = data.draw(st.integers(0, len(sound) - 1))
    flipped = bytearray(sound)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    put(path, bytes(flipped))
    try:
        found = faults(tmp_path)
        assert {name for name, _, _ in found} <= {path.name}
        if not found:  # in padding, or what ends a header's checksum
            assert contents(path) == contents_before
    finally:
        put(path, sound)


def one(path, name="shard-0001.tar"):
    return path / name


def cut_in_payload(path):
    put(path, path.read_bytes()[:2000])


def cut_between_members(path):
    put(path, path.read_bytes()[: members(path)[-1][0].offset])


def closing_lost(path):
    last, data = members(path)[-1]
    put(path, path.read_bytes()[: last.offset_data + -(-len(data) // BLOCK) * BLOCK])


def joined(path):
    put(path, path.read_bytes() * 2)


def payload_flipped(path):
    third, _ = members(path)[2]
    changed = bytearray(path.read_bytes())
    changed[third.offset_data + 3] ^= 1
    put(path, bytes(changed))


def header_flipped(path):
    changed = bytearray(path.read_bytes())
    changed[members(path)[2][0].offset + 5] ^= 1
    put(path, bytes(changed))


def sample_gone(path):
    rewrite(path, [(m, d) for m, d in members(path) if not m.name.startswith("s000006")])


def last_sample_gone(path):
    rewrite(path, [(m, d) for m, d in members(path) if not m.name.startswith("s000009")])


def file_grown(path):
    rewrite(path, [(m, d + b" " * BLOCK * m.name.startswith("s000006.json")) for m, d in members(path)])


def file_renamed(path):
    changed = members(path)
    for member, _ in changed:
        member.name = member.name.replace("s000006.json", "s000006.jsn")
    rewrite(path, changed)


def two_swapped(path):
    changed = {}
    for member, data in members(path):
        changed.setdefault(member.name.split(".")[0], []).append((member, data))
    changed["s000005"], changed["s000006"] = changed["s000006"], changed["s000005"]
    rewrite(path, [file for files in changed.values() for file in files])


def another_put_there(path):
    path.write_bytes(path.with_name("shard-0002.tar").read_bytes())


def touched(path):
    os.utime(path, (1, 1))


def no_tar(path):
    put(path, b"<html>not found</html>".ljust(path.stat().st_size, b" "))


DAMAGES = [
    (cut_in_payload, {"size", "truncated"}), (cut_between_members, {"size", "not_closed"}),
    (closing_lost, {"size", "not_closed"}), (joined, {"size", "trailing_data"}), (payload_flipped, {"contents"}),
    (header_flipped, {"bad_header"}), (sample_gone, {"key", "count"}), (last_sample_gone, {"count"}),
    (file_grown, {"offset"}), (file_renamed, {"contents"}), (two_swapped, {"key"}),
    (another_put_there, {"size", "key", "count"}), (no_tar, {"bad_header"}),
    (Path.unlink, {"missing"}),
]  # fmt: skip


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize(("damage", "kinds"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_every_damage_is_named(tmp_path, damage, kinds):
    path = one(tmp_path)
    damage(path)
    found = faults(tmp_path)
    assert {name for name, _, _ in found} == {path.name}
    # Python's tarfile fills its archives up to 10,240 bytes, so some damage changes the size as well.
    assert {kind for _, kind, _ in found} - {"size"} == kinds - {"size"}
    assert ("size" in kinds) <= ("size" in {kind for _, kind, _ in found})
    assert len(found) == len({kind for _, kind, _ in found})


@pytest.mark.usefixtures("indexed")
def test_a_copy_with_the_same_contents_is_noted_and_no_fault(tmp_path):
    touched(one(tmp_path, "shard-0001.tar"))
    checked = list(verify_shards(index=f"{tmp_path}/index.parquet"))
    assert [(shard.faults, shard.rewritten) for shard in checked] == [((), False), ((), True), ((), False)]
    said = [str(line) for line in checked_table(checked, 9)]
    assert "shard-0001.tar of another time or version" in said[0]
    assert "nothing is wrong" in said[1]
    payload_flipped(one(tmp_path))
    touched(one(tmp_path))
    assert {kind for _, kind, _ in faults(tmp_path)} == {"contents", "version"}


@pytest.mark.usefixtures("indexed")
def test_the_sample_is_named(tmp_path):
    payload_flipped(one(tmp_path))
    owner = members(one(tmp_path))[2][0].name.split(".")[0]
    (fault,) = faults(tmp_path)
    assert fault == ("shard-0001.tar", "contents", owner)


@pytest.mark.usefixtures("indexed")
def test_a_new_shard_is_not_in_the_index(tmp_path):
    Shards(tmp_path, counts=[2], name="z")
    assert faults(tmp_path) == []
    assert faults(tmp_path, f"{tmp_path}/*.tar") == [("z-0000.tar", "not_indexed", "")]
    assert faults(tmp_path, f"{tmp_path}/*.tar", quick=True) == [("z-0000.tar", "not_indexed", "")]


@pytest.mark.usefixtures("indexed")
def test_a_quick_look_compares_what_the_storage_tells(tmp_path):
    touched(one(tmp_path, "shard-0000.tar"))
    joined(one(tmp_path))
    one(tmp_path, "shard-0002.tar").unlink()
    found = faults(tmp_path, quick=True)
    assert [(name[6:10], kind) for name, kind, _ in found] == [
        ("0000", "version"),
        ("0001", "size"),
        ("0002", "missing"),
    ]


@pytest.mark.parametrize("index", [True, False])
def test_decoding_finds_what_headers_hide(tmp_path, index):
    rng = random.Random(0)
    chat = json.dumps({"messages": [{"role": "user", "content": [{"type": "image"}] * 2},
                                    {"role": "assistant", "content": "x"}]})  # fmt: skip
    rotten = broken_picture(rng)
    with wds.TarWriter(str(tmp_path / "a.tar"), encoder=False) as writer:
        for key, files in {
            "sound": {"json": chat, "0.png": picture(rng), "1.jpg": picture(rng, "jpeg")},
            "twice": {"json": chat, "0.png": rotten, "1.png": rotten},
            "text": {"json": "{", "0.png": picture(rng)},
            "both": {"json": "[]", "png": rotten},
        }.items():
            writer.write({"__key__": key, **{n: d.encode() if isinstance(d, str) else d for n, d in files.items()}})
    index_shards(f"{tmp_path}/")
    assert faults(tmp_path, f"{tmp_path}/a.tar", index) == []
    assert [fault[1:] for fault in faults(tmp_path, f"{tmp_path}/a.tar", index, decode=True)] == [
        ("broken_image", "twice"), ("broken_image", "twice"), ("bad_json", "text"),
        ("bad_messages", "both"), ("broken_image", "both"),
    ]  # fmt: skip


@pytest.mark.usefixtures("indexed")
def test_unclosed_shards_are_a_matter_of_taste(tmp_path):
    closing_lost(one(tmp_path))
    index_shards(f"{tmp_path}/")
    assert faults(tmp_path) == [("shard-0001.tar", "not_closed", "")]
    assert faults(tmp_path, strict_end=False) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "nothing to check"),
        ({"urls": "x.tar", "checks": Checks(quick=True)}, "give the index"),
        ({"index": "i.parquet", "checks": Checks(quick=True, decode=True)}, "do not ask to decode"),
        ({"index": "/no/such/i.parquet"}, "no such index"),
    ],
)
def test_mistakes_are_explained(options, says):
    with pytest.raises((ConfigError, ShardError), match=says):
        list(verify_shards(**options))


@pytest.fixture
def tool(monkeypatch, capsys):
    """Runs a tool as from a shell: `tool("verify_shards.py", …)` → (exit code, stdout, stderr), blanks made one."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(TOOLS / name), run_name="__main__")
        shown = capsys.readouterr()
        return ended.value.code, " ".join(shown.out.split()), " ".join(shown.err.split())

    return run


def test_the_tools_print_tables_and_exit_codes(tmp_path, tokenizer_path, tool):
    Shards(tmp_path, counts=[4, 6, 3])
    code, out, _ = tool("index_shards.py", f"{tmp_path}/*.tar", "--tokenizer", tokenizer_path)
    assert code == 0
    assert "shards read 3" in out
    assert "samples 13" in out
    code, out, _ = tool("verify_shards.py", f"{tmp_path}/*.tar")
    assert (code, out.partition(" 13 samples")[0], out.rpartition(": ")[2]) == (0, "3 shards,", "nothing is wrong")
    payload_flipped(one(tmp_path))
    code, out, _ = tool("verify_shards.py", "--index", f"{tmp_path}/index.parquet", "--decode")
    assert code == 1
    assert " contents " in out
    assert "in 1 shards: " in out
    code, _, err = tool("index_shards.py", f"{tmp_path}/*.tar", "--layout", "llava")
    assert (code, "it must be one of smolvlm, nanovlm, fixed, native" in err) == (1, True)
