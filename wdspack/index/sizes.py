"""Index + layout → what packing needs to know of every sample, exactly as streaming would measure it.

text tokens (index) + Σ tokens of image (layout, width, height) = tokens;  len(widths) = images;  Σ tiles = tiles
"""

import logging
from collections.abc import Iterator

from wdspack.errors import ConfigError, SampleError, ShardError
from wdspack.index.table import Index, tokens_column
from wdspack.index.wording import wording
from wdspack.run import Run
from wdspack.storage import stat_shard
from wdspack.types import Grid, Size

logger = logging.getLogger("wdspack")

_TELL = 5  # shards named in the log


class IndexedSizes:
    """The sizes of one source's samples, from an index of its shards."""

    def __init__(self, index: Index, run: Run, source: int) -> None:
        """source: its number in the config.

        Raises ConfigError where the index counted its text tokens with another tokenizer, layout or caption prompt.
        """
        config, self._run, self._index, self._told = run.config, run, index, 0
        self._source = config.source_list[source]
        header, wanted = index.header, wording(config.layout)
        digest, tokens = header.wordings.get(wanted.name, ("", ""))
        for what, known, ours in (
            ("layout", digest, wanted.digest),
            ("tokenizer", header.digest, run.base_digest),
            ("caption prompt", header.caption_prompt, self._source.caption_prompt),
        ):
            if known != ours:
                raise ConfigError(
                    f"{index.url} was made for another {what} than the config's ({wanted.name}, "
                    f"{header.tokenizer or 'no tokenizer'}); make it with the config's tokenizer, layout and caption "
                    "prompt"
                )
        self._column, self._same_tokens = tokens_column(wanted.name), tokens == wanted.tokens

    def fault(self, url: str) -> str:
        """As `_fault`; the first few are warned of by name, before they are read and perhaps found damaged."""
        if fault := self._fault(url):
            self._told += 1
            if self._told <= _TELL:
                others = "; further ones are not named" if self._told == _TELL else ""
                logger.warning("%s is read itself, as the index does not serve (%s)%s", url, fault, others)
        return fault

    def _fault(self, url: str) -> str:
        """Why this shard must be read itself, "" where the index knows all of it.

        What the storage says of it ("missing", …); "not_indexed"; "changed" since; "damaged" when it was indexed, or
        without an end where the source is strict; "markers": its texts spell grid markers, and the index was made for
        another number of them.
        """
        try:
            stat = stat_shard(url, storage_options=self._source.storage_options)
        except ShardError as error:
            return error.reason
        if fault := self._index.fault(url, stat):
            return fault
        shard = self._index.find(url)
        if shard.error or (shard.unclosed and self._source.strict_end):
            return "damaged"
        return "markers" if shard.markers and not self._same_tokens else ""

    def shard(self, url: str) -> Iterator[tuple[Size | None, str]]:
        """Each sample's size, of any length, or (None, reason) for one that streaming drops as faulty, in order."""
        table = self._index.samples(url, ("widths", "heights", "reason", self._column))
        for widths, heights, reason, tokens in zip(*(column.to_pylist() for column in table.columns), strict=True):
            try:
                yield self._size(list(zip(widths or (), heights or (), strict=True)), reason, tokens), ""
            except SampleError as error:
                yield None, error.reason

    def _size(self, sides: list[tuple[int, int]], reason: str | None, tokens: int | None) -> Size:
        """Faults come in the order of `Measurer`: turns, then images one by one, then grids, then the template."""
        config = self._run.config
        if any(width * height > config.max_image_pixels for width, height in sides):
            raise SampleError("an image larger than max_image_pixels", reason="image_too_large")
        if reason in ("broken_image", "image_too_large"):
            raise SampleError("an image without a sound header", reason=reason)
        grids: list[Grid] = [config.layout.measure(width, height) for width, height in sides]
        if tokens is None:
            raise SampleError("faulty when it was indexed", reason=reason or "template")
        length = tokens + sum(len(self._run.encoder.image_ids(grid)) for grid in grids)
        return Size(length, len(grids), sum(grid.tiles for grid in grids))
