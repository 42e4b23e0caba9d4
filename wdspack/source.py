"""A source as one lane reads it: shard after shard, epoch after epoch, from wherever a bookmark left off."""

import logging
from collections.abc import Generator, Iterator, Sequence

from wdspack import shards, storage, tar
from wdspack.bookmark import Cursor
from wdspack.config import DataConfig
from wdspack.errors import ShardError, WdspackError
from wdspack.ledger import Counts, lost_shards
from wdspack.types import Place, RawSample

logger = logging.getLogger("wdspack")


class SourceReader:
    """Samples of source number `number` for lane `lane` of `lanes`.

    `next()` gives a sample and where it stands, or None once the source's epochs are over. `cursor` is where reading
    would go on after the last sample given. Shards finished and members ignored go into `counts`.
    """

    def __init__(
        self,
        config: DataConfig,
        number: int,
        urls: Sequence[str],
        *,
        lane: int,
        lanes: int,
        cursor: Cursor,
        counts: Counts,
        access: storage.Access,
    ) -> None:
        self._config, self._number, self._urls = config, number, urls
        self._source = config.source_list[number]
        self._lane, self._lanes, self._counts, self._access = lane, lanes, counts, access
        self.cursor = cursor
        self._shards = storage.Successive(self._coming(), storage_options=self._source.storage_options, access=access)
        self._samples = self._read()

    @property
    def live(self) -> bool:
        """False once the last epoch is over."""
        return self._config.epochs is None or self.cursor.epoch < self._config.epochs

    def next(self) -> tuple[RawSample, Place] | None:
        """Raises ShardError for a damaged shard (unless those are skipped), WdspackError for a barren source."""
        return next(self._samples, None)

    def used(self) -> None:
        """Says that the last sample given was usable."""
        self.cursor = self.cursor._replace(usable=self.cursor.usable + 1)

    def close(self) -> None:
        self._samples.close()
        self._shards.close()

    def _read(self) -> Generator[tuple[RawSample, Place], None, None]:
        idle = 0  # epochs in which this lane had no share
        while self.live:
            order = self._order(self.cursor.epoch)
            while self.cursor.position < len(order):
                yield from self._read_shard(order[self.cursor.position])
                self.cursor = self.cursor._replace(position=self.cursor.position + 1, offset=0, ordinal=0)
            idle = 0 if self.cursor.read else idle + 1
            if self._config.epochs is None:
                self._check_yield(idle)
            self.cursor = Cursor(epoch=self.cursor.epoch + 1)

    def _order(self, epoch: int) -> list[shards.Share]:
        return shards.lane_shards(
            len(self._urls),
            lanes=self._lanes,
            lane=self._lane,
            seed=self._config.seed,
            source=self._number,
            epoch=epoch,
            shuffle=self._config.shuffle,
        )

    def _coming(self) -> Iterator[str]:
        """The shards from the cursor on, over the ends of epochs, until this lane has no share in many of them."""
        epoch, position, idle = self.cursor.epoch, self.cursor.position, 0
        while (self._config.epochs is None or epoch < self._config.epochs) and idle <= self._lanes:
            order = self._order(epoch)
            yield from (self._urls[share.shard] for share in order[position:])
            epoch, position, idle = epoch + 1, 0, 0 if order else idle + 1

    def _read_shard(self, share: shards.Share) -> Iterator[tuple[RawSample, Place]]:
        url = self._urls[share.shard]
        # All lanes walk through a shared shard; one of them keeps its books.
        counts = self._counts if not share.phase else Counts()
        try:
            with self._shards.open(url, start=self.cursor.offset) as stream:
                reader = tar.TarReader(
                    stream,
                    ordinal=self.cursor.ordinal,
                    strict_end=self._source.strict_end,
                    wants=share.wants,
                )
                for raw in reader:
                    counts.ignored.update(raw.ignored)
                    self.cursor = self.cursor._replace(
                        offset=raw.next_offset, ordinal=raw.ordinal + 1, read=self.cursor.read + 1
                    )
                    yield raw, Place(self._number, self.cursor.epoch, share.shard, raw.offset, raw.nbytes)
                counts.ignored.update(reader.ignored)
                if reader.unclosed:
                    counts.shards["unclosed"] += 1
            counts.shards["finished"] += 1
        except ShardError as error:
            if self._config.on_error != "skip":
                raise
            counts.shards[f"lost_{error.reason}"] += 1
            logger.warning("passed over a shard, as on_error='skip' says: %s", error)

    def _check_yield(self, idle: int) -> None:
        """An endless run must not spin on data that gives nothing."""
        name, read = self._source.name, self.cursor.read
        if read and not self.cursor.usable:
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in self._counts.dropped.most_common())
            raise WdspackError(
                f"lane {self._lane} read a whole epoch of source {name!r} ({read:,} samples) without one that can be "
                f"used (dropped so far: {reasons}); mend the data, or check seq_len, max_images and max_tiles"
            )
        if idle > self._lanes:
            lost = lost_shards(self._counts)
            raise WdspackError(
                f"source {name!r} gave lane {self._lane} no sample in {idle} epochs: its {len(self._urls)} shards "
                f"are empty{lost and ', or lost'}{lost}; check them with `wdspack inspect`"
            )
