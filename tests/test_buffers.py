"""Memory that is used over and over never changes under somebody who still holds it."""

import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from corpora import Shards, digest

import wdspack
from wdspack.buffers import Buffers, Private, Shared

Kind = type[Private]
kinds = pytest.mark.parametrize("kind", [Private, Shared])


def lend(buffers: Buffers[Private], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return buffers.lend(shape, dtype)[0]


@kinds
def test_a_dead_tensors_memory_is_used_again(kind: Kind) -> None:
    buffers = Buffers(kind)
    first = lend(buffers, (4, 3, 8, 8), torch.float32)
    assert first.shape == (4, 3, 8, 8)
    assert first.is_contiguous()
    place = first.data_ptr()
    del first
    assert lend(buffers, (2, 3, 8, 8), torch.uint8).data_ptr() == place, "smaller, and of another type"


@kinds
def test_memory_comes_back_only_after_the_last_view_of_it(kind: Kind) -> None:
    buffers = Buffers(kind)
    tensor = lend(buffers, (4, 6), torch.uint8)
    place = tensor.data_ptr()
    holders: list[object] = [tensor[1:], tensor.view(-1).numpy()[5:], tensor.detach().reshape(2, 12).t()]
    del tensor
    while holders:
        assert lend(buffers, (4, 6), torch.uint8).data_ptr() != place, f"{len(holders)} still hold it"
        holders.pop()
    others = [lend(buffers, (4, 6), torch.uint8) for _ in range(2)]
    assert place in {other.data_ptr() for other in others}


@kinds
def test_what_is_kept_is_bounded(kind: Kind) -> None:
    buffers = Buffers(kind, keep=2)
    alive = [lend(buffers, (100 * n,), torch.uint8) for n in range(1, 9)]
    alive.clear()
    held = lend(buffers, (1,), torch.uint8)
    assert held.untyped_storage().nbytes() == 1
    assert len(buffers._spare) == 2, "the largest ones, the one in use aside"
    assert lend(buffers, (0, 3), torch.float32).shape == (0, 3)


@kinds
def test_after_closing_nothing_is_kept(kind: Kind) -> None:
    buffers = Buffers(kind)
    pixels, memory = buffers.lend((6,), torch.uint8)
    spare, lent = weakref.ref(buffers.lend((6,), torch.uint8)[1]), weakref.ref(memory)
    del memory
    assert spare() is not None
    buffers.close()
    assert spare() is None
    pixels.fill_(7)
    assert pixels.tolist() == [7] * 6
    del pixels
    assert lent() is None


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_are_kept_stay_as_they_were(
    shards: Callable[..., Shards], tokenizer_path: str, workers: int
) -> None:
    corpus = shards(counts=[60], images=3)
    layout = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4)
    config = wdspack.DataConfig(
        sources=corpus.urls, tokenizer=tokenizer_path, layout=layout,
        seq_len=512, max_images=8, buffer_size=16, epochs=1,
    )  # fmt: skip
    seen = [(pack, digest(pack)) for pack in wdspack.make_loader(config, batch_size=None, num_workers=workers)]
    assert len(seen) > 10
    assert [digest(pack) for pack, _ in seen] == [before for _, before in seen]
    passed = [digest(pack) for pack in wdspack.make_loader(config, batch_size=None, num_workers=workers)]
    assert passed == [before for _, before in seen], "and those that are not kept are the same"
    bare = [digest({**pack, "pixel_values": pack["pixel_values"].clone()}) for pack in wdspack.PackedDataset(config)]
    assert bare == passed


def test_decoding_threads_leave_torchs_threads_alone() -> None:
    from wdspack.decoders import single_threaded

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pool = single_threaded(3)
        assert {pool.submit(torch.get_num_threads).result() for _ in range(9)} == {1}
        assert torch.get_num_threads() == 2
        pool.shutdown()
    finally:
        torch.set_num_threads(before)
    assert np.isfinite(torch.randn(64, 64).matmul(torch.randn(64, 64)).numpy()).all()
