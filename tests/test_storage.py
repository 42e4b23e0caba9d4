"""Bytes by URL: the same from every store, with every failure a `ShardError` that says what to do."""

import gzip
import http.server
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from wdspack.config import Reading
from wdspack.errors import ConfigError, ShardError
from wdspack.storage import Access, Successive, list_files, open_shard, read_file, read_ranges, stat_shard
from wdspack.storage.access import Budget

DATA = bytes(range(256)) * 1000 + b"the end"
PACKED = gzip.compress(DATA[:100_000]) + gzip.compress(DATA[100_000:])  # two members


class Store(AbstractFileSystem):
    """A store like any that fsspec knows: one file of DATA, read by ranges. What is in `failures` is raised first."""

    protocol = "store"
    cachable = False
    failures: ClassVar[list[Exception]] = []
    ranges: ClassVar[list[tuple[int, int]]] = []
    mtime = 1

    def info(self, path, **_):
        return {"name": path, "size": len(DATA), "type": "file", "mtime": Store.mtime}

    def _open(self, path, mode="rb", **kwargs):
        return StoreFile(self, path, mode, size=len(DATA), **kwargs)


class StoreFile(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        Store.ranges.append((start, end))
        if Store.failures:
            raise Store.failures.pop(0)
        return DATA[start:end]


fsspec.register_implementation("store", Store, clobber=True)


@pytest.fixture
def store():
    Store.failures, Store.ranges, Store.mtime = [], [], 1
    return Store


@contextmanager
def recorded():
    """The ranges that are requested of memory://, as they come."""
    requests = []

    def cat_file(fs, path, start=None, end=None, **kwargs):
        requests.append((start, end))
        return original(fs, path, start, end, **kwargs)

    original = MemoryFileSystem.cat_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", cat_file)
        yield requests


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, with byte ranges or saying that it does not."""

    def __init__(self, *args, ranges, **kwargs):
        self.ranges = ranges
        super().__init__(*args, **kwargs)

    def end_headers(self):
        self.send_header("Accept-Ranges", "bytes" if self.ranges else "none")
        super().end_headers()

    def do_GET(self):
        path, wanted = Path(self.translate_path(self.path)), self.headers.get("Range")
        if not (self.ranges and wanted and path.is_file()):
            return super().do_GET()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        whole = path.read_bytes()
        body = whole[int(first) : int(last) + 1]
        if not body:
            self.send_response(416)
            self.end_headers()
            return None
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *_):
        pass


@pytest.fixture(params=["path", "relative", "file", "memory", "http", "http without ranges"])
def base(request, tmp_path, monkeypatch):
    """The URL of a folder with x.tar (plain) and packed.tar (gzip), in each kind of store."""
    files = {"x.tar": DATA, "packed.tar": PACKED, "empty.tar": b""}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    if request.param == "memory":
        fsspec.filesystem("memory").pipe({f"/{tmp_path.name}/{name}": data for name, data in files.items()})
        yield f"memory://{tmp_path.name}/"
    elif request.param.startswith("http"):
        handler = partial(Server, directory=tmp_path, ranges=request.param == "http")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            yield f"http://127.0.0.1:{server.server_port}/"
            server.shutdown()
    else:
        monkeypatch.chdir(tmp_path.parent)
        yield {"path": f"{tmp_path}/", "relative": f"{tmp_path.name}/", "file": f"file://{tmp_path}/"}[request.param]


@pytest.mark.parametrize("name", ["x.tar", "packed.tar"])
def test_every_store_gives_the_same_stream(base, name):
    for start in (0, 1, 99_999, 200_000, len(DATA)):
        with open_shard(base + name, start=start) as stream:
            assert stream.compressed == (name == "packed.tar")
            assert stream.position == start
            assert stream.read(3) == DATA[start : start + 3]
            assert stream.skip(100) == len(DATA[start + 3 : start + 103])
            assert stream.read(0) == b""
            assert stream.read(10**6) == DATA[start + 103 :]
            assert (stream.read(5), stream.skip(5)) == (b"", 0)
            assert stream.position == len(DATA)


@pytest.mark.parametrize("name", ["x.tar", "packed.tar"])
def test_every_store_gives_the_same_ranges(base, name):
    ranges = [(200_000, 50), (0, 10), (5, 10), (199_990, 9), (5, 3), (len(DATA) - 7, 7)]
    assert read_ranges(base + name, ranges) == [DATA[start : start + n] for start, n in ranges]
    assert read_ranges(base + name, []) == []


def test_an_empty_file_is_an_empty_stream(base):
    with open_shard(base + "empty.tar") as stream:
        assert (stream.read(512), stream.skip(1), stream.compressed) == (b"", 0, False)


def test_a_missing_shard(base):
    for use in (open_shard, partial(open_shard, start=5), partial(read_ranges, ranges=[(0, 1)]), read_file):
        with pytest.raises(ShardError, match=r"no\.tar: not found") as raised:
            use(base + "no.tar")
        assert (raised.value.reason, raised.value.url) == ("missing", base + "no.tar")


@pytest.mark.parametrize("name", ["x.tar", "packed.tar"])
def test_a_shard_shorter_than_it_was(base, name):
    with pytest.raises(ShardError, match="ends before") as raised:
        open_shard(base + name, start=len(DATA) + 1)
    assert (raised.value.reason, raised.value.offset) == ("truncated", len(DATA))
    with pytest.raises(ShardError) as raised:
        read_ranges(base + name, [(0, 5), (len(DATA) - 5, 6)])
    assert (raised.value.reason, raised.value.offset) == ("truncated", len(DATA))


def test_a_shard_that_cannot_be_read(tmp_path, store):
    for use, url in (
        (open_shard, str(tmp_path)),
        (partial(open_shard, start=5), "store://x.tar"),
        (partial(read_ranges, ranges=[(0, 1)]), "store://x.tar"),
        (read_file, "store://x.tar"),
    ):
        store.failures = [ValueError("no such thing")]
        with pytest.raises(ShardError, match="cannot be read") as raised:
            use(url)
        assert (raised.value.reason, raised.value.url) == ("unreadable", url)
    assert "no such thing" in str(raised.value)


def test_a_scheme_or_option_that_does_not_exist():
    for use in (open_shard, read_file, list_files, stat_shard, partial(read_ranges, ranges=[(0, 1)])):
        with pytest.raises(ConfigError, match="nosuchscheme"):
            use("nosuchscheme://x.tar")
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'endpoint'.*check .*storage_options"):
        read_file(
            "s3://bucket/x.tar",
            storage_options={
                "endpoint": "http://127.0.0.1:1",
            },
        )


@pytest.mark.parametrize("end", [1, 2, 9, 11, 200, len(PACKED) - 1, len(PACKED) - 9])
def test_a_cut_gzip(tmp_path, end):
    (tmp_path / "x.tar").write_bytes(PACKED[:end])
    if end == 1:  # too short to be recognised
        with open_shard(str(tmp_path / "x.tar")) as stream:
            assert stream.read(10) == PACKED[:1]
        return
    found = []
    with open_shard(str(tmp_path / "x.tar")) as stream:
        with pytest.raises(ShardError, match="broken gzip") as raised:
            found.extend(iter(partial(stream.read, 512), b""))
        assert (raised.value.reason, raised.value.offset) == ("bad_gzip", stream.position)
    assert b"".join(found) == DATA[: stream.position]


def test_ranges_of_a_cut_gzip(tmp_path):
    (tmp_path / "x.tar").write_bytes(PACKED[:200])
    with pytest.raises(ShardError, match="broken gzip"):
        read_ranges(str(tmp_path / "x.tar"), [(len(DATA) - 1, 1)])


def test_gzip_with_a_wrong_checksum(tmp_path):
    (tmp_path / "x.tar").write_bytes(PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:])
    with open_shard(str(tmp_path / "x.tar")) as stream:
        assert stream.read(len(DATA)) == DATA
        with pytest.raises(ShardError, match="broken gzip"):
            stream.read(1)


def test_a_store_that_fails_for_a_while(store):
    store.failures = [TimeoutError("too busy"), ConnectionResetError("gone"), OSError("no route"), EOFError]
    store.failures.pop()
    access = Access()
    with open_shard("store://x.tar", access=access) as stream:
        assert stream.read(len(DATA)) == DATA
    del access.counts["waited_ms"]
    assert access.counts == {
        "requests": 4 + 1,  # and one to see that it is the same file in the end
        "bytes": len(DATA),
        "retried_stalled": 1,
        "retried_reset": 2,
    }


def test_a_store_that_fails_for_good(store):
    store.failures = [ConnectionResetError("gone")] * 1000
    access = Access(Reading(retry_seconds=0.5))
    with pytest.raises(ShardError, match=r"gone.* attempts in \d s without a byte") as raised:
        open_shard("store://x.tar", access=access)
    assert raised.value.reason == "unreadable"
    assert access.counts["retried_reset"] >= 1


@pytest.mark.parametrize("when", [0, 5, 10**6])
def test_a_file_replaced_while_it_is_read_through_any_store(store, monkeypatch, when):
    """Such stores cannot be told which version is meant: the file's end is held back until it proves to be the same."""
    monkeypatch.setattr(Budget, "LARGEST", 50_000)
    monkeypatch.setattr(Budget, "SMALLEST", 50_000)
    with open_shard("store://x.tar", access=Access(Reading(prefetch_bytes=100_000))) as stream:
        assert stream.read(when) == DATA[:when]
        store.mtime = 2
        if when < len(DATA):
            with pytest.raises(ShardError, match="replaced while it was read") as raised:
                list(iter(partial(stream.read, 10_000), b""))
            assert raised.value.reason == "changed"
            assert stream.position < len(DATA)


class Many(AbstractFileSystem):
    """A store of files as long as their names say: many://12345 holds 12,345 bytes; below 0 it is missing."""

    protocol = "many"
    cachable = False

    def info(self, path, **_):
        if int(self._strip_protocol(path)) < 0:
            raise FileNotFoundError(path)
        return {"name": path, "size": int(self._strip_protocol(path)), "type": "file", "mtime": 1}

    def cat_file(self, path, start=None, end=None, **_):
        return DATA[: int(self._strip_protocol(path))][start:end]


fsspec.register_implementation("many", Many, clobber=True)


@given(
    lanes=st.lists(st.lists(st.tuples(st.integers(-1, 40), st.booleans()), max_size=12), min_size=1, max_size=3),
    budget=st.integers(1, 60_000),
    smallest=st.integers(500, 6000),
)
@settings(max_examples=40, deadline=None)
def test_shards_that_are_begun_before_their_turn_are_what_they_would_be(lanes, budget, smallest):
    """Several readers with one budget, shards of any size, some missing, some left before their end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "LARGEST", 6000)
        patch.setattr(Budget, "SMALLEST", smallest)
        access = Access(Reading(prefetch_bytes=budget))

        def read(shards):
            urls = [f"many://{size * 1000}" for size, _ in shards]
            reader = Successive(iter(urls), access=access)
            for url, (size, whole) in zip(urls, shards, strict=True):
                if size < 0:
                    with pytest.raises(ShardError, match="many:"):
                        reader.open(url)
                    continue
                with reader.open(url) as stream:
                    wanted = size * 1000 if whole else size * 400
                    assert stream.read(wanted) == DATA[:wanted]
                    assert not whole or stream.read(1) == b""
            reader.close()

        with ThreadPoolExecutor(len(lanes)) as pool:
            for task in [pool.submit(read, shards) for shards in lanes]:
                task.result(timeout=60)
        settled = time.monotonic() + 5
        while access.budget._readers and time.monotonic() < settled:  # the event loop closes what was left
            time.sleep(0.001)
        assert access.budget._used == 0
        assert not access.budget._by_reader


def test_shards_can_only_be_opened_in_the_order_that_was_said(base):
    shards = Successive(iter([base + "x.tar", base + "y.tar"]), access=Access())
    with pytest.raises(ValueError, match=r"x.tar comes next, not .*y.tar"):
        shards.open(base + "y.tar")


@pytest.mark.parametrize("how", ["appended", "moved"])
def test_a_local_file_written_to_while_it_is_read(tmp_path, how):
    path = tmp_path / "x.tar"
    path.write_bytes(DATA)
    with open_shard(str(path)) as stream:
        assert stream.read(1000) == DATA[:1000]
        if how == "moved":  # over it: what was opened is still whole
            (tmp_path / "new").write_bytes(b"other")
            (tmp_path / "new").rename(path)
            assert stream.read(10**6) == DATA[1000:]
            return
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(ShardError, match="replaced while it was read") as raised:
            list(iter(partial(stream.read, 10_000), b""))
    assert raised.value.reason == "changed"


def test_streams_of_one_shard_are_independent(base):
    with open_shard(base + "x.tar") as one, open_shard(base + "x.tar", start=700) as other:
        for _ in range(5):
            one.read(1000)
            other.read(300)
        assert one.read(10) == DATA[5000:5010]
        assert other.read(10) == DATA[2200:2210]


def test_descriptors_are_closed(tmp_path):
    (tmp_path / "x.tar").write_bytes(PACKED)
    (tmp_path / "y.tar").write_bytes(PACKED[:50])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        open_shard(str(tmp_path / "x.tar")).close()
        with pytest.raises(ShardError):
            open_shard(str(tmp_path / "x.tar"), start=10**9)
        with pytest.raises(ShardError):
            open_shard(str(tmp_path / "y.tar"), start=10**5)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- servers that send whole files only --------------------------------------------------------------------------


class Whole(http.server.BaseHTTPRequestHandler):
    """Sends all of `content`, whatever is asked for; breaks the connection off or stalls as `faults` say."""

    content: ClassVar[bytes] = b""
    tag: ClassVar[str] = '"one"'
    faults: ClassVar[list[tuple[str, int]]] = []
    length: ClassVar[bool] = True

    def do_GET(self):
        kind, after = Whole.faults.pop(0) if Whole.faults else ("", len(self.content))
        self.send_response(200)
        if self.tag:
            self.send_header("ETag", self.tag)
        if self.length:
            self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[:after])
        self.wfile.flush()
        if kind == "stall":
            time.sleep(3)
        if kind == "replaced":
            Whole.content = Whole.content[::-1]
            Whole.tag = '"two"' if self.tag else ""

    def handle(self):
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, *_):
        pass


@pytest.fixture
def whole():
    Whole.content, Whole.tag, Whole.faults, Whole.length = random.Random(1).randbytes(7_000_000), '"one"', [], True
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Whole) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}/x.tar"
        server.shutdown()


@pytest.mark.parametrize("length", [True, False])
def test_a_server_without_ranges_is_read_through(whole, tmp_path, length):
    Whole.length = length
    for reading in (Reading(), Reading(cache_dir=str(tmp_path), cache_bytes=10**9)):
        access = Access(reading)
        with open_shard(whole, access=access) as stream:
            assert stream.read(10**8) == Whole.content
        assert access.counts["bytes"] == len(Whole.content)
    with open_shard(whole, start=6_000_000) as stream:
        assert stream.read(10**8) == Whole.content[6_000_000:]
    assert read_file(whole) == Whole.content
    assert read_ranges(whole, [(5_500_000, 10), (3, 4)]) == [Whole.content[5_500_000:5_500_010], Whole.content[3:7]]


def test_a_server_without_ranges_that_breaks_off_and_stalls(whole):
    access = Access(Reading(stall_seconds=0.5))
    Whole.faults = [("", 10), ("broken", 2_000_000), ("stall", 5_000_000), ("broken", 0)]  # first, ranges are asked for
    with open_shard(whole, access=access) as stream:
        assert stream.read(10**8) == Whole.content
    retried = {why: n for why, n in access.counts.items() if why.startswith("retried")}
    assert sum(retried.values()) >= 2
    assert retried["retried_stalled"] == 1


def test_a_file_replaced_on_a_server_without_ranges(whole):
    Whole.faults = [("", 7_000_000), ("replaced", 2_000_000)]  # the first answer only shows that there are no ranges
    with open_shard(whole) as stream, pytest.raises(ShardError, match="replaced while it was read") as raised:
        stream.read(10**8)
    assert raised.value.reason == "changed"


# --- requests ----------------------------------------------------------------------------------------------------


def test_neighbouring_ranges_share_a_request():
    fsspec.filesystem("memory").pipe("/near/x.tar", DATA)
    ranges = [(1000, 100), (1200, 100), (100_000, 50), (100_060, 40), (101_000, 50)]
    with recorded() as requests:
        found = read_ranges("memory://near/x.tar", ranges, gap=5000)
    assert found == [DATA[start : start + n] for start, n in ranges]
    # the first three hold 100 bytes unasked for of 300, then 10 of 100; joining the last would make it 910 of 1,050
    assert requests == [(0, 2), (1000, 1300), (100_000, 100_100), (101_000, 101_050)]


def test_a_gzip_shard_is_read_once():
    fsspec.filesystem("memory").pipe("/once/x.tar.gz", PACKED)
    ranges = [(200_000, 5), (3, 5)]
    with recorded() as requests:
        assert read_ranges("memory://once/x.tar.gz", ranges) == [DATA[start : start + n] for start, n in ranges]
    assert requests == [(0, 2), (None, None)]  # to see that it is gzip; the rest is one stream


@given(
    ranges=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), min_size=1, max_size=30),
    gap=st.sampled_from([0, 50, 10**6]),
)
def test_at_most_twice_the_bytes_are_requested(ranges, gap):
    fsspec.filesystem("memory").pipe("/twice/x.tar", DATA)
    with recorded() as requests:
        found = read_ranges("memory://twice/x.tar", ranges, gap=gap)
    assert found == [DATA[start : start + n] for start, n in ranges]
    wanted = {byte for start, n in ranges for byte in range(start, start + n)}
    spans = requests[1:]
    assert sum(end - start for start, end in spans) <= 2 * len(wanted)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


# --- listing -----------------------------------------------------------------------------------------------------


def test_listing_keeps_the_form_of_the_pattern(base):
    if base.startswith("http"):
        assert list_files(base + "*.tar") == [base + name for name in ("empty.tar", "packed.tar", "x.tar")]
        return
    names = list_files(base + "*.tar")
    assert [name.rpartition("/")[2] for name in names] == ["empty.tar", "packed.tar", "x.tar"]
    assert [read_file(name) for name in names] == [b"", PACKED, DATA]
    assert all(name.startswith(base.replace("memory://", "memory:///")) for name in names)
    assert list_files(base + "[x]*") == names[2:]
    assert list_files(base + "*.zip") == []


def test_listing_passes_over_folders(tmp_path):
    (tmp_path / "a.tar").mkdir()
    (tmp_path / "b.tar").touch()
    assert list_files(f"{tmp_path}/*.tar") == [f"{tmp_path}/b.tar"]
