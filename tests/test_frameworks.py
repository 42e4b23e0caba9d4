"""The loader inside accelerate and transformers' Trainer: passed through, split once."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from test_model import LAYOUT, tiny_smolvlm

import wdspack

accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")


@pytest.fixture
def config(shards, tokenizer_path):
    corpus = shards(counts=[40] * 4, words=20)
    return wdspack.DataConfig(
        sources=corpus.urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=256, buffer_size=16, lanes=4
    )


def keys(batch):
    return [tuple(key) for pack in batch["meta"]["keys"] for key in pack]


def test_prepare_leaves_the_loader_as_it_is(config):
    loader = wdspack.make_loader(config, batch_size=2)
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader


def test_a_trainer_takes_its_batches_as_they_come(config, tmp_path):
    from transformers import Trainer, TrainingArguments

    seen = []

    class Packed(Trainer):
        def get_train_dataloader(self):
            return loader

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # noqa: ARG002
            seen.append(keys(inputs))
            inputs = {name: value for name, value in inputs.items() if name != "meta"}
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    loader = wdspack.make_loader(config.replace(require_image=True), batch_size=2)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, gradient_accumulation_steps=2, per_device_train_batch_size=2,
        ignore_data_skip=True, report_to=[], use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Packed(model=tiny_smolvlm(loader, "sdpa"), args=arguments, train_dataset=None)
    trainer.train()
    expected = [
        keys(batch) for batch in islice(wdspack.make_loader(config.replace(require_image=True), batch_size=2), 6)
    ]
    assert seen == expected
    assert all(entry["loss"] == entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


RANKS = """
import json, sys
from accelerate import Accelerator
from itertools import islice
import wdspack

plan = json.loads(sys.argv[1])
accelerator = Accelerator(cpu=True)
config = wdspack.DataConfig(layout=wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4), **plan["config"])
loader = accelerator.prepare(wdspack.make_loader(config, batch_size=None))
assert (loader.rank, loader.world_size) == (accelerator.process_index, accelerator.num_processes)
keys = [key for pack in loader for _, key in pack["keys"]]
with open(f"{plan['folder']}/rank{accelerator.process_index}.json", "w") as file:
    json.dump(keys, file)
accelerator.wait_for_everyone()
if plan["split_twice"]:
    from torch.utils.data import DataLoader

    packs = DataLoader(wdspack.PackedDataset(config), batch_size=None, num_workers=plan["workers"])
    list(islice(accelerator.prepare(packs), 1))
accelerator.end_training()
"""


@pytest.fixture
def two_ranks(config, tmp_path):
    def run(**plan):
        script = tmp_path / "ranks.py"
        script.write_text(RANKS)
        made = {
            "folder": str(tmp_path), "split_twice": False, "workers": 0,
            "config": {
                "sources": list(config.source_list[0].urls), "tokenizer": config.tokenizer, "seq_len": 256,
                "buffer_size": 16, "lanes": 4, "epochs": 1,
            },
            **plan,
        }  # fmt: skip
        command = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(script),
            json.dumps(made),
        ]
        return subprocess.run(
            [sys.executable, *command],
            capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip

    return run


def test_two_ranks_under_accelerate_share_the_samples_once(two_ranks, tmp_path):
    done = two_ranks()
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads(Path(tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert all(ranks)
    assert len({key for keys in ranks for key in keys}) == sum(map(len, ranks)) == 160


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_accelerate_would_split_again_is_refused(two_ranks, workers):
    done = two_ranks(split_twice=True, workers=workers)
    assert done.returncode != 0
    assert "ConfigError" in done.stderr
    assert "make_loader" in done.stderr
