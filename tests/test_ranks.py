"""Several ranks for real: torchrun, gloo, ragged shards, kill -9."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANK = Path(__file__).with_name("rank.py")


def torchrun(world: int, *command: str, check: bool = True, timeout: int = 200) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), *command],
        capture_output=True, text=True, timeout=timeout, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done


def logged(folder: Path, world: int) -> list[list[dict]]:
    return [
        [json.loads(line) for line in (folder / f"world{world}-rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(world)
    ]


@pytest.fixture
def plan(tmp_path, tokenizer_path):
    def write(urls, **changes):
        made = {
            "folder": str(tmp_path), "batch_size": 2, "workers": 0, "save_every": 0,
            "config": {
                "sources": urls, "tokenizer": tokenizer_path, "seq_len": 256, "buffer_size": 8, "epochs": 1, "lanes": 8,
            },
            **changes,
        }  # fmt: skip
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(made))
        return str(path)

    return write


@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_shards_end_at_the_same_step_with_every_sample_once(shards, plan, tmp_path, workers):
    # one shard far longer, one empty, fewer shards than lanes
    corpus = shards(counts=[170, 3, 0, 20, 8], words=10)
    torchrun(4, str(RANK), plan(corpus.urls, workers=workers))
    logs = logged(tmp_path, 4)
    assert len({len(log) for log in logs}) == 1
    keys = [key for log in logs for line in log for key in line["keys"]]
    assert sorted(keys) == sorted(corpus.answers)
    ledger = json.loads((tmp_path / "world4-ledger.json").read_text())
    fillers = sum(line["fillers"] for log in logs for line in log)
    assert ledger["fillers"] == fillers
    assert ledger["packs"] + fillers == 2 * 4 * len(logs[0])
    assert ledger["sources"]["shard"]["read"] == ledger["sources"]["shard"]["packed"] == len(keys)


def test_lanes_without_a_sample_are_filled_or_passed_over(shards, plan, tmp_path):
    corpus = shards(counts=[3], words=40)
    torchrun(4, str(RANK), plan(corpus.urls))
    logs = logged(tmp_path, 4)
    assert {len(log) for log in logs} == {1}
    assert sorted(key for log in logs for line in log for key in line["keys"]) == sorted(corpus.answers)


def test_killed_on_four_ranks_and_continued_on_two(shards, plan, tmp_path):
    corpus = shards(counts=[120, 3, 0, 90, 60], words=30)
    killed = torchrun(4, str(RANK), plan(corpus.urls, save_every=3, die_at=5), check=False)
    assert killed.returncode != 0
    saved = json.loads((tmp_path / "checkpoint.json").read_text())["step"]
    assert saved == 3
    torchrun(2, str(RANK), plan(corpus.urls, workers=1))
    before = [key for log in logged(tmp_path, 4) for line in log if line["step"] <= saved for key in line["keys"]]
    after_logs = logged(tmp_path, 2)
    assert len({len(log) for log in after_logs}) == 1
    after = [key for log in after_logs for line in log for key in line["keys"]]
    assert before
    assert after
    assert sorted(before + after) == sorted(corpus.answers)
    ledger = json.loads((tmp_path / "world2-ledger.json").read_text())
    assert ledger["sources"]["shard"]["packed"] == len(corpus.answers)
