"""What the consumer waited for, and how many workers and threads there are by default."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import Shards

import wdspack
from wdspack import timing
from wdspack.cores import cores_of_rank, default_decoders, default_workers
from wdspack.timing import Stopwatch, Timing


class Clock:
    """Time that passes only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(timing.time, "monotonic", lambda: self.now)


def deliver(watch: Stopwatch, clock: Clock, *, makes: float, uses: float, **waits: float) -> None:
    with watch.batch() as waited:
        clock.now += makes
        for name, seconds in waits.items():
            setattr(waited, name, seconds)
    clock.now += uses


def test_every_second_after_the_first_batch_is_somebodys(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watch = Clock(monkeypatch), Stopwatch()
    deliver(watch, clock, makes=5, uses=1, packs=4.5)  # workers start: not held against anyone
    deliver(watch, clock, makes=4, uses=2, packs=2.5, storage=1.0, decoding=1.25)
    deliver(watch, clock, makes=1, uses=7, packs=0.5, storage=3.0)  # it cannot have cost more than was waited
    found = watch.timing
    # From the first batch to the third: 1 + 4 + 2 + 1 s; what the consumer does after the third is not known yet.
    assert found == Timing(first=5, total=8, storage=1.5, parsing=1.5, decoding=1.25, batching=0.75, batches=3)
    assert found.waited == pytest.approx(5 / 8)
    assert found.bottleneck == "storage"
    deliver(watch, clock, makes=2, uses=0, decoding=2)
    assert (watch.timing - found) == Timing(total=9, decoding=2, batches=1)
    assert (watch.timing - found).bottleneck == "decoding"


def test_one_who_hardly_waits_is_the_bottleneck(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watch = Clock(monkeypatch), Stopwatch()
    for _ in range(3):
        deliver(watch, clock, makes=0.01, uses=0.99, packs=0.01)
    assert watch.timing.waited == pytest.approx(0.01)
    assert watch.timing.bottleneck == "consumer"
    assert Timing().bottleneck == "consumer"


def test_a_line_a_minute_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock, watch = Clock(monkeypatch), Stopwatch()
    with caplog.at_level(logging.INFO, "wdspack"):
        for _ in range(26):
            deliver(watch, clock, makes=4, uses=1, packs=4)
        assert len(caplog.messages) == 2
        assert caplog.messages[0] == (
            "12 batches in 60.0 s; the consumer waited 80.0% of the time (storage 0.0%, parsing 80.0%, decoding 0.0%, "
            "batching 0.0%); bottleneck: parsing"
        )
        watch.stop()
        clock.now += 1000  # an evaluation, say
        deliver(watch, clock, makes=3, uses=1)
        watch.stop()
    assert len(caplog.messages) == 3
    assert watch.timing.total == 125
    assert watch.timing.first == 4 + 3


@pytest.fixture
def config(shards: Callable[..., Shards], tokenizer_path: str) -> wdspack.DataConfig:
    layout = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4)
    return wdspack.DataConfig(
        sources=shards(counts=[40]).urls, tokenizer=tokenizer_path, layout=layout, seq_len=512, epochs=1, buffer_size=8
    )


def test_a_loader_tells_what_was_waited_for(config: wdspack.DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = wdspack.make_loader(config, num_workers=0)
    begun = time.monotonic()
    for batches, _ in enumerate(loader, 1):
        assert loader.timing.batches == batches
        time.sleep(0.05)
    found = loader.timing
    assert 0.05 * (batches - 1) <= found.total <= time.monotonic() - begun - found.first
    assert found.waited < 1 - 0.05 * (batches - 1) / found.total + 1e-6

    from wdspack import images

    slow = images.render
    monkeypatch.setattr(images, "render", lambda *given: (time.sleep(0.02), slow(*given)))
    loader = wdspack.make_loader(config, num_workers=0, decoders=1)
    assert sum(1 for _ in loader) == batches
    assert loader.timing.bottleneck == "decoding"


def test_cores_are_those_of_the_container_shared_among_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert cores_of_rank({}, tmp_path) == 64
    assert cores_of_rank({"LOCAL_WORLD_SIZE": "8"}, tmp_path) == 8
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores_of_rank({}, tmp_path) == 64
    (tmp_path / "cpu.max").write_text("1250000 100000\n")
    assert cores_of_rank({}, tmp_path) == 12.5
    assert cores_of_rank({"LOCAL_WORLD_SIZE": "32"}, tmp_path) == 1
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert cores_of_rank({}, tmp_path) == 64
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("400000")
    assert cores_of_rank({}, tmp_path) == 4


@pytest.mark.parametrize(
    ("cores", "lanes", "world_size", "workers", "threads"),
    [
        (1.0, None, 1, 1, 1),
        (2.5, 48, 1, 1, 2),
        (4.0, 48, 1, 2, 4),
        (16.0, 48, 1, 6, 16),
        (16.0, None, 1, 1, 16),  # lanes would depend on the machine
        (21.0, 48, 1, 6, 16),  # 7 do not divide 48
        (30.0, 48, 1, 8, 16),
        (96.0, 48, 8, 6, 16),  # nor do 8 divide a rank's 6
        (96.0, 7, 2, 3, 16),  # no number fits: choose_lanes says so
    ],
)
def test_defaults(cores: float, lanes: int | None, world_size: int, workers: int, threads: int) -> None:
    assert default_workers(cores, lanes, world_size) == workers
    assert default_decoders(cores) == threads


def test_by_default_there_are_workers_and_the_packs_are_the_same(config: wdspack.DataConfig) -> None:
    def keys(**options: Any) -> list[Any]:
        return [pack["keys"] for pack in wdspack.make_loader(config.replace(lanes=6), batch_size=None, **options)]

    assert keys() == keys(num_workers=0)
