"""The images of some packs, decoded into one tensor, each sample's by one job.

The tensor is filled in place, already normalised if asked for: pixels are written where the model reads them. An image
that cannot be decoded costs its own sample only: the sample's rows are cut out afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wdspack.decoders import Decoders, Job, Wait
from wdspack.errors import SampleError
from wdspack.run import Run
from wdspack.types import Sample


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of one pack.

    samples: those whose images could all be decoded. rows: its rows of the tensor. failed: the other samples, why.
    """

    samples: tuple[Sample, ...]
    rows: slice
    failed: tuple[tuple[Sample, SampleError], ...]


@dataclass(slots=True)
class _Part:
    """The rows of one sample; a blank image has no sample."""

    start: int
    stop: int
    sample: Sample | None = None
    wait: Wait | None = None
    error: SampleError | None = None


class Decoding:
    """Starts decoding when made; `result` waits for it.

    groups: the samples of each pack.
    """

    def __init__(self, run: Run, groups: Sequence[Sequence[Sample]], decoders: Decoders) -> None:
        self._run, self._renderer, self._decoders = run, decoders.renderer, decoders
        layout, row = run.config.layout, 0
        self._packs: list[list[_Part]] = []
        for samples in groups:
            parts = []
            for sample in samples:
                start = row
                row += sum(layout.pixel_rows(image.grid) for image in sample.images)
                parts.append(_Part(start, row, sample))
            if needs_blank(run, samples):
                start = row
                row += layout.pixel_rows(layout.blank())
                parts.append(_Part(start, row))
            self._packs.append(parts)
        drawn = [part for parts in self._packs for part in parts if part.sample and part.sample.images]
        jobs = [Job(part.start, part.stop, part.sample.images) for part in drawn if part.sample]
        self._pixels, waits = decoders.draw(row, jobs)
        for part, wait in zip(drawn, waits, strict=True):
            part.wait = wait
        for part in (part for parts in self._packs for part in parts if part.sample is None):
            self._renderer.blank(self._pixels.numpy()[part.start : part.stop])

    def result(self) -> tuple[torch.Tensor, list[Decoded]]:
        """All rows, (ΣN, …), and what became of each pack."""
        for part in (part for parts in self._packs for part in parts):
            if part.wait is not None:
                try:
                    part.wait()
                except SampleError as error:
                    part.error = error
                part.wait = None
        if any(part.error for parts in self._packs for part in parts):
            self._compact()
        else:
            self._pixels = self._decoders.drawn(self._pixels)
        return self._pixels, [_decoded(parts) for parts in self._packs]

    def _compact(self) -> None:
        """Cuts failed samples' rows out; a pack left without images gets the blank one it may need."""
        pieces, row = [], 0
        for parts in self._packs:
            kept = [part for part in parts if part.error is None]
            if len(kept) < len(parts) and needs_blank(self._run, [p.sample for p in kept if p.sample is not None]):
                layout = self._run.config.layout
                blank = self._pixels.new_empty((layout.pixel_rows(layout.blank()), *layout.pixel_shape))
                self._renderer.blank(blank.numpy())
                kept.append(_Part(0, 0))
                parts.append(kept[-1])
            for part in kept:
                piece = blank if part.sample is None and part.stop == 0 else self._pixels[part.start : part.stop]
                pieces.append(piece)
                part.start, part.stop = row, row + len(piece)
                row += len(piece)
        self._pixels = torch.cat(pieces) if pieces else self._pixels[:0]


def _decoded(parts: Sequence[_Part]) -> Decoded:
    kept = [part for part in parts if part.error is None]
    failed = tuple((p.sample, p.error) for p in parts if p.sample is not None and p.error is not None)
    samples = tuple(part.sample for part in kept if part.sample is not None)
    return Decoded(samples, slice(kept[0].start, kept[-1].stop) if kept else slice(0, 0), failed)


def needs_blank(run: Run, samples: Sequence[Sample]) -> bool:
    """A pack without images gets a blank one where the config requires images (a filler too)."""
    return run.config.require_image and not any(sample.images for sample in samples)
