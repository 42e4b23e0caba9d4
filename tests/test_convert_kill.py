"""Conversion killed with -9, at any time, and run again: the same shards, and none made twice."""

import multiprocessing
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import MadeUp
from test_convert import contents

from wdspack.convert import LocalExecutor, Options, convert
from wdspack.errors import WdspackError

READER = MadeUp((40, 90, 0, 70, 100), bad=11, cycle=280)
SLOW = MadeUp((40, 90, 0, 70, 100), bad=11, cycle=280, pause=0.0005)  # 0.15 s and more
PLANS = {
    "in order": Options(per_shard=17),
    "shuffled": Options(per_shard=17, shuffle=1),
    "shuffled, by id": Options(per_shard=17, shuffle=1, key="id"),
}


def work(out: str, options: Options, workers: int) -> None:
    convert(SLOW, out, options, executor=LocalExecutor(workers), max_rejects=1.0, memory=30_000)


def start(out: Path, options: Options, workers: int = 1) -> multiprocessing.Process:
    """Converts in a process of its own, which is there at once: its server has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["test_convert_kill"])
    process = context.Process(target=work, args=(str(out), options, workers))
    process.start()
    return process


def made(out: Path) -> dict[str, tuple[int, int]]:
    """What tells whether a shard is still the same file."""
    found = [(path.name, path.stat()) for path in out.glob("*.tar")]
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What each plan comes to when it is left alone."""
    found = {}
    for name, options in PLANS.items():
        out = tmp_path_factory.mktemp("whole")
        convert(READER, str(out), options, max_rejects=1.0)
        found[name] = contents(out)
    return found


@settings(max_examples=15)
@given(name=st.sampled_from(sorted(PLANS)), delays=st.lists(st.floats(0, 0.6), min_size=1, max_size=4))
def test_killed_at_any_time_it_goes_on(tmp_path_factory, whole, name, delays):
    out = tmp_path_factory.mktemp("out")
    finished: dict[str, tuple[int, int]] = {}
    for delay in delays:
        process = start(out, PLANS[name])
        process.join(delay)
        process.kill()
        process.join()
        now = made(out)
        assert finished.items() <= now.items(), "a finished shard is not written again"
        finished = now
        for shard in finished:
            assert (out / shard).read_bytes() == whole[name][shard], "what is there is whole"
    convert(READER, str(out), PLANS[name], max_rejects=1.0)
    assert finished.items() <= made(out).items()
    assert contents(out) == whole[name]


def test_workers_end_with_what_started_them(tmp_path, whole):
    process = start(tmp_path, PLANS["shuffled"], workers=3)
    workers: list[psutil.Process] = []
    while len(made(tmp_path)) < 2:
        assert process.is_alive()
        workers = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.01)
    process.kill()
    process.join()
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    finished = made(tmp_path)
    convert(READER, str(tmp_path), PLANS["shuffled"], max_rejects=1.0)
    assert finished.items() <= made(tmp_path).items()
    assert contents(tmp_path) == whole["shuffled"]


def test_a_worker_that_dies_is_an_error_that_can_be_gone_on_from(tmp_path):
    out = tmp_path / "out"
    reader = MadeUp((100, 100), deadly=15, once=str(tmp_path / "died"))
    with pytest.raises(WdspackError, match=r"one of 2 worker processes died.*finished shards are kept"):
        convert(reader, str(out), Options(per_shard=10), executor=LocalExecutor(2))
    finished = made(out)
    convert(reader, str(out), Options(per_shard=10), executor=LocalExecutor(2))
    assert finished.items() <= made(out).items()
    convert(MadeUp((100, 100)), str(tmp_path / "whole"), Options(per_shard=10))
    assert contents(out) == contents(tmp_path / "whole")
