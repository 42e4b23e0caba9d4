"""Samples from tar shards: what webdataset reads of sound ones, and a `ShardError` for everything else."""

import gc
import gzip
import io
import json
import shutil
import struct
import subprocess
import tarfile
import tracemalloc
import warnings
from collections import Counter
from dataclasses import replace

import pytest
import webdataset as wds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wdspack.errors import ShardError
from wdspack.storage import ShardStream, open_shard, read_ranges
from wdspack.tar import TarReader, expand, read_sample

GNU, PAX, USTAR = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT
END = bytes(1024)
LONG = "deep/" + "n" * 120 + "/" + "m" * 180  # over 255 characters: neither ustar nor its prefix can hold it


def member(name, data=b"", *, format=USTAR, type=tarfile.REGTYPE, **fields):
    """One member's bytes: extension headers, header, payload, padding."""
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), type
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(format, "utf-8", "surrogateescape") + padded(data)


def padded(data):
    return data + bytes(-len(data) % 512)


def reheadered(block, **changes):
    """A header block with bytes changed at offsets ("at124"), and its checksum made right again."""
    block = bytearray(block)
    for at, value in changes.items():
        block[int(at[2:]) : int(at[2:]) + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def read(archive, *, start=0, **options):
    """(samples, error, reader) of an archive's bytes, or of a path."""
    if isinstance(archive, bytes):
        stream = ShardStream(io.BytesIO(archive[start:]), "x.tar", position=start)
    else:
        stream = open_shard(str(archive), start=start)
    samples, error = [], None
    with stream:
        reader = TarReader(stream, **options)
        try:
            for sample in reader:
                samples.append(sample)
        except ShardError as raised:
            error = raised
    return samples, error, reader


def plain(samples):
    return [(sample.key, dict(sample.files)) for sample in samples]


def by_webdataset(path):
    """((key, files) of each sample, in order; the message of the ValueError that ended reading, or None)."""
    samples, error = [], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files to the garbage collector
        try:
            for sample in wds.WebDataset(str(path), shardshuffle=False, empty_check=False):
                key, *_ = (sample.pop(name) for name in ("__key__", "__url__", "__local_path__"))
                samples.append((key, sample))
                assert all(isinstance(data, bytes) for data in samples[-1][1].values())
        except ValueError as raised:
            error = str(raised)
        if error:
            gc.collect()
    return samples, error


def check_sound(path):
    """Reads as webdataset does, can be resumed after every sample, and each sample can be read again alone."""
    samples, error, reader = read(path)
    assert error is None
    assert plain(samples) == by_webdataset(path)[0]
    assert [sample.ordinal for sample in samples] == list(range(len(samples)))
    assert reader.ordinal == len(samples)
    assert not reader.unclosed
    for sample in samples[:: 1 + len(samples) // 15]:
        check_resumes(path, samples, sample, reader)
    again = read_ranges(str(path), [(sample.offset, sample.nbytes) for sample in samples])
    for sample, data in zip(samples, again, strict=True):
        alone = read_sample(data, str(path), offset=sample.offset, ordinal=sample.ordinal)
        assert plain([alone]) == plain([sample])
        assert (alone.offset, alone.nbytes, alone.ordinal) == (sample.offset, sample.nbytes, sample.ordinal)
    return samples


def check_resumes(archive, samples, sample, reader, **options):
    rest, error, other = read(archive, start=sample.next_offset, ordinal=sample.ordinal + 1, **options)
    assert rest == samples[samples.index(sample) + 1 :]
    assert (other.ignored, other.ordinal, other.unclosed) == (reader.ignored, reader.ordinal, reader.unclosed)
    return error


NAMES = [
    *("000.jpg", "000.json", "001.rgb.png", "001.depth.png", "001.cls", "001.RGB.JPG"),
    *("train/a/002.jpg", "train/a/002.JSON", "train.v1/003.jpg", "train.v1/003.txt"),
    *("ünïcode/鍵.jpg", "ünïcode/鍵.txt", "004.empty", "005.jpg", "004.again", "a/.jpg", "/.x", "x y.t t", "odd\n.j\n"),
]


@pytest.mark.parametrize("format", [USTAR, GNU, PAX])
@pytest.mark.parametrize("compress", [False, True])
def test_archives_of_tarfile(tmp_path, format, compress):
    path = tmp_path / "x.tar"
    long = [f"{'d' * 90}/{'f' * 90}.a"] if format == USTAR else [f"{LONG}.jpg", f"{LONG}.txt", f"k{'é' * 60}.jpg"]
    names = NAMES + long
    with tarfile.open(path, "w:gz" if compress else "w", format=format) as tar:
        tar.addfile(folder := tarfile.TarInfo("train"))
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = 0 if "empty" in name else 1 + 700 * number
            info.mtime = 1.5 if format == PAX else 1
            tar.addfile(info, io.BytesIO(bytes([number]) * info.size))
    samples = check_sound(path)
    assert {"rgb.png", "depth.png", "cls", "rgb.jpg"} in [set(sample.files) for sample in samples]
    assert [sample.files for sample in samples if "empty" in sample.files] == [{"empty": b""}]


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar command")
@pytest.mark.parametrize("format", ["gnu", "oldgnu", "pax", "ustar", "v7"])
def test_archives_of_the_tar_command(tmp_path, format):
    root = tmp_path / "in"
    longest = "k" * 90 if format in ("ustar", "v7") else "k" * 200
    names = "train/000.jpg train/000.json train/001.seg.png train/001.txt"
    for name in [*names.split(), f"{longest}.jpg", f"{longest}.txt"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode() * 50)
    (root / "train/link.jpg").symlink_to("000.jpg")
    (root / "train/README").write_text("no extension")
    path = tmp_path / "x.tar"
    subprocess.run(["tar", f"--format={format}", "--sort=name", "-C", root, "-cf", path, "."], check=True)
    samples = check_sound(path)
    assert [sample.key for sample in samples] == [f"./{longest}", "./train/000", "./train/001"]
    total = sum((Counter(sample.ignored) for sample in samples), Counter())
    assert total == {"not_a_file": 3, "no_extension": 1}  # ".", "train" and the link; README


@pytest.mark.parametrize("name", ["x-%06d.tar", "x-%06d.tar.gz"])
def test_archives_of_webdataset(tmp_path, name):
    with wds.ShardWriter(str(tmp_path / name), maxcount=7, verbose=0) as writer:
        for number in range(20):
            files = {"txt": f"text {number}", "0.bin": bytes(number), "json": {"n": number}}
            writer.write({"__key__": f"{number:05d}", **files})
    paths = sorted(tmp_path.iterdir())
    assert [len(check_sound(path)) for path in paths] == [7, 7, 6]


def test_img2dataset_layout(tmp_path):
    """One shard's members as that tool writes them: key.jpg, key.txt, key.json, no folder entries."""
    path = tmp_path / "00000.tar"
    with tarfile.open(path, "w", format=PAX) as tar:
        for number in range(30):
            key = f"{number:09d}"
            meta = json.dumps({"caption": f"a photo of {number}", "key": key, "status": "success"}).encode()
            for suffix, data in (("jpg", b"\xff\xd8" + bytes(number * 37)), ("txt", b"a photo"), ("json", meta)):
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size, info.mtime = len(data), 1700000000.25
                tar.addfile(info, io.BytesIO(data))
    samples = check_sound(path)
    assert [list(sample.files) for sample in samples] == [["jpg", "txt", "json"]] * 30


def test_ten_thousand_members(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(member(f"{n // 2:06d}.{n % 2}", b"%d" % n) for n in range(10_000)) + END)
    samples = check_sound(path)
    assert len(samples) == 5000
    assert samples[1234].files == {"0": b"2468", "1": b"2469"}


def test_what_webdataset_ignores_is_counted():
    link = {"type": tarfile.SYMTYPE, "linkname": "a.jpg"}
    archive = b"".join([
        member("__shard__", b"x"), member("d", type=tarfile.DIRTYPE), member("a.jpg", b"1"), member("a.txt", b"2"),
        member("noext", b"x" * 600), member("__meta__/a.json", b"x"), member("b.jpg", b"3"), member("l.jpg", **link),
        member("b.txt", b"4"), member("h.jpg", type=tarfile.LNKTYPE, linkname="a.jpg"),
        member("fifo.x", type=tarfile.FIFOTYPE), member("new.type", b"x", type=b"Q"), END,
    ])  # fmt: skip
    (a, b), error, reader = read(archive)
    assert error is None
    assert (a.files, b.files) == ({"jpg": b"1", "txt": b"2"}, {"jpg": b"3", "txt": b"4"})
    assert a.ignored == {"meta": 2, "not_a_file": 1, "no_extension": 1}  # before it, and up to where b begins
    assert b.ignored == {"not_a_file": 4}
    assert reader.ignored == {}
    assert (a.offset, a.nbytes, a.next_offset) == (1536, 2048, 1536 + 2048 + 1536 + 1024)
    assert b.next_offset == len(archive) - 1024


def test_an_archive_of_ignored_members_leaves_its_counts_behind():
    samples, error, reader = read(member("a", b"1") + member("__b__", b"2") + END)
    assert (samples, error, reader.ordinal) == ([], None, 0)
    assert reader.ignored == {"no_extension": 1, "meta": 1}


@pytest.mark.parametrize("archive", [END, bytes(512), bytes(10240)], ids=len)
def test_an_empty_archive_has_no_samples(archive):
    assert read(archive)[:2] == ([], None)


def test_one_block_of_zeros_is_an_end():
    samples, error, reader = read(member("a.x", b"1") + bytes(512))
    assert (plain(samples), error, reader.unclosed) == ([("a", {"x": b"1"})], None, False)


def test_expand_is_a_stage_of_webdataset_pipelines(tmp_path):
    for number in range(3):
        archive = member(f"k{number}.txt", b"%d" % number) + member(f"l{number}.txt") + END
        (tmp_path / f"{number}.tar").write_bytes(archive)
    urls = f"{tmp_path}/{{0..2}}.tar"
    pipeline = wds.DataPipeline(wds.SimpleShardList(urls), expand, wds.map_dict(txt=bytes.decode))
    assert [(sample["__key__"], sample["txt"]) for sample in pipeline] == [
        ("k0", "0"), ("l0", ""), ("k1", "1"), ("l1", ""), ("k2", "2"), ("l2", "")
    ]  # fmt: skip
    first = next(expand([f"{tmp_path}/0.tar"]))
    assert first == {"__key__": "k0", "__url__": f"{tmp_path}/0.tar", "txt": b"0"}


# --- formats in detail -------------------------------------------------------------------------------------------


def pax(records, type=tarfile.XHDTYPE):
    body = b"".join(records)
    return reheadered(member("././@PaxHeader", body, type=type)[:512]) + padded(body)


def test_pax_headers_name_and_size_members(tmp_path):
    huge = reheadered(member("short.x")[:512], at124=b"00000000000\0")  # the header itself says 0 bytes
    archive = pax([b"16 path=o/k.jpg\n", b"10 size=3\n", b"15 comment==\n=\n"]) + huge + padded(b"abc")
    archive += pax([b"10 size=4\n"], tarfile.SOLARIS_XHDTYPE) + huge + padded(b"wxyz") + END
    path = tmp_path / "x.tar"
    path.write_bytes(archive)
    assert plain(check_sound(path)) == [("o/k", {"jpg": b"abc"}), ("short", {"x": b"wxyz"})]


def test_of_several_extension_headers_the_first_counts(tmp_path):
    gnu = member("g" * 101 + ".a", format=GNU)[:1024]
    both = [pax([b"12 path=p.b\n"]) + gnu, gnu + pax([b"12 path=p.b\n"])]
    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(extensions + member("short.c", b"1") for extensions in both) + END)
    assert plain(check_sound(path)) == [("p", {"b": b"1"}), ("g" * 101, {"a": b"1"})]


def test_base_256_sizes_signed_checksums_and_raw_names(tmp_path):
    base256 = reheadered(member("a.x", b"123")[:512], at124=b"\x80" + bytes(8) + b"\0\0\3") + padded(b"123")
    raw = bytearray(member("b.x", b"4")[:512])
    raw[:5] = b"\xff\xfe.y\0"
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(struct.unpack("512b", raw))  # as writers with signed char summed
    path = tmp_path / "x.tar"
    path.write_bytes(base256 + bytes(raw) + padded(b"4") + END)
    assert plain(check_sound(path)) == [("a", {"x": b"123"}), ("\udcff\udcfe", {"y": b"4"})]


def test_old_archives_mark_folders_by_a_slash(tmp_path):
    folder = reheadered(member("d.x/")[:512], at156=b"\0", at124=b"00000001000\0")  # its size means nothing
    file = reheadered(member("d.x/a.y", b"1")[:512], at156=b"\0") + padded(b"1")
    path = tmp_path / "x.tar"
    path.write_bytes(folder + file + END)
    (sample,) = check_sound(path)
    assert (sample.key, sample.ignored) == ("d.x/a", {"not_a_file": 1})


def test_global_headers_may_say_what_does_not_matter(tmp_path):
    path = tmp_path / "x.tar"
    comment = pax([b"20 comment=a commit\n"], tarfile.XGLTYPE)
    path.write_bytes(comment + member("a.x", b"1") + comment + member("b.x", b"2") + END)
    a, b = check_sound(path)
    assert (a.offset, a.next_offset, b.offset) == (1024, 1024 + 1024 + 1024, 1024 + 1024 + 1024)


UNSUPPORTED = {
    "global path": pax([b"12 path=g.x\n"], tarfile.XGLTYPE) + member("b.x"),
    "global size": pax([b"10 size=1\n"], tarfile.XGLTYPE) + member("b.x"),
    "sparse": reheadered(member("b.x")[:512], at156=b"S"),
    "PAX sparse": pax([b"22 GNU.sparse.major=1\n"]) + member("b.x"),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_unsupported_members_raise(what):
    samples, error, _ = read(member("a.x", b"1") + member("aa.x", b"2") + UNSUPPORTED[what] + END)
    assert plain(samples) == [("a", {"x": b"1"})]
    assert (error.reason, error.url) == ("unsupported", "x.tar")


@pytest.mark.parametrize("name", ["a.x", "a.X", "a.__key__", "a.__url__", "a.__local_path__"])
def test_a_second_file_with_one_extension_raises(tmp_path, name):
    path = tmp_path / "x.tar"
    path.write_bytes(member("0.x", b"0") + member("a.x", b"1") + member(name, b"2") + END)
    samples, error, _ = read(path)
    theirs, their_error = by_webdataset(path)
    assert plain(samples) == theirs == [("0", {"x": b"0"})]
    assert (error.reason, error.offset) == ("duplicate", 2048)
    assert their_error is not None


# --- damage ------------------------------------------------------------------------------------------------------

# Three samples of two files; headers at 0, 1024, …; payloads of 300 bytes.
SOUND = b"".join(member(f"{key}.{suffix}", (key + suffix).encode() * 150) for key in "abc" for suffix in "xy") + END
BODY = len(SOUND) - 1024


def zeroed(start, stop):
    return SOUND[:start] + bytes(stop - start) + SOUND[stop:]


DAMAGE = {  # bytes → whole samples that are given, reason, offset
    "cut after a member within a sample": (SOUND[:3072], "a", "not_closed", 3072),
    "cut after the last member of a sample": (SOUND[:2048], "", "not_closed", 2048),  # who knows what else it had
    "cut before the marker": (SOUND[:BODY], "ab", "not_closed", BODY),
    "cut within the marker": (SOUND[: BODY + 100], "ab", "truncated", BODY + 100),
    "cut within a header": (SOUND[: 2048 + 200], "", "truncated", 2048 + 200),
    "cut within the first payload of a sample": (SOUND[: 2048 + 600], "a", "truncated", 2048 + 600),
    "cut within the second payload of a sample": (SOUND[: 3072 + 600], "a", "truncated", 3072 + 600),
    "cut before a payload": (SOUND[: 2048 + 512], "a", "truncated", 2048 + 512),
    "cut within padding": (SOUND[: 2048 + 1000], "a", "truncated", 2048 + 1000),
    "nothing at all": (b"", "", "not_closed", 0),
    "one byte": (b"a", "", "truncated", 1),
    "bad checksum": (SOUND[:2148] + b"!" + SOUND[2149:], "", "bad_header", 2048),
    "bad checksum within a sample": (SOUND[:3072] + b"!" + SOUND[3073:], "a", "bad_header", 3072),
    "not octal": (SOUND[: 2048 + 126] + b"9" + SOUND[2048 + 127 :], "", "bad_header", 2048),
    "header zeroed between samples": (zeroed(2048, 2560), "", "trailing_data", 2560),
    "header zeroed within a sample": (zeroed(3072, 3584), "a", "trailing_data", 3584),
    "joined archives": (SOUND + SOUND, "abc", "trailing_data", len(SOUND)),
    "joined records": (SOUND + bytes(10240) + SOUND, "abc", "trailing_data", len(SOUND) + 10240),
    "garbage after the end": (SOUND + bytes(777) + b"!", "abc", "trailing_data", len(SOUND) + 777),
    "garbage within the marker": (SOUND[: BODY + 600] + b"!" + SOUND[BODY + 601 :], "ab", "trailing_data", BODY + 600),
    "shifted by a byte": (b"\n" + SOUND, "", "bad_header", 0),
    "no tar": (b"<html>not found</html>" * 100, "", "bad_header", 0),
    "PAX header at the end": (SOUND[:BODY] + pax([b"12 path=g.x\n"]) + END, "ab", "truncated", BODY + 1024),
    "PAX header, then nothing": (SOUND[:BODY] + pax([b"12 path=g.x\n"]), "ab", "truncated", BODY + 1024),
    "PAX header cut": (SOUND[:BODY] + pax([b"12 path=g.x\n"])[:600], "ab", "truncated", BODY + 600),
    "PAX record too long": (SOUND[:BODY] + pax([b"99 path=g.x\n"]) + END, "ab", "bad_header", BODY),
    "PAX record too short": (SOUND[:BODY] + pax([b"3 path=g.x\n"]) + END, "ab", "bad_header", BODY),
    "PAX size no number": (SOUND[:BODY] + pax([b"11 size=-1\n"]) + END, "ab", "bad_header", BODY),
    "name too long": (SOUND[:BODY] + member("n" * 5000 + ".x", format=GNU) + END, "ab", "bad_header", BODY + 11 * 512),
}  # fmt: skip


@pytest.mark.parametrize("stored", ["plain", "gzip"])
@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_never_silent(tmp_path, what, stored):
    archive, keys, reason, offset = DAMAGE[what]
    path = tmp_path / "damaged.tar"
    path.write_bytes(gzip.compress(archive) if stored == "gzip" else archive)
    samples, error, reader = read(path)
    assert plain(samples) == plain(read(SOUND)[0])[: len(keys)]
    assert (error.reason, error.url, error.offset) == (reason, str(path), offset)
    assert str(path) in str(error)
    for sample in samples:  # whoever resumes meets the same damage
        assert check_resumes(path, samples, sample, reader).offset == offset
    with pytest.raises(ShardError):
        list(expand([str(path)]))
    if reason != "not_closed":
        assert read(path, strict_end=False)[1].reason == reason


@pytest.mark.parametrize("end", [1024, 3072, BODY])
def test_an_archive_that_was_never_closed_can_be_accepted(end):
    samples, error, reader = read(SOUND[:end], strict_end=False)
    assert (error, reader.unclosed) == (None, True)
    assert "".join(suffix for sample in samples for suffix in sample.files) == "xyxyxy"[: end // 1024]
    for sample in samples:
        check_resumes(SOUND[:end], samples, sample, reader, strict_end=False)


@pytest.mark.parametrize("stored", ["plain", "gzip", "skipped"])
@pytest.mark.parametrize("size", [1 << 33, 1 << 62, (1 << 87) - 1])
def test_a_forged_size_allocates_nothing(tmp_path, size, stored):
    forged = reheadered(member("b.x")[:512], at124=b"\x80" + size.to_bytes(11, "big"))
    archive = member("a.x", b"1") + forged + bytes(3000)
    path = tmp_path / "x.tar"
    path.write_bytes(gzip.compress(archive) if stored == "gzip" else archive)
    tracemalloc.start()
    samples, error, _ = read(path, wants=(lambda ordinal: ordinal != 1) if stored == "skipped" else None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [sample.key for sample in samples] == ["a"]
    assert error.reason == "truncated"
    assert peak < 20e6


@pytest.mark.parametrize("type", [b"x", b"g", b"L", b"K"])
def test_forged_sizes_of_extension_headers(type):
    forged = reheadered(member("b.x")[:512], at124=b"77777777777\0", at156=type)
    assert read(SOUND[:BODY] + forged + bytes(3000))[1].reason == "bad_header"


def test_a_sample_read_again_must_be_the_same():
    (a, b, _), _, _ = read(SOUND)
    for data in (SOUND[a.offset : b.offset + b.nbytes], b"", SOUND[a.offset : a.offset + a.nbytes] + END):
        with pytest.raises(ShardError, match="replaced") as raised:
            read_sample(data, "x.tar", offset=a.offset)
        assert raised.value.reason == "changed"
    with pytest.raises(ShardError):
        read_sample(SOUND[a.offset + 512 : b.offset], "x.tar")


# --- properties --------------------------------------------------------------------------------------------------

few = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
odd_keys = ["d.e/f", "__a", "__m__", "__m__/a", "d/", "é", "n" * 95, LONG, "d/" * 45 + "k", ".h", "n\n"]
keys = st.sampled_from(["a", "b", "d/a", *odd_keys])
suffixes = st.sampled_from(["", ".x", ".X", ".y", ".0.jpg", ".1.jpg", ".txt", ".é", ".", "..x", ".x/y", ".z__", ".n\n"])


@st.composite
def members(draw):
    name = draw(keys) + draw(suffixes)
    data = draw(st.sampled_from([b"", b"1", b"2" * 511, b"3" * 512, b"4" * 513, b"5" * 3000]))
    format = draw(st.sampled_from([GNU, PAX] if len(name.encode()) > 100 else [GNU, PAX, USTAR]))
    type = draw(st.sampled_from([b"0"] * 12 + [b"\0", b"7", b"5", b"2", b"1", b"6", b"V"]))
    if type in (b"1", b"2", b"5", b"6") or (type == b"\0" and name.endswith("/")):
        data = b""  # links, folders and pipes have no payload, whatever size is stated
    linkname = "l" * draw(st.sampled_from([1, 50 if format == USTAR else 150]))
    return member(name, data, format=format, type=type, linkname=linkname, mtime=draw(st.sampled_from([0, 1.5])))


archives = st.lists(members(), max_size=14).map(b"".join)


@few
@given(archive=archives, padding=st.sampled_from([0, 512, 9000]), compress=st.booleans())
def test_random_archives_read_as_webdataset_reads_them(tmp_path, archive, padding, compress):
    path = tmp_path / "x.tar"
    archive += END + bytes(padding)
    path.write_bytes(gzip.compress(archive) if compress else archive)
    theirs, their_error = by_webdataset(path)
    if their_error is None:
        assert plain(check_sound(path)) == theirs
    else:
        samples, error, _ = read(path)
        assert (plain(samples), error.reason) == (theirs, "duplicate")


@few
@given(archive=archives, stride=st.integers(1, 4), end=st.sampled_from([END, b""]))
def test_sharing_by_stride_gives_each_sample_once(archive, stride, end):
    samples, error, reader = read(archive + end, strict_end=False)
    total = sum((Counter(sample.ignored) for sample in samples), Counter(reader.ignored))
    merged = []
    for phase in range(stride):
        options = {"wants": lambda ordinal, phase=phase: ordinal % stride == phase, "strict_end": False}
        share, share_error, share_reader = read(archive + end, **options)
        assert share_reader.ordinal == reader.ordinal
        assert (share_error and share_error.offset) == (error and error.offset)
        if not error:
            assert sum((Counter(sample.ignored) for sample in share), Counter(share_reader.ignored)) == total
        for sample in share:
            check_resumes(archive + end, share, sample, share_reader, **options)
        merged += share
    merged.sort(key=lambda sample: sample.ordinal)
    assert [replace(sample, ignored={}) for sample in merged] == [replace(sample, ignored={}) for sample in samples]


@few
@given(archive=archives, data=st.data())
def test_a_cut_archive_gives_whole_samples_and_an_error(archive, data):
    samples, _, _ = read(archive + END)
    cut = data.draw(st.integers(0, len(archive)))
    found, error, _ = read((archive + END)[:cut])
    assert error is not None
    assert plain(found) == plain(samples)[: len(found)]
    there = sum(sample.offset + sample.nbytes <= cut for sample in samples)
    assert len(found) >= there - 1  # the last one may have gone on


@few
@given(data=st.data(), value=st.integers(1, 255))
def test_a_byte_changed_in_a_header_is_found(data, value):
    at = data.draw(st.sampled_from(range(0, BODY, 1024))) + data.draw(st.integers(0, 511))
    archive = SOUND[:at] + bytes([SOUND[at] ^ value]) + SOUND[at + 1 :]
    samples, error, _ = read(archive)
    assert plain(samples) == plain(read(SOUND)[0])[: len(samples)]
    if error is None:  # the two bytes that end the checksum field carry nothing
        assert at % 512 in (154, 155)
        assert len(samples) == 3


@few
@given(archive=archives, data=st.data())
def test_random_changes_raise_nothing_but_shard_errors(archive, data):
    changed = bytearray(archive + END)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    samples, _, _ = read(bytes(changed), strict_end=data.draw(st.booleans()))
    assert sum(sample.nbytes for sample in samples) <= len(changed)


@few
@given(garbage=st.binary(max_size=2000), kind=st.sampled_from(b"0xgLKS5\0"))
def test_garbage_behind_a_sound_header(garbage, kind):
    read(reheadered(member("a.x", garbage)[:512], at156=bytes([kind])) + garbage)
    read(garbage)


@few
@given(data=st.data(), value=st.integers(1, 255))
def test_a_byte_changed_in_gzip_is_found(tmp_path, data, value):
    packed = bytearray(gzip.compress(SOUND))
    at = data.draw(st.integers(2, len(packed) - 1))
    packed[at] ^= value
    path = tmp_path / "x.tar.gz"
    path.write_bytes(packed)
    samples, error, _ = read(path)
    if error is None:  # time stamp and the like
        assert plain(samples) == plain(read(SOUND)[0])
