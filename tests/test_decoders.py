"""Whoever decodes, the pixels are the same; processes that decode end when they should, and leave nothing behind."""

import contextlib
import gc
import hashlib
import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import Shards, broken_picture, digest, picture
from PIL import Image

import wdspack
from wdspack import images
from wdspack.decoders import Decoders, Here, Job, Renderer, Threads
from wdspack.errors import SampleError, WdspackError
from wdspack.processes import Processes
from wdspack.types import EncodedImage

LAYOUT = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4)
MEAN, STD = np.array(LAYOUT.mean).reshape(3, 1, 1), np.array(LAYOUT.std).reshape(3, 1, 1)

pytestmark = pytest.mark.skipif(not Processes.supported, reason="processes decode on Linux only")


def encoded(data: bytes) -> EncodedImage:
    info = images.probe(data)
    return EncodedImage(data, info, LAYOUT.measure(info.width, info.height))


def jobs_of(groups: list[list[bytes]]) -> tuple[int, list[Job]]:
    jobs, row = [], 0
    for group in groups:
        pictures = tuple(map(encoded, group))
        stop = row + sum(LAYOUT.pixel_rows(picture.grid) for picture in pictures)
        jobs.append(Job(row, stop, pictures))
        row = stop
    return row, jobs


def drawn(pictures: tuple[EncodedImage, ...]) -> np.ndarray:
    """Picture by picture, in memory of its own."""
    rows = [np.empty((LAYOUT.pixel_rows(p.grid), *LAYOUT.pixel_shape), np.uint8) for p in pictures]
    for out, p in zip(rows, pictures, strict=True):
        images.render(p.data, p.info, p.grid, LAYOUT, out)
    return np.concatenate(rows)


KINDS: dict[str, Callable[[Renderer], Decoders]] = {
    "here": Here,
    "threads": lambda renderer: Threads(2, renderer),
    "fork": lambda renderer: Processes(2, renderer, context="fork"),
    "spawn": lambda renderer: Processes(1, renderer, context="spawn"),
    "forkserver": lambda renderer: Processes(1, renderer, context="forkserver"),
}


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes(2, Renderer(LAYOUT, normalize=False))
    yield found
    found.stop()
    found.close()


def pids(decoders: Processes) -> list[int]:
    return [process.pid for process in decoders._processes]


def soon(condition: Callable[[], bool], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_all_draw_the_same_and_a_broken_image_costs_only_its_job(kind: str, normalize: bool) -> None:
    rng = random.Random(5)
    sizes = [(20, 30), (100, 40), (64, 64), (300, 20)]
    groups = [[picture(rng, "jpeg" if n % 2 else "png", sizes[n % 4]) for n in range(k)] for k in (1, 3, 0, 2)]
    groups.insert(2, [picture(rng), broken_picture(rng), picture(rng)])
    rows, jobs = jobs_of(groups)
    decoders = KINDS[kind](Renderer(LAYOUT, normalize))
    try:
        for _ in range(3):  # the second time into memory that was used
            pixels, waits = decoders.draw(rows, jobs)
            assert pixels.shape == (rows, *LAYOUT.pixel_shape)
            assert pixels.dtype == (torch.float32 if normalize else torch.uint8)
            for number, (job, wait) in enumerate(zip(jobs, waits, strict=True)):
                if number == 2:
                    with pytest.raises(SampleError) as caught:
                        wait()
                    assert caught.value.reason == "broken_image"
                    continue
                wait()
                if job.images:
                    wanted = drawn(job.images)
                    found = pixels[job.start : job.stop].numpy()
                    if normalize:
                        np.testing.assert_allclose(found, (wanted / 255 - MEAN) / STD, atol=1e-5)
                    else:
                        np.testing.assert_array_equal(found, wanted)
            del pixels
        empty, none = decoders.draw(0, [])
        assert (len(empty), none) == (0, [])
    finally:
        decoders.stop()
        decoders.close()


def test_any_number_of_jobs_can_be_begun_before_one_is_waited_for(processes: Processes) -> None:
    rng = random.Random(1)
    data = [picture(rng, "png", (16, 16)) for _ in range(7)]
    rows, jobs = jobs_of([[data[n % 7]] for n in range(9000)])
    pixels, waits = processes.draw(rows, jobs)
    for job, wait in zip(jobs, waits, strict=True):
        wait()
        assert pixels[job.start : job.stop].numpy().tobytes() == drawn(job.images).tobytes()


def test_any_number_of_images_may_be_broken(processes: Processes) -> None:
    _, waits = processes.draw(*jobs_of([[broken_picture(random.Random(1))]] * 3000))
    for wait in waits:
        with pytest.raises(SampleError):
            wait()


def test_what_is_unexpected_reaches_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr(images, "render", fails)
    decoders = Processes(1, Renderer(LAYOUT, normalize=False), context="fork")
    _, (wait,) = decoders.draw(*jobs_of([[picture(random.Random(1))]]))
    with pytest.raises(WdspackError, match="ZeroDivisionError: no such thing"):
        wait()
    decoders.stop()
    decoders.close()


@pytest.mark.parametrize("killed", [1, 2])
def test_a_killed_process_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch, killed: int) -> None:
    monkeypatch.setattr(images, "render", lambda *_: time.sleep(60))
    decoders = Processes(2, Renderer(LAYOUT, normalize=False), context="fork")
    rows, jobs = jobs_of([[picture(random.Random(1))]] * 2)
    _, (wait, _) = decoders.draw(rows, jobs)
    for pid in pids(decoders)[:killed]:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WdspackError, match=r"exit code -9 \(killed; by the system where memory ran out\)"):
        wait()
    decoders.stop()
    with pytest.raises(WdspackError, match="closed"):
        decoders.draw(rows, jobs)
    decoders.close()


def test_a_loader_goes_on_exactly_after_a_killed_decoder(shards: Callable[..., Shards], tokenizer_path: str) -> None:
    config = wdspack.DataConfig(
        sources=shards(counts=[60], images=2).urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=512,
        buffer_size=16, epochs=1,
    )  # fmt: skip
    wanted = [digest(pack) for pack in wdspack.make_loader(config, batch_size=None, num_workers=0)]
    loader = wdspack.make_loader(config, batch_size=None, num_workers=1, decoders=1, prefetch=1)
    found = [digest(next(loader)) for _ in range(3)]
    for _ in range(2):
        (pid,) = pids(loader._stream._decoders)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WdspackError, match="exit code -9"):
            next(loader)
        found.append(digest(next(loader)))
    found += map(digest, loader)
    assert found == wanted
    assert loader.ledger.unaccounted() == {}


def test_closing_wakes_who_waits_and_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "render", lambda *_: time.sleep(60))
    decoders = Processes(1, Renderer(LAYOUT, normalize=False), context="fork")
    _, (wait,) = decoders.draw(*jobs_of([[picture(random.Random(1))]]))
    said: list[BaseException] = []

    def waiting() -> None:
        try:
            wait()
        except WdspackError as error:
            said.append(error)

    thread = threading.Thread(target=waiting)
    thread.start()
    begun = time.monotonic()
    decoders.stop()
    thread.join(timeout=20)
    assert len(said) == 1
    assert "closed" in str(said[0])
    assert time.monotonic() - begun < 20, "the picture takes 60 s"
    assert not any(process.is_alive() for process in decoders._processes)
    decoders.close()


def test_ctrl_c_is_the_consumers_affair(processes: Processes) -> None:
    rows, jobs = jobs_of([[picture(random.Random(1))]])
    for wait in processes.draw(rows, jobs)[1]:
        wait()
    for pid in pids(processes):
        os.kill(pid, signal.SIGINT)
    for wait in processes.draw(rows, jobs)[1]:
        wait()
    assert all(process.is_alive() for process in processes._processes)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_end_with_a_consumer_that_is_killed(tokenizer_path: str, tmp_path: Path, method: str) -> None:
    """Also a worker that is about to hand over more than a pipe holds."""
    noise = [Image.frombytes("RGB", (300, 300), random.Random(n).randbytes(270_000)) for n in range(2)]
    with tarfile.open(tmp_path / "large.tar", "w") as tar:
        for n in range(200):
            data = io.BytesIO()
            noise[n % 2].save(data, "png")
            asked = [{"type": "image"}, {"type": "text", "text": "What?"}]
            said = [{"role": "user", "content": asked}, {"role": "assistant", "content": "Noise."}]
            for name, content in (
                (f"{n:04d}.png", data.getvalue()),
                (f"{n:04d}.json", json.dumps({"messages": said}).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, time, wdspack
            if __name__ == "__main__":
                config = wdspack.DataConfig(
                    sources={str(tmp_path / "large.tar")!r}, tokenizer={tokenizer_path!r}, seq_len=256, buffer_size=8,
                    layout=wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4),
                )
                loader = wdspack.make_loader(config, num_workers=1, decoders=2, multiprocessing_context={method!r})
                next(loader)
                time.sleep(1)  # all that is prepared ahead is
                print(*(process.pid for process in multiprocessing.active_children()), flush=True)
                input()
            """
        )
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as consumer:
        assert consumer.stdout
        assert consumer.stderr
        found = list(map(int, consumer.stdout.readline().split()))
        assert len(found) == 3
        assert all(map(alive, found))
        consumer.kill()
        assert soon(lambda: not any(map(alive, found)))
        assert "Traceback" not in consumer.stderr.read()


def test_a_forked_child_keeps_its_batch_and_stops_nothing(shards: Callable[..., Shards], tokenizer_path: str) -> None:
    config = wdspack.DataConfig(
        sources=shards(counts=[60], images=2).urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=512, buffer_size=16
    )
    loader = wdspack.make_loader(config, num_workers=1, decoders=1)
    batch, holder = next(loader), [loader]
    go, went = os.pipe()
    if not (pid := os.fork()):
        try:
            before = hashlib.sha256(batch["pixel_values"].numpy()).digest()
            os.read(go, 1)
            same = hashlib.sha256(batch["pixel_values"].numpy()).digest() == before
            loader.close()
            holder[0]._stream = None
            os._exit(0 if same else 1)
        finally:
            os._exit(2)
    del batch
    for _ in range(30):
        next(loader)
    os.write(went, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for _ in range(30):
        next(loader)
    loader.close()
    os.close(go)
    os.close(went)


def test_one_dead_process_of_several_is_noticed(processes: Processes) -> None:
    rows, jobs = jobs_of([[picture(random.Random(1))]])
    os.kill(pids(processes)[1], signal.SIGKILL)
    assert soon(lambda: not processes._processes[1].is_alive())
    with pytest.raises(WdspackError, match="exit code -9"):
        processes.draw(rows, jobs)


def test_children_that_nobody_waits_for() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        decoders = Processes(2, Renderer(LAYOUT, normalize=False))
        _, (wait,) = decoders.draw(*jobs_of([[picture(random.Random(1))]]))
        wait()
        decoders.stop()
        decoders.close()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_closing_from_another_thread_leaves_one_stream(shards: Callable[..., Shards], tokenizer_path: str) -> None:
    config = wdspack.DataConfig(
        sources=shards(counts=[60], images=2).urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=512, buffer_size=16
    )
    before = set(multiprocessing.active_children())
    loader = wdspack.make_loader(config, num_workers=1, decoders=1)
    for _ in range(8):
        next(loader)
        thread = threading.Thread(target=loader.close)
        thread.start()
        with contextlib.suppress(WdspackError):
            for _ in range(20):
                next(loader)
        next(loader)
        thread.join()
    loader.close()
    assert soon(lambda: set(multiprocessing.active_children()) <= before)


def test_memory_that_is_given_up_is_unmapped_everywhere() -> None:
    decoders = Processes(1, Renderer(LAYOUT, normalize=False))
    (pid,) = pids(decoders)

    def mapped(process: object) -> int:
        return Path(f"/proc/{process}/maps").read_text().count("memfd:wdspack")

    before, inherited = mapped("self"), mapped(pid)
    rows, jobs = jobs_of([[picture(random.Random(1), "png", (64, 64))]])
    held = []
    for n in range(8):
        pixels, waits = decoders.draw(rows * (n + 1), jobs)
        for wait in waits:
            wait()
        held.append(pixels)
    del pixels
    assert (mapped("self") - before, mapped(pid) - inherited) == (8, 8)
    held.clear()
    for _ in range(2):  # by the first it is known what to keep, the second tells the process
        pixels, waits = decoders.draw(rows, jobs)
        for wait in waits:
            wait()
    assert mapped(pid) - inherited <= 2
    assert mapped("self") - before <= 2
    decoders.stop()
    decoders.close()
    del pixels, waits, wait


def test_nothing_stays_open() -> None:
    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    rows, jobs = jobs_of([[picture(random.Random(1))]])
    before, shm = opened(), set(os.listdir("/dev/shm"))
    for _ in range(3):
        decoders = Processes(2, Renderer(LAYOUT, normalize=False))
        pixels, (wait,) = decoders.draw(rows, jobs)
        wait()
        decoders.stop()
        decoders.close()
        del decoders, wait
        assert pixels.sum() > 0, "memory outlives who drew into it"
        del pixels
    assert opened() <= before
    assert set(os.listdir("/dev/shm")) <= shm


def test_a_consumer_may_keep_every_batch(shards: Callable[..., Shards], tokenizer_path: str) -> None:
    config = wdspack.DataConfig(
        sources=shards(counts=[60], images=1, words=4).urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=64,
        buffer_size=4, epochs=4,
    )  # fmt: skip
    before, passed, kept = len(os.listdir("/proc/self/fd")), [], []
    for pack in wdspack.make_loader(config, batch_size=None, num_workers=1, decoders=1):
        kept.append(pack)
        passed.append(digest(pack))
    assert len(kept) > 150
    assert len(os.listdir("/proc/self/fd")) < before + 150
    assert [digest(pack) for pack in kept] == passed
