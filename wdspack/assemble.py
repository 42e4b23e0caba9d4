"""Samples → a pack: tensors of constant length.

    samples   [a a a a][b b b][c c c c c c]          L = seq_len, S = segments, N = tiles
    input_ids  a a a a  b b b  c c c c c c  pad pad   (L,)
    positions  0 1 2 3  0 1 2  0 1 2 3 4 5  0   1     (L,)  restart in each segment; padding is the last one
    segments   1 1 1 1  2 2 2  3 3 3 3 3 3  0   0     (L,)
    cu_seqlens 0        4      7            13   15   (S + 2,), or (S + 1,) where there is no padding

Everything here is about tokens; the pixels that belong to them are made by `decode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wdspack.decode import needs_blank
from wdspack.layouts import NativeLayout
from wdspack.run import Run
from wdspack.types import Grid, Sample

IGNORE = -100  # the label that transformers' losses pass over
BLANK_KEY = ("", "blank")


@dataclass(frozen=True, slots=True)
class _Segment:
    input_ids: npt.NDArray[np.int32]
    supervised: npt.NDArray[np.bool_]
    grids: tuple[Grid, ...]
    key: tuple[str, str]


def assemble(run: Run, samples: Sequence[Sample], bookmark: bytes = b"") -> dict[str, Any]:
    """A pack of these samples but for its pixels; the fields are tabulated in the README.

    With `require_image`, a pack without images gets a blank one, as a segment of its own; `Decoding` gives it pixels
    by the same rule. No samples make a filler: all padding.
    """
    config, layout = run.config, run.config.layout
    segments = [
        _Segment(s.encoded.input_ids, s.encoded.supervised, tuple(i.grid for i in s.images), (s.url, s.key))
        for s in samples
    ]
    if needs_blank(run, samples):
        ids, grid = run.encoder.image_ids(layout.blank()), layout.blank()
        segments.append(_Segment(ids, np.zeros(len(ids), bool), (grid,), BLANK_KEY))
    lengths = [len(segment.input_ids) for segment in segments]
    used, total = sum(lengths), config.seq_len
    if padding := total - used:
        lengths.append(padding)

    input_ids = np.full(total, run.pad_id, np.int64)
    labels = np.full(total, IGNORE, np.int64)
    segment_ids = np.zeros(total, np.int32)
    starts = np.cumsum([0, *lengths])
    for number, (segment, start) in enumerate(zip(segments, starts, strict=False), 1):
        stop = start + len(segment.input_ids)
        input_ids[start:stop] = segment.input_ids
        segment_ids[start:stop] = number
        # The token before a segment's first belongs to another sample: nothing there may predict it.
        taught = segment.supervised.copy()
        taught[:1] = False
        labels[start:stop][taught] = segment.input_ids[taught]
    position_ids = np.concatenate([np.arange(n) for n in lengths])
    grids = [grid for segment in segments for grid in segment.grids]
    pack = {
        "input_ids": torch.from_numpy(input_ids),
        "labels": torch.from_numpy(labels),
        "attention_mask": torch.from_numpy((segment_ids > 0).astype(np.int64)),
        "position_ids": torch.from_numpy(position_ids),
        "segment_ids": torch.from_numpy(segment_ids),
        "cu_seqlens": torch.from_numpy(starts.astype(np.int32)),
        "image_grids": torch.tensor([grid[:3] for grid in grids], dtype=torch.int32).view(-1, 3),
        "images_per_segment": torch.tensor([len(segment.grids) for segment in segments], dtype=torch.int32),
        "keys": [segment.key for segment in segments],
        "bookmark": bookmark,
    }
    if isinstance(layout, NativeLayout):
        pack["image_grid_thw"] = torch.tensor([(1, g.rows, g.cols) for g in grids], dtype=torch.int64).view(-1, 3)
        image_id = run.tokenizer.convert_tokens_to_ids(layout.image_token)
        spatial = [
            rope_positions(
                segment.input_ids == image_id, [(g.rows // layout.merge, g.cols // layout.merge) for g in segment.grids]
            )
            for segment in segments
        ]
        if padding:
            spatial.append(np.tile(np.arange(padding), (3, 1)))
        pack["position_ids"] = torch.from_numpy(np.concatenate([position_ids[None], np.concatenate(spatial, 1)]))
    return pack


def rope_positions(is_image: npt.NDArray[np.bool_], grids: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Time, height and width positions of one segment, (3, T) int64 (multimodal RoPE, Qwen2-VL, section 2.1).

    Text advances all three together. An image of rows × cols tokens stands still in time and spreads over height and
    width; the text after it goes on from the largest position so far plus one.

    is_image: (T,) True on image placeholders. grids: (rows, cols) of each image, in merged tokens.
    """
    positions = np.empty((3, len(is_image)), np.int64)
    at = now = 0
    for rows, cols in grids:
        first = at + int(np.argmax(is_image[at:]))
        positions[:, at:first] = now + np.arange(first - at)
        now += first - at
        at = first + rows * cols
        row, col = np.divmod(np.arange(rows * cols), cols)
        positions[:, first:at] = now + np.stack([np.zeros_like(row), row, col])
        now += max(rows, cols)
    positions[:, at:] = now + np.arange(len(is_image) - at)
    return positions
