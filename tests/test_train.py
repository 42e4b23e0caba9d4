"""tools/train_smolvlm.py as a user runs it: torchrun, killed, continued, on another number of ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).parents[1] / "tools" / "train_smolvlm.py"
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def data(shards, tokenizer_path, tmp_path):
    corpus = shards(counts=[60, 25, 0, 40], images=1, words=25)
    plan = {
        "sources": corpus.urls, "tokenizer": tokenizer_path, "seq_len": 256, "buffer_size": 8, "lanes": 4, "epochs": 2,
        "layout": {"type": "tile", "tile": 32, "max_side": 32, "tokens_per_tile": 4},
    }  # fmt: skip
    path = tmp_path / "data.yaml"
    path.write_text(yaml.safe_dump(plan))
    return str(path)


def command(world: int, *arguments: str) -> list[str]:
    if world == 1:
        return [sys.executable, str(SCRIPT), *arguments]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    return [sys.executable, *launcher, str(SCRIPT), *arguments]


def train(world: int, *arguments: str) -> str:
    done = subprocess.run(command(world, *arguments), capture_output=True, text=True, timeout=200, env=ENV, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def logged(path: Path) -> dict[int, dict]:
    """step → its last line."""
    return {line["step"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_killed_and_continued_gives_the_losses_of_an_uninterrupted_run(data, tmp_path):
    common = ["--config", data, "--accumulate", "2", "--save-every", "2"]
    straight, cut = tmp_path / "straight.jsonl", tmp_path / "cut.jsonl"
    train(2, *common, "--steps", "9", "--metrics", str(straight))
    again = [*common, "--steps", "9", "--metrics", str(cut), "--checkpoints", str(tmp_path / "ckpt"), "--workers", "1"]
    victim = subprocess.Popen(
        command(2, *again), env=ENV, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (cut.exists() and len(cut.read_text().splitlines()) >= 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    out = train(2, *again)
    assert "going on from" in out
    expected, found = logged(straight), logged(cut)
    assert found.keys() == expected.keys() == set(range(1, 10))
    for step, line in expected.items():
        assert found[step]["samples"] == line["samples"]
        assert found[step]["loss"] == pytest.approx(line["loss"], rel=1e-6)
        assert line["loss"] == line["loss"], "not a number"


def test_the_data_is_the_same_on_another_number_of_ranks(data, tmp_path):
    logs = {}
    for world, batch_size in ((1, 4), (2, 2), (4, 1)):
        path = tmp_path / f"{world}.jsonl"
        train(world, "--config", data, "--steps", "4", "--batch-size", str(batch_size), "--metrics", str(path))
        logs[world] = logged(path)
    for step in range(1, 5):
        assert len({logs[world][step]["samples"] for world in logs}) == 1
        for world in (2, 4):  # weighted by label tokens over all ranks, the loss does not depend on their number
            assert logs[world][step]["loss"] == pytest.approx(logs[1][step]["loss"], rel=1e-4)


def test_a_finite_run_ends_everywhere_and_gives_every_sample(data, tmp_path):
    log = tmp_path / "log.jsonl"
    out = train(4, "--config", data, "--metrics", str(log))
    keys = [key for line in logged(log).values() for pack in [line["keys"]] for _, key in pack]
    assert len(keys) == 2 * 125
    assert len(set(keys)) == 125
    assert "fillers" in out
    assert all(line["loss"] == line["loss"] for line in logged(log).values())
