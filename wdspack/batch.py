"""Packs → a batch for which `model(**batch)` is right as it stands.

A batch carries no attention mask: with one, transformers no longer finds the segments in `position_ids`, and packed
samples attend to each other. Segments are told apart by `position_ids` (eager, sdpa, flex) and by `cu_seq_lens_*`
(FlashAttention), and `use_cache=False` because a cache switches that off too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wdspack import images
from wdspack.assemble import IGNORE, assemble
from wdspack.decode import Decoded
from wdspack.errors import ConfigError
from wdspack.layouts import Layout, NativeLayout, TileLayout
from wdspack.run import Run


def make(run: Run, pixels: torch.Tensor, packs: Sequence[Decoded], *, batched: bool) -> dict[str, Any]:
    """The batch of these packs, or the only pack, but for its bookmarks; empty where there is none."""
    made = [{**assemble(run, pack.samples), "pixel_values": pixels[pack.rows]} for pack in packs]
    if batched and made:
        return collate(made, run.config.layout, pixels)
    return made[0] if made else {}


def stamp(made: dict[str, Any], bookmarks: list[bytes]) -> dict[str, Any]:
    """Gives what `make` made its bookmarks, one a pack."""
    if "meta" in made:
        made["meta"]["bookmark"] = bookmarks
    else:
        (made["bookmark"],) = bookmarks
    return made


def collate(packs: Sequence[dict[str, Any]], layout: Layout, pixels: torch.Tensor) -> dict[str, Any]:
    """B packs → the keyword arguments of a transformers model, and `meta` with everything else.

    pixels: the rows of all packs, (ΣN, 3, H, W) or (patches, …), normalised or still uint8. The batch has them
    unpadded, as the models want them: SmolVLM (1, ΣN, 3, H, W), LLaVA and Qwen2-VL as they are; None where no pack has
    an image.
    """
    native, tiled = isinstance(layout, NativeLayout), isinstance(layout, TileLayout)
    cu_seqlens, longest, start = [torch.zeros(1, dtype=torch.int32)], 0, 0
    for pack in packs:
        boundaries = pack["cu_seqlens"]
        cu_seqlens.append(boundaries[1:] + start)
        longest = max(longest, int(boundaries.diff().max()))
        start += len(pack["input_ids"])
    flat = torch.cat(cu_seqlens)
    batch: dict[str, Any] = {
        "input_ids": torch.stack([pack["input_ids"] for pack in packs]),
        "labels": torch.stack([pack["labels"] for pack in packs]),
        # (B, L), or (4, B, L) with multimodal RoPE
        "position_ids": torch.stack([pack["position_ids"] for pack in packs], dim=-2),
        "pixel_values": None if not len(pixels) else pixels[None] if tiled else pixels,
        "cu_seq_lens_q": flat,
        "cu_seq_lens_k": flat,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
    if native:
        batch["image_grid_thw"] = torch.cat([pack["image_grid_thw"] for pack in packs]) if len(pixels) else None
    names = ("attention_mask", "segment_ids")
    meta: dict[str, Any] = {name: torch.stack([pack[name] for pack in packs]) for name in names}
    for name in ("cu_seqlens", "image_grids", "images_per_segment", "keys", "bookmark"):
        meta[name] = [pack[name] for pack in packs]
    # What a summed loss is divided by; labels are shifted inside the model, so the first of a row is never predicted.
    meta["label_tokens"] = int((batch["labels"][:, 1:] != IGNORE).sum())
    return {**batch, "meta": {**meta, "mean": layout.mean, "std": layout.std}}


def pinned(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with its tensors in pinned memory, from which they are copied to a GPU while the program goes on.

    Pixels that threads drew are there already and stay; those that processes drew are copied. `meta` stays where it is.
    """
    return {name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def normalize(batch: Mapping[str, Any], device: torch.device | str | None = None) -> dict[str, Any]:
    """A batch of a loader with `normalize=False`, moved to a device, its pixels normalised there (float32).

    A quarter of the bytes of normalised pixels cross to the GPU. `meta` stays where it is.

    Raises ConfigError for pixels that are normalised already.
    """
    moved = {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }
    pixels, meta = moved["pixel_values"], batch["meta"]
    if pixels is None:
        return moved
    if pixels.dtype != torch.uint8:
        raise ConfigError(
            f"pixel_values are {pixels.dtype} already; make the loader with normalize=False, or leave this out"
        )
    return {**moved, "pixel_values": images.normalize(pixels, meta["mean"], meta["std"])}
