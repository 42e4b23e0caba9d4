"""The local copies of shards: never a byte that is not the storage's, whatever happens to those who make them."""

import http.server
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdspack import ConfigError, DataConfig, ShardError, TileLayout
from wdspack.config import Reading
from wdspack.storage import Access, open_shard
from wdspack.storage.access import Budget

SIZE = 300_000


class Objects(http.server.BaseHTTPRequestHandler):
    """Serves bytes by name, with ranges and ETags, at `rate` bytes a second."""

    contents: ClassVar[dict[str, bytes]] = {}
    sent: ClassVar[dict[str, int]] = {}
    rate: ClassVar[float] = 0
    tagged: ClassVar[bool] = True

    def do_GET(self) -> None:
        name, whole = self.path[1:], self.contents[self.path[1:]]
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        body = whole[int(first) : int(last) + 1]
        self.send_response(206)
        if self.tagged:
            self.send_header("ETag", f'"{hash(whole)}"')
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.sent[name] = self.sent.get(name, 0) + len(body)
        for start in range(0, len(body), 10_000):
            self.wfile.write(body[start : start + 10_000])
            if self.rate:
                time.sleep(10_000 / self.rate)

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):  # a reader was killed
            super().handle()


@pytest.fixture
def store() -> Iterator[str]:
    """The URL under which `Objects.contents` are; a.tar, b.tar … are there."""
    with served() as url:
        yield url


@contextmanager
def served() -> Iterator[str]:
    Objects.contents = {f"{name}.tar": os.urandom(SIZE) for name in "abcdef"}
    Objects.sent, Objects.rate = {}, 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Objects) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def caching(folder: Path, limit: int = 10 * SIZE) -> Access:
    return Access(Reading(cache_dir=str(folder), cache_bytes=limit, prefetch_bytes=1 << 20))


def read(url: str, access: Access) -> bytes:
    with open_shard(url, access=access) as stream:
        return stream.read(10 * SIZE)


def copies(folder: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in folder.glob("*.shard"))


def test_a_second_reading_costs_one_request_and_no_shard(store, tmp_path):
    first, second = caching(tmp_path), caching(tmp_path)
    assert read(store + "a.tar", first) == read(store + "a.tar", second) == Objects.contents["a.tar"]
    assert (first.counts["cache_misses"], first.counts["cache_hits"]) == (1, 0)
    assert (second.counts["cache_misses"], second.counts["cache_hits"]) == (0, 1)
    assert (second.counts["requests"], second.counts["bytes"]) == (1, 1)  # is it still the same?
    assert copies(tmp_path) == [Objects.contents["a.tar"]]
    with open_shard(store + "a.tar", start=1000, access=caching(tmp_path)) as stream:  # from the copy, too
        assert stream.read(5) == Objects.contents["a.tar"][1000:1005]
    assert Objects.sent["a.tar"] == SIZE + 3


def test_a_replaced_shard_is_read_anew(store, tmp_path):
    old = Objects.contents["a.tar"]
    assert read(store + "a.tar", caching(tmp_path)) == old
    Objects.contents["a.tar"] = new = os.urandom(SIZE)  # of the same size
    assert read(store + "a.tar", caching(tmp_path)) == new
    assert read(store + "a.tar", caching(tmp_path)) == new
    Objects.contents["a.tar"] = old
    assert read(store + "a.tar", caching(tmp_path)) == old


@pytest.mark.parametrize("start", [0, 1000])
def test_a_shard_that_is_not_read_to_its_end_leaves_no_copy(store, tmp_path, start):
    with open_shard(store + "a.tar", start=start, access=caching(tmp_path)) as stream:
        assert stream.read(100_000) == Objects.contents["a.tar"][start : start + 100_000]
    assert not [path for path in tmp_path.iterdir() if path.name != ".lock"]


def test_the_least_recently_used_go_first(store, tmp_path):
    limit = 3 * SIZE + SIZE // 2
    for name in "abc":
        read(f"{store}{name}.tar", caching(tmp_path, limit))
        time.sleep(0.01)
    read(f"{store}a.tar", caching(tmp_path, limit))  # so b is the oldest
    access = caching(tmp_path, limit)
    read(f"{store}d.tar", access)
    assert access.counts["cache_evicted"] == 1
    assert copies(tmp_path) == sorted(Objects.contents[f"{name}.tar"] for name in "acd")


def test_what_is_larger_than_the_cache_is_streamed(store, tmp_path):
    access = caching(tmp_path, SIZE - 1)
    for _ in range(2):
        assert read(store + "a.tar", access) == Objects.contents["a.tar"]
    assert copies(tmp_path) == []
    assert access.counts["cache_misses"] == 2


@given(reads=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=12), room=st.integers(1, 4))
def test_any_order_of_reading(tmp_path_factory, reads, room):
    """Against a model: an LRU list of whole reads. True: the shard is read whole."""
    folder, limit = tmp_path_factory.mktemp("cache"), room * SIZE
    model: list[str] = []
    with served() as url:
        for name, whole in reads:
            access = caching(folder, limit)
            with open_shard(f"{url}{name}.tar", access=access) as stream:
                wanted = SIZE if whole else SIZE // 2
                assert stream.read(wanted) == Objects.contents[f"{name}.tar"][:wanted]
            assert access.counts["cache_hits"] == (name in model)
            if name in model:
                model.remove(name)
                model.append(name)
            else:
                while len(model) >= room:  # room is made before anything is known of how far it will be read
                    model.pop(0)
                if whole:
                    model.append(name)
            assert copies(folder) == sorted(Objects.contents[f"{kept}.tar"] for kept in model)
            time.sleep(0.002)  # times of use must differ


def test_copies_damaged_by_others_are_not_used(store, tmp_path):
    read(store + "a.tar", caching(tmp_path))
    (copy,) = tmp_path.glob("*.shard")
    os.truncate(copy, SIZE - 1)
    assert read(store + "a.tar", caching(tmp_path)) == Objects.contents["a.tar"]
    assert copies(tmp_path) == [Objects.contents["a.tar"]]


def reader(url: str, folder: Path, *, before: str = "") -> subprocess.Popen[bytes]:
    """A process that reads a shard through the cache and prints its length."""
    code = f"""
        {before}
        from wdspack.config import Reading
        from wdspack.storage import Access, open_shard
        access = Access(Reading(cache_dir={str(folder)!r}, cache_bytes={10 * SIZE}))
        with open_shard({url!r}, access=access) as stream:
            print(len(stream.read(10**9)), dict(access.counts))
    """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)


@pytest.mark.parametrize("after", [0, 50_000, 250_000])
def test_a_killed_process_leaves_nothing_that_is_served(store, tmp_path, after):
    Objects.rate = 300_000
    with reader(store + "a.tar", tmp_path) as process:
        while not (parts := list(tmp_path.glob("*.part"))):
            time.sleep(0.005)
        time.sleep(after / Objects.rate)
        process.send_signal(signal.SIGKILL)
    assert [path.suffix for path in tmp_path.iterdir() if path.suffix] == [".part"]
    assert parts[0].exists()
    Objects.rate = 0
    access = caching(tmp_path)
    assert read(store + "a.tar", access) == Objects.contents["a.tar"]
    assert copies(tmp_path) == [Objects.contents["a.tar"]]
    assert not list(tmp_path.glob("*.part"))


def test_processes_that_read_one_shard_side_by_side(store, tmp_path):
    Objects.rate = 400_000
    processes = [reader(store + "a.tar", tmp_path) for _ in range(3)]
    said = [process.communicate()[0].decode() for process in processes]
    assert all(line.startswith(str(SIZE)) for line in said)
    assert copies(tmp_path) == [Objects.contents["a.tar"]]
    assert not list(tmp_path.glob("*.part"))


def test_a_disk_that_is_full_ends_the_copy_and_not_the_stream(store, tmp_path):
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n        "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"  # what a file may grow to
    with reader(store + "a.tar", tmp_path, before=limit) as process:
        assert process.stdout
        said = process.stdout.read().decode()
    assert said.startswith(str(SIZE))
    assert "'cache_failed': 1" in said
    assert copies(tmp_path) == []
    assert not list(tmp_path.glob("*.part"))


def test_a_copy_taken_away_by_a_cleaner_is_not_mistaken_for_anothers(store, tmp_path):
    with open_shard(store + "a.tar", access=caching(tmp_path)) as first:
        assert first.read(100_000) == Objects.contents["a.tar"][:100_000]
        for part in tmp_path.glob("*.part"):
            part.unlink()
        with open_shard(store + "a.tar", access=caching(tmp_path)) as second:
            assert second.read(10) == Objects.contents["a.tar"][:10]
            assert first.read(SIZE) == Objects.contents["a.tar"][100_000:]
            assert copies(tmp_path) == []
            assert second.read(SIZE) == Objects.contents["a.tar"][10:]
    assert copies(tmp_path) == [Objects.contents["a.tar"]]


def test_a_forked_process_leaves_its_parents_copy_alone(store, tmp_path):
    with open_shard(store + "a.tar", access=caching(tmp_path)) as stream:
        stream.read(100_000)
        if not (pid := os.fork()):
            try:
                stream.source.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert len(list(tmp_path.glob("*.part"))) == 1
        stream.read(SIZE)
    assert copies(tmp_path) == [Objects.contents["a.tar"]]


def test_a_server_that_does_not_say_which_version_it_sends_is_not_cached(store, tmp_path, monkeypatch):
    monkeypatch.setattr(Objects, "tagged", False)
    for _ in range(2):
        Objects.contents["a.tar"] = os.urandom(SIZE)
        assert read(store + "a.tar", caching(tmp_path)) == Objects.contents["a.tar"]
    assert copies(tmp_path) == []


def test_a_shard_that_shrinks_is_noticed_without_a_version(store, monkeypatch):
    monkeypatch.setattr(Objects, "tagged", False)
    monkeypatch.setattr(Budget, "LARGEST", 50_000)
    monkeypatch.setattr(Budget, "SMALLEST", 50_000)
    with open_shard(store + "a.tar", access=Access(Reading(prefetch_bytes=100_000))) as stream:
        stream.read(10)
        Objects.contents["a.tar"] = os.urandom(SIZE - 1000)
        with pytest.raises(ShardError, match="replaced while it was read"):
            stream.read(SIZE)


def test_settings_that_cannot_be(store, tmp_path):
    config = DataConfig(sources="x.tar", tokenizer="t", layout=TileLayout())
    for settings in ({"cache_dir": "x"}, {"cache_bytes": 5}):
        with pytest.raises(ConfigError, match="give both"):
            config.replace(**settings)
    assert config.replace(cache_dir=tmp_path, cache_bytes=5).reading.cache_dir == str(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        read(store + "a.tar", caching(tmp_path / "file" / "folder"))
