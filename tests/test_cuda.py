"""What a GPU changes: pinned memory, copies that do not wait, pixels normalised there. Skipped where there is none."""

from collections.abc import Callable

import pytest
import torch
from corpora import Shards

import wdspack


@pytest.fixture
def config(shards: Callable[..., Shards], tokenizer_path: str) -> wdspack.DataConfig:
    layout = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4, std=(0.2, 0.3, 0.4))
    return wdspack.DataConfig(
        sources=shards(counts=[60], images=3).urls, tokenizer=tokenizer_path, layout=layout, seq_len=512, max_images=8,
        buffer_size=16, epochs=1,
    )  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_batches_normalised_on_the_gpu_are_those_of_the_cpu(config: wdspack.DataConfig) -> None:
    deferred = wdspack.make_loader(config, batch_size=2, normalize=False)
    for ours, batch in zip(wdspack.make_loader(config, batch_size=2, pin_memory=False), deferred, strict=True):
        tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        assert all(value.is_pinned() for value in tensors.values())
        moved = wdspack.normalize(batch, "cuda")
        assert not any(isinstance(v, torch.Tensor) and v.is_cuda for v in moved["meta"].values())
        for name in tensors:
            assert moved[name].is_cuda
            torch.testing.assert_close(moved[name].cpu(), ours[name], rtol=0, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_memory_is_not_written_while_it_is_copied(config: wdspack.DataConfig) -> None:
    stream, moved = torch.cuda.Stream(), []
    for batch in wdspack.make_loader(config, normalize=False):
        if (pixels := batch["pixel_values"]) is not None:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)  # the copy begins after the host has gone on to the next batch
                moved.append((pixels.to("cuda", non_blocking=True), int(pixels.sum())))
    torch.cuda.synchronize()
    assert len(moved) > 5
    assert all(int(there.sum()) == here for there, here in moved)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nothing_is_pinned_and_normalize_works(config: wdspack.DataConfig) -> None:
    later = (wdspack.normalize(batch) for batch in wdspack.make_loader(config, normalize=False))
    for ours, batch in zip(wdspack.make_loader(config), later, strict=True):
        assert not batch["input_ids"].is_pinned()
        if ours["pixel_values"] is not None:
            assert torch.equal(ours["pixel_values"], batch["pixel_values"])
