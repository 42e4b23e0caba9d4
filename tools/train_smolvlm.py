#!/usr/bin/env python
"""Trains a SmolVLM on packed samples: one process, or many under torchrun (DDP; nccl on GPUs, gloo on CPUs).

    wdspack demo --out demo
    torchrun --nproc-per-node 2 tools/train_smolvlm.py --config demo/data.yaml --steps 20 --checkpoints ckpt

Without --model it trains a tiny random SmolVLM that fits the config's layout. Started again with the same
--checkpoints, it goes on with the very next pack, on as many ranks as it is given.
"""

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import wdspack


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="YAML file of a DataConfig")
    parser.add_argument("--model", help="name or path of a SmolVLM or Idefics3; default: tiny and random")
    parser.add_argument(
        "--steps", type=int, help="optimizer steps; default: until the data ends (epochs in the config)"
    )
    parser.add_argument("--batch-size", type=int, default=1, help="packs in a batch on each rank (default 1)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches in an optimizer step (default 1)")
    parser.add_argument("--workers", type=int, default=0, help="worker processes on each rank (default 0: a thread)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the model's weights (default 0)")
    parser.add_argument(
        "--checkpoints", type=Path, help="folder to save to, and to go on from when it has a checkpoint"
    )
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints (default 10)")
    parser.add_argument("--metrics", type=Path, help="file for one JSON line a step")
    return parser.parse_args()


def tiny_model(layout: wdspack.TileLayout, tokenizer: Any, seed: int) -> torch.nn.Module:
    """A random SmolVLM of some 100,000 weights whose vision tower yields `tokens_per_tile` features for a tile."""
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    side = math.isqrt(layout.tokens_per_tile) * 2  # patches; pixel shuffle by 2 halves it
    if (side // 2) ** 2 != layout.tokens_per_tile or layout.tile % side:
        raise SystemExit(
            f"--model is needed: a tiny one takes a square tokens_per_tile and a tile that {side} divides, not {layout}"
        )
    vision = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**vision, "num_key_value_heads": 2, "model_type": "llama", "vocab_size": len(tokenizer)}
    torch.manual_seed(seed)
    return SmolVLMForConditionalGeneration(
        SmolVLMConfig(
            vision_config={**vision, "image_size": layout.tile, "patch_size": layout.tile // side},
            text_config={**text, "pad_token_id": tokenizer.pad_token_id or 0},
            scale_factor=2,
            image_token_id=tokenizer.convert_tokens_to_ids(layout.image_token),
        )
    )


def load_model(args: argparse.Namespace, config: wdspack.DataConfig, tokenizer: Any) -> torch.nn.Module:
    if args.model is None:
        return tiny_model(config.layout, tokenizer, args.seed)
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(args.model)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    model.config.image_token_id = tokenizer.convert_tokens_to_ids(config.layout.image_token)
    return model


def checkpoints(folder: Path | None) -> list[Path]:
    return sorted(folder.glob("step-*.pt")) if folder else []


def save(folder: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, states: list[Any]) -> None:
    """Whole or not at all: written beside, then renamed. The last two are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    content = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": json.dumps(wdspack.merge_states(states)),
    }
    torch.save(content, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)
    for old in checkpoints(folder)[:-2]:
        old.unlink()


def groups(loader: wdspack.Loader, size: int) -> Iterator[tuple[list[dict[str, Any]], float]]:
    """The batches of one optimizer step, and the seconds that waiting for them took."""
    while True:
        start = time.perf_counter()
        if not (group := list(islice(loader, size))):
            return
        yield group, time.perf_counter() - start


def main() -> None:
    args = arguments()
    gpu = torch.cuda.is_available()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if ranks > 1:
        distributed.init_process_group("nccl" if gpu else "gloo")

    # A pack without an image would leave the vision tower without gradients, and DDP waiting for them.
    config = wdspack.load_config(args.config).replace(require_image=True)
    loader = wdspack.make_loader(config, batch_size=args.batch_size, num_workers=args.workers, normalize=False)
    model = load_model(args, config, loader.tokenizer).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = 0
    if saved := checkpoints(args.checkpoints):
        content = torch.load(saved[-1], map_location=device, weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        loader.load_state_dict(json.loads(content["loader"]))
        step = content["step"]
        if rank == 0:
            print(f"going on from {saved[-1]}", flush=True)
    trained = DistributedDataParallel(model, device_ids=[device.index] if gpu else None) if ranks > 1 else model
    log = args.metrics.open("a") if args.metrics and rank == 0 else None

    def total(*values: float) -> list[float]:
        """Sums over ranks."""
        sums = torch.tensor(values, dtype=torch.float64, device=device)
        if ranks > 1:
            distributed.all_reduce(sums)
        return sums.tolist()

    end = time.perf_counter()
    for group, waited in groups(loader, args.accumulate) if step != args.steps else ():
        (labels,) = total(sum(batch["meta"]["label_tokens"] for batch in group))
        loss_sum = 0.0
        for number, batch in enumerate(group):
            inputs = wdspack.normalize(batch, device)
            inputs.pop("meta")
            last = number == len(group) - 1
            trained.require_backward_grad_sync = last  # DDP: one exchange a step
            # The loss is a sum over this rank's tokens / all ranks' tokens; DDP's mean over ranks is undone.
            # A filler has no label: it adds zero, where a mean over none would be NaN.
            items = torch.tensor(max(1.0, labels) / ranks, device=device)
            loss = trained(**inputs, num_items_in_batch=items).loss
            loss.backward()
            loss_sum += float(loss.detach()) / ranks
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1

        now = time.perf_counter()
        masks = [batch["meta"]["attention_mask"] for batch in group]
        keys = [key for batch in group for pack in batch["meta"]["keys"] for key in pack if key != ("", "blank")]
        images = sum(len(grids) for batch in group for grids in batch["meta"]["image_grids"])
        loss_all, tokens, packs, images, waited, fillers = total(
            loss_sum,
            sum(int(m.sum()) for m in masks),
            sum(len(m) for m in masks),
            images,
            waited,
            loader.ledger.fillers,
        )
        line = {
            "step": step,
            "loss": loss_all,
            "grad_norm": norm,
            "labels": int(labels),
            "fill": tokens / (packs * config.seq_len),
            "images_a_pack": images / packs,
            "waited": waited / ranks / (now - end),
            "tokens_a_second": tokens / (now - end),
            "fillers": int(fillers),
        }
        end = now
        if ranks > 1:
            gathered: list[Any] = [None] * ranks
            distributed.all_gather_object(gathered, keys)
            keys = [key for part in gathered for key in part]
        line["samples"] = hashlib.sha256(repr(sorted(keys)).encode()).hexdigest()[:16]
        if rank == 0:
            print(
                f"step {step:>5}  loss {line['loss']:.4f}  fill {line['fill']:.3f}  images/pack "
                f"{line['images_a_pack']:.1f}  waited {line['waited']:.1%}  {line['tokens_a_second']:,.0f} tokens/s",
                flush=True,
            )
            if log:
                print(json.dumps({**line, "keys": keys}), file=log, flush=True)
        stop = step == args.steps
        if args.checkpoints and (stop or step % args.save_every == 0):
            states: list[Any] = [loader.state_dict()]
            if ranks > 1:
                states = [None] * ranks
                distributed.all_gather_object(states, loader.state_dict())
            if rank == 0:
                save(args.checkpoints, step, model, optimizer, states)
        if stop:
            break
    loader.close()
    if rank == 0:
        print(loader.ledger, flush=True)
    if ranks > 1:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except wdspack.WdspackError as error:
        raise SystemExit(f"error: {error}") from error
