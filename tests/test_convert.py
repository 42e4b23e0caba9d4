"""Conversion: every row in one shard or among the rejects, the same bytes whoever does the work, whatever happens."""

import io
import json
import os
import tarfile
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import MadeUp
from webdataset.tariterators import base_plus_ext

from wdspack.convert import LocalExecutor, Options, Record, convert
from wdspack.convert.order import places
from wdspack.convert.tarball import header
from wdspack.errors import ConfigError, SampleError, WdspackError


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of an output, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def samples(folder: Path) -> dict[str, dict[str, bytes]]:
    """Key → files, over all shards, as tarfile and webdataset's rule for keys read them."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, extension = base_plus_ext(member.name)
                assert extension not in found.setdefault(key, {}), "a sample is in the shards once"
                found[key][extension] = tar.extractfile(member).read()
    return found


datasets = st.builds(
    MadeUp,
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any).map(tuple),
    seed=st.integers(0, 9),
    bad=st.sampled_from((0, 2, 7)),
    cycle=st.sampled_from((0, 5, 30)),
)


@settings(max_examples=40)
@given(
    reader=datasets,
    per_shard=st.integers(1, 50),
    shuffle=st.none() | st.integers(0, 2**64),
    key=st.sampled_from(("row", "id")),
    limit=st.none() | st.integers(1, 100),
    memory=st.sampled_from((1, 10_000, 1 << 28)),
)
def test_every_row_is_in_one_shard_or_among_the_rejects(
    tmp_path_factory, reader, per_shard, shuffle, key, limit, memory
):
    out = tmp_path_factory.mktemp("out")
    options = Options(per_shard=per_shard, shuffle=shuffle, key=key, limit=limit)
    summary = convert(reader, str(out), options, max_rejects=1.0, memory=memory)

    rows = min(sum(reader.counts), limit or 10**9)
    expected, rejected, ids = {}, {}, set()
    for number in range(rows):
        row, id = reader.row(number), reader.id(number)
        if not isinstance(row, Record):
            rejected[number] = row.reason
        elif key == "id" and id in ids:
            rejected[number] = "duplicate_id"
        else:
            ids.add(id)
            expected[number] = dict(row.files)
    found = samples(out)
    assert {json.loads(files["json"])["number"]: files for files in found.values()} == expected
    assert len(found) == len(expected)
    if key == "row":
        assert set(map(int, found)) == expected.keys()
    lines = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert {line["row"]: line["reason"] for line in lines} == rejected
    assert len(lines) == len(rejected)
    starts = np.cumsum([0, *reader.counts])
    assert all(line["part"] == f"part-{np.searchsorted(starts, line['row'], side='right') - 1}" for line in lines)

    assert set(os.listdir(out)) == {
        "convert.json",
        "rejects.jsonl",
        *(f"shard-{i:06d}.tar" for i in range(summary.shards)),
    }
    assert (summary.rows, summary.samples, summary.shards) == (rows, len(expected), -(-rows // per_shard))
    assert summary.bytes == sum(path.stat().st_size for path in out.glob("*.tar"))
    assert sum(summary.rejects.values()) == len(rejected)
    record = json.loads((out / "convert.json").read_text())
    assert [shard["url"] for shard in record["shards"]] == sorted(path.name for path in out.glob("*.tar"))


@pytest.mark.parametrize("options", [
    Options(per_shard=13),
    Options(shard_size=30_000, shuffle=2, key="id", limit=200),
], ids=["in order", "all"])  # fmt: skip
def test_the_same_bytes_whoever_does_the_work(tmp_path, options):
    reader = MadeUp((50, 0, 120, 70), bad=9, cycle=150)
    alone = convert(reader, str(tmp_path / "alone"), options, max_rejects=1.0)
    several = convert(
        reader, str(tmp_path / "several"), options, max_rejects=1.0, executor=LocalExecutor(2), memory=20_000,
        spill=str(tmp_path / "spill"),
    )  # fmt: skip
    assert several == alone
    assert contents(tmp_path / "several") == contents(tmp_path / "alone")
    assert list((tmp_path / "spill").rglob("*.spill")) == []
    dry = convert(reader, str(tmp_path / "dry"), options, max_rejects=1.0, dry_run=True)
    assert (dry.samples, dry.rejects) == (alone.samples, alone.rejects)
    assert not (tmp_path / "dry").exists()


def test_a_shuffle_of_small_parts_lays_them_by_together(tmp_path):
    def spills_with(memory: int, out: Path) -> int:
        seen = set()

        def look(*_: object) -> None:
            seen.update(path.name for path in out.rglob("*.spill"))

        convert(reader, str(out), Options(per_shard=500, shuffle=1), memory=memory, progress=look)
        return len(seen)

    reader = MadeUp((2,) * 1500)
    nbytes = sum(sum(map(len, reader.row(number).files.values())) for number in range(3000))
    assert spills_with(1 << 28, tmp_path / "much") == 3, "1,024 rows at a time"
    assert 8 <= spills_with(nbytes // 4, tmp_path / "little") <= 20, "twice the bytes are held: headers, and padding"
    assert contents(tmp_path / "much") == contents(tmp_path / "little")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_part_that_cannot_be_entered_in_its_middle_is_read_a_few_times_only(tmp_path, workers):
    log = tmp_path / "log"

    class FromTheStart(MadeUp):
        def read(self, part, start, stop):
            with log.open("a") as file:
                file.write(f"{stop}\n")
            return super().read(part, start, stop)

    class Here(LocalExecutor):
        @contextmanager
        def started(self):
            yield map

    convert(FromTheStart((3000,)), str(tmp_path / "out"), Options(per_shard=3), executor=Here(workers))
    reads = list(map(int, log.read_text().split()))
    assert sum(reads) <= 3000 * (2 + workers)
    assert len(reads) >= 8, "progress is seen"


def test_shards_are_what_tarfile_writes(tmp_path):
    reader = MadeUp((20,))
    convert(reader, str(tmp_path), Options(per_shard=20))
    expected = io.BytesIO()
    with tarfile.open(fileobj=expected, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(20):
            for extension, data in sorted(reader.row(number).files.items()):
                member = tarfile.TarInfo(f"{number:09d}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    assert (tmp_path / "shard-000000.tar").read_bytes() == expected.getvalue()


@given(
    name=st.text(min_size=1, max_size=150).filter(lambda name: "\0" not in name and name.isprintable())
    | st.text("abc/0.", min_size=90, max_size=110),
    size=st.integers(0, 2**40) | st.sampled_from((0, 8**11 - 1, 8**11)),
)
def test_headers_are_those_of_tarfile(name, size):
    member = tarfile.TarInfo(name)
    member.size = size
    assert header(name, size) == member.tobuf(tarfile.PAX_FORMAT)


def test_a_shuffle_is_a_permutation_of_rows_that_spreads_them_evenly():
    for n in (1, 2, 3, 10, 1000):
        assert sorted(places(np.arange(n), n, 5).tolist()) == list(range(n))
    n = 10**9
    found = places(np.arange(100_000), n, 5)
    assert len(np.unique(found)) == len(found)
    share = np.bincount(found * 10 // n, minlength=10) / len(found)
    assert np.abs(share - 0.1).max() < 0.005  # five standard deviations
    assert abs(np.corrcoef(np.arange(len(found)), found)[0, 1]) < 0.02
    orders = {tuple(places(np.arange(4), 4, seed).tolist()) for seed in range(1000)}
    assert len(orders) == 24, "all orders of four rows come up"


def test_a_run_that_is_complete_is_not_done_again_and_a_lost_shard_is(tmp_path):
    reader = MadeUp((60,), bad=7)
    options = Options(per_shard=10, shuffle=0)
    first = convert(reader, str(tmp_path), options, max_rejects=1.0)
    before = contents(tmp_path)
    touched = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert convert(reader, str(tmp_path), options, max_rejects=1.0) == first
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == touched
    (tmp_path / "shard-000003.tar").unlink()
    (tmp_path / "shard-000004.tar").write_bytes(b"cut")
    assert convert(reader, str(tmp_path), options, max_rejects=1.0) == first
    assert contents(tmp_path) == before
    rewritten = {name for name, time in touched.items() if (tmp_path / name).stat().st_mtime_ns != time}
    assert rewritten == {"shard-000003.tar", "shard-000004.tar"}


@pytest.mark.parametrize(("reader", "options", "message"), [
    (MadeUp((60,), seed=1), Options(per_shard=10), "dataset.seed was 0, is 1"),
    (MadeUp((61,)), Options(per_shard=10), "parts was .*rows was 60, is 61"),
    (MadeUp((60,)), Options(per_shard=11), "per_shard was 10, is 11"),
    (MadeUp((60,)), Options(per_shard=10, shuffle=4), "shuffle was null, is 4"),
], ids=["dataset", "rows", "per_shard", "shuffle"])  # fmt: skip
def test_an_output_belongs_to_one_plan(tmp_path, reader, options, message):
    convert(MadeUp((60,)), str(tmp_path), Options(per_shard=10))
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=message):
        convert(reader, str(tmp_path), options)
    assert contents(tmp_path) == before


def test_shards_of_unknown_origin_are_left_alone(tmp_path):
    (tmp_path / "shard-000007.tar").write_bytes(b"mine")
    (tmp_path / "notes.txt").write_bytes(b"mine too")
    with pytest.raises(ConfigError, match=r"1 shards \(shard-000007.tar, …\) but no convert.json"):
        convert(MadeUp((5,)), str(tmp_path), Options(per_shard=10))
    assert set(contents(tmp_path)) == {"shard-000007.tar", "notes.txt"}
    convert(MadeUp((5,)), str(tmp_path), Options(per_shard=10, name="other"))
    assert (tmp_path / "notes.txt").read_bytes() == b"mine too"


@pytest.mark.parametrize("record", [b"", b"[]", b'{"version": 2}', b'{"version": 1}'])
def test_a_record_that_cannot_be_read_is_left_alone(tmp_path, record):
    (tmp_path / "convert.json").write_bytes(record)
    with pytest.raises(ConfigError, match=r"convert.json is not a record of this version"):
        convert(MadeUp((5,)), str(tmp_path))
    assert contents(tmp_path) == {"convert.json": record}


@pytest.mark.parametrize("shuffle", [None, 0])
def test_too_many_rejects_stop_a_run_that_can_go_on(tmp_path, shuffle):
    reader, options = MadeUp((50, 50, 50, 50), bad=10), Options(per_shard=20, shuffle=shuffle)
    with pytest.raises(SampleError, match=r"of 200 rows .*made_up.*allows 5; row 9, say: row 9 is bad.") as error:
        convert(reader, str(tmp_path), options, max_rejects=5, executor=LocalExecutor(1))
    assert error.value.reason == "max_rejects"
    lines = (tmp_path / "rejects.jsonl").read_text().splitlines()
    assert len(lines) >= 6
    made = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.tar")}
    assert len(made) == (3 if shuffle is None else 0)
    with pytest.raises(SampleError, match="max_rejects"):
        convert(reader, str(tmp_path), options, max_rejects=0.09)
    summary = convert(reader, str(tmp_path), options, max_rejects=0.1)
    assert summary.rejects == {"made_up": 20}
    assert len((tmp_path / "rejects.jsonl").read_text().splitlines()) == 20
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in made.items())
    convert(reader, str(tmp_path / "again"), options, max_rejects=20)
    again = contents(tmp_path / "again")
    assert {name: data for name, data in contents(tmp_path).items() if not name.startswith("again")} == again


def test_a_row_too_many_or_too_few_is_noticed(tmp_path):
    class Short(MadeUp):
        def read(self, part, start, stop):
            return list(super().read(part, start, stop))[:-1]

    with pytest.raises(WdspackError, match="gave 9 rows of rows 0 to 10: the dataset changed"):
        convert(Short((10,)), str(tmp_path), Options(per_shard=10))
    assert not list(tmp_path.glob("*.tar*"))
    with pytest.raises(ConfigError, match="no rows"):
        convert(MadeUp((0, 0)), str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_ids_become_keys_one_to_one(tmp_path):
    ids = [
        "plain-1_a",
        "a.b",
        "a_b",
        "a%2Eb",
        "../../etc/x",
        "/abs",
        "é ü",
        "__x__",
        "",
        None,
        "\ud800",
        "x" * 600,
        "a.b",
    ]

    class Named(MadeUp):
        def row(self, number):
            return Record(ids[number], {"json": b"{}"})

    summary = convert(Named((len(ids),)), str(tmp_path), Options(per_shard=4, key="id"), max_rejects=1.0)
    assert summary.rejects == {"no_id": 2, "bad_id": 2, "duplicate_id": 1}
    assert set(samples(tmp_path)) == {
        "plain-1_a", "a%2Eb", "a_b", "a%252Eb", "%2E%2E%2F%2E%2E%2Fetc%2Fx", "%2Fabs", "%C3%A9%20%C3%BC", "%5F_x__"
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [(line["row"], line["reason"]) for line in lines][-1] == (12, "duplicate_id"), "the first one is kept"


def test_files_that_would_not_read_back_are_rejected(tmp_path):
    odd = [{"JPG": b""}, {"a/b": b""}, {"__key__": b""}, {"": b""}, {}, {"0.jpg": b"", "json": b""}]

    class Odd(MadeUp):
        def row(self, number):
            return Record(None, odd[number])

    summary = convert(Odd((len(odd),)), str(tmp_path), Options(per_shard=9), max_rejects=1.0)
    assert summary.rejects == {"bad_extension": 4, "no_files": 1}
    assert samples(tmp_path) == {"000000005": odd[5]}


def test_any_filesystem_of_fsspec_is_an_output(tmp_path):
    reader, options = MadeUp((30, 30), bad=11), Options(per_shard=8, shuffle=3, key="id")
    convert(reader, str(tmp_path), options, max_rejects=1.0)
    convert(reader, "memory://bucket/out", options, max_rejects=1.0)
    memory = fsspec.filesystem("memory")
    assert {path: memory.cat_file(f"/bucket/out/{path}") for path in contents(tmp_path)} == contents(tmp_path)
    assert len(memory.find("/bucket/out")) == len(contents(tmp_path))
    with pytest.raises(ConfigError, match="use workers=1"):
        convert(reader, "memory://bucket/other", options, executor=LocalExecutor(2))
    memory.rm("/bucket", recursive=True)


def test_a_shard_that_fails_leaves_nothing_behind(tmp_path):
    class Failing(MadeUp):
        def row(self, number):
            if number == 15:
                raise OSError("no disk")
            return super().row(number)

    for out in (str(tmp_path), "memory://failing"):
        with pytest.raises(OSError, match="no disk"):
            convert(Failing((30,)), out, Options(per_shard=10))
    assert {path.name for path in tmp_path.iterdir()} == {
        "convert.json",
        "_convert",
        "rejects.jsonl",
        "shard-000000.tar",
    }
    memory = fsspec.filesystem("memory")
    assert [path for path in memory.find("/failing") if path.endswith(".tar")] == ["/failing/shard-000000.tar"]
    memory.rm("/failing", recursive=True)


@pytest.mark.parametrize(
    "bad",
    [{"per_shard": 0}, {"limit": 0}, {"name": "a/b"}, {"name": "_x"}, {"name": ""}, {"key": "x"}, {"shard_size": -1}],
    ids=str,
)
def test_options_that_cannot_work_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Options(**bad)


def test_shard_size_becomes_rows(tmp_path):
    summary = convert(MadeUp((2000,)), str(tmp_path), Options(shard_size=1_000_000))
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.tar"))][:-1]
    assert summary.shards > 3
    assert all(0.7e6 < size < 1.4e6 for size in sizes)
