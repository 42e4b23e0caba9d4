"""The main test: a model sees a packed sample exactly as it sees the sample alone."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

import wdspack

LAYOUT = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4)


def tiny_smolvlm(loader, attention: str) -> SmolVLMForConditionalGeneration:
    tokenizer = loader.tokenizer
    torch.manual_seed(0)
    config = SmolVLMConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 8,
        },
        text_config={
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": len(tokenizer), "pad_token_id": 0,
        },
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids(LAYOUT.image_token),
    )  # fmt: skip
    config._attn_implementation = attention
    return SmolVLMForConditionalGeneration(config).eval()


def segments_of(batch, row):
    """(tokens, labels, tiles) of each segment of a row of a batch, read from the pack's own tables."""
    meta = batch["meta"]
    tiles = batch["pixel_values"]
    first = sum(int(grids[:, 2].sum()) for grids in meta["image_grids"][:row])
    grids = iter(meta["image_grids"][row][:, 2].tolist())
    boundaries = meta["cu_seqlens"][row].tolist()
    for number, images in enumerate(meta["images_per_segment"][row].tolist()):
        n = sum(next(grids) for _ in range(images))
        span = slice(boundaries[number], boundaries[number + 1])
        yield (
            span,
            batch["input_ids"][row, span],
            batch["labels"][row, span],
            tiles[:, first : first + n] if n else None,
        )
        first += n


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("images", [2, 0], ids=["images", "text only"])
def test_packed_equals_unpacked(shards, tokenizer_path, attention, images):
    corpus = shards(counts=[40], images=images)
    config = wdspack.DataConfig(
        sources=corpus.urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=512, epochs=1, buffer_size=16
    )
    loader = wdspack.make_loader(config, batch_size=2)
    model = tiny_smolvlm(loader, attention)
    seen = 0
    for batch in loader:
        meta = batch.pop("meta")
        with torch.no_grad():
            packed = model(**batch)
        batch["meta"] = meta
        alone_losses, label_count = 0.0, 0
        boundaries = [0]
        for row in range(2):
            for span, tokens, labels, tiles in segments_of(batch, row):
                with torch.no_grad():
                    alone = model(input_ids=tokens[None], pixel_values=tiles, use_cache=False).logits[0]
                torch.testing.assert_close(packed.logits[row, span], alone, atol=1e-5, rtol=0)
                alone_losses += float(cross_entropy(alone[:-1].float(), labels[1:], ignore_index=-100, reduction="sum"))
                label_count += int((labels[1:] != -100).sum())
                boundaries.append(row * 512 + span.stop)
                seen += 1
            if boundaries[-1] != (row + 1) * 512:
                boundaries.append((row + 1) * 512)
        assert batch["cu_seq_lens_q"].tolist() == boundaries == batch["cu_seq_lens_k"].tolist()
        assert batch["max_length_q"] == max(b - a for a, b in pairwise(boundaries))
        if label_count:
            assert float(packed.loss) == pytest.approx(alone_losses / label_count, abs=1e-5)
    assert seen == 40


def test_replacing_a_sample_changes_no_other(shards, tokenizer_path):
    corpus = shards(counts=[12], images=1)
    config = wdspack.DataConfig(
        sources=corpus.urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=512, epochs=1, buffer_size=12
    )
    loader = wdspack.make_loader(config, batch_size=1)
    model = tiny_smolvlm(loader, "sdpa")
    batch = next(loader)
    meta = batch.pop("meta")
    images = meta["images_per_segment"][0].tolist()
    assert any(images)
    text_only = images.index(0, 1)  # a segment without images that others come before
    start, stop = meta["cu_seqlens"][0][text_only : text_only + 2].tolist()
    with torch.no_grad():
        before = model(**batch).logits[0]
        batch["input_ids"][0, start:stop] = loader.tokenizer.encode("x")[0]
        after = model(**batch).logits[0]
    same = torch.ones(512, dtype=torch.bool)
    same[start:stop] = False
    torch.testing.assert_close(before[same], after[same], atol=1e-6, rtol=0)
    assert not torch.allclose(before[~same], after[~same])


def test_blank_image_gives_vision_gradients(shards, tokenizer_path):
    corpus = shards(counts=[10], images=0)
    config = wdspack.DataConfig(
        sources=corpus.urls, tokenizer=tokenizer_path, layout=LAYOUT, seq_len=256, epochs=1, require_image=True
    )
    loader = wdspack.make_loader(config)
    model = tiny_smolvlm(loader, "sdpa")
    batch = next(loader)
    meta = batch.pop("meta")
    assert batch["pixel_values"].shape == (1, 1, 3, 32, 32)
    assert bool((batch["pixel_values"] != 0).all())
    blank = meta["cu_seqlens"][0][len(meta["keys"][0]) - 1 : len(meta["keys"][0]) + 1].tolist()
    assert meta["keys"][0][-1] == ("", "blank")
    assert bool((batch["labels"][0, slice(*blank)] == -100).all())
    loss = model(**batch).loss
    loss.backward()
    assert all(p.grad is not None for p in model.model.vision_model.parameters() if p.requires_grad)
    assert len(meta["keys"][0]) == 1 + sum(key != ("", "blank") for key in meta["keys"][0])


def test_packed_equals_unpacked_for_llava(shards, tokenizer_path):
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    layout = wdspack.FixedLayout(size=32, tokens=16)
    corpus = shards(counts=[16], images=2)
    config = wdspack.DataConfig(sources=corpus.urls, tokenizer=tokenizer_path, layout=layout, seq_len=256, epochs=1)
    loader = wdspack.make_loader(config, batch_size=2)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config={"model_type": "clip_vision_model", **small, "image_size": 32, "patch_size": 8},
            text_config={"model_type": "llama", **small, "num_key_value_heads": 2, "vocab_size": len(loader.tokenizer)},
            image_token_index=loader.tokenizer.convert_tokens_to_ids("<image>"),
            image_seq_length=16,
        )
    ).eval()
    seen = 0
    for batch in loader:
        meta = batch.pop("meta")
        images = 0
        with torch.no_grad():
            packed = model(**batch).logits
            for row in range(2):
                boundaries = meta["cu_seqlens"][row].tolist()
                for number, n in enumerate(meta["images_per_segment"][row].tolist()):
                    span = slice(boundaries[number], boundaries[number + 1])
                    pixels = batch["pixel_values"][images : images + n] if n else None
                    alone = model(input_ids=batch["input_ids"][row, span][None], pixel_values=pixels, use_cache=False)
                    torch.testing.assert_close(packed[row, span], alone.logits[0], atol=1e-5, rtol=0)
                    images, seen = images + n, seen + 1
    assert seen == 16


def test_native_positions_are_those_of_qwen2_vl(shared: Path, shards):
    """The model's own rule, segment by segment, and logits of packed and unpacked samples."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    layout = wdspack.NativeLayout(max_pixels=28 * 28 * 16)
    corpus = shards(counts=[12], images=2)
    config = wdspack.DataConfig(
        sources=corpus.urls, tokenizer=str(shared / "tokenizers/qwen3"), layout=layout, seq_len=512, epochs=1
    )
    loader = wdspack.make_loader(config, batch_size=2)
    tokenizer = loader.tokenizer
    torch.manual_seed(0)
    ids = {
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    }
    model = Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config={
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "vocab_size": len(tokenizer),
                "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
            },
            vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
            **ids,
        )
    ).eval()  # fmt: skip
    seen = 0
    for batch in loader:
        meta = batch.pop("meta")
        with torch.no_grad():
            packed = model(**batch).logits
        patches = images = 0
        for row in range(2):
            boundaries = meta["cu_seqlens"][row].tolist()
            for number, n in enumerate(meta["images_per_segment"][row].tolist()):
                span = slice(boundaries[number], boundaries[number + 1])
                tokens = batch["input_ids"][row, span][None]
                thw = batch["image_grid_thw"][images : images + n] if n else None
                count = int(thw.prod(1).sum()) if n else 0
                pixels = batch["pixel_values"][patches : patches + count] if n else None
                kinds = (tokens == ids["image_token_id"]).int()
                positions, _ = model.model.get_rope_index(tokens, kinds, thw)
                assert torch.equal(batch["position_ids"][1:, row, span], positions[:, 0])
                with torch.no_grad():
                    alone = model(
                        input_ids=tokens,
                        pixel_values=pixels,
                        image_grid_thw=thw,
                        mm_token_type_ids=kinds,
                        use_cache=False,
                    )
                torch.testing.assert_close(packed[row, span], alone.logits[0], atol=1e-5, rtol=0)
                patches, images, seen = patches + count, images + n, seen + 1
    assert seen == 12
