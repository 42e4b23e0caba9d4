"""One rank of a run, started by torchrun: logs what it is given, checkpoints every few steps, goes on from one.

torchrun --nproc-per-node 4 tests/rank.py PLAN     (PLAN: a JSON file)
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed

import wdspack


def main(plan: dict) -> None:
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    folder = Path(plan["folder"])
    config = wdspack.DataConfig(layout=wdspack.TileLayout(tile=32, max_side=32, tokens_per_tile=4), **plan["config"])
    loader = wdspack.make_loader(config, batch_size=plan["batch_size"], num_workers=plan["workers"])
    assert (loader.rank, loader.world_size) == (rank, world)
    checkpoint = folder / "checkpoint.json"
    done = 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        done = saved["step"]
        loader.load_state_dict(saved["loader"])
    with (folder / f"world{world}-rank{rank}.jsonl").open("a") as log:
        for batch in loader:
            done += 1
            # What DDP does every step: a rank that ran dry would leave the others waiting here.
            step = torch.tensor([done])
            distributed.all_reduce(step, distributed.ReduceOp.MAX)
            assert int(step) == done
            meta = batch["meta"]
            keys = [key for pack in meta["keys"] for _, key in pack]
            fillers = sum(not pack for pack in meta["keys"])
            print(json.dumps({"step": done, "keys": keys, "fillers": fillers}), file=log, flush=True)
            if plan["save_every"] and done % plan["save_every"] == 0:
                states: list = [None] * world
                distributed.all_gather_object(states, loader.state_dict())
                if rank == 0:
                    part = checkpoint.with_suffix(".part")
                    part.write_text(json.dumps({"step": done, "loader": wdspack.merge_states(states)}))
                    os.replace(part, checkpoint)
                distributed.barrier()
            if done == plan.get("die_at") and rank == world - 1:
                os.kill(os.getpid(), 9)
    total = loader.ledger.gather()
    if rank == 0:
        (folder / f"world{world}-ledger.json").write_text(json.dumps(total.to_dict()))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
