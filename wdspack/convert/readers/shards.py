"""WebDataset shards, to be made into others: of another size or order, with other keys, filtered, recompressed."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from wdspack.convert.compose import Draft
from wdspack.convert.imagefiles import check
from wdspack.convert.readers.base import DraftReader
from wdspack.convert.rows import Part, Record, Reject, Row
from wdspack.errors import ConfigError, SampleError
from wdspack.records import IMAGE_EXTENSIONS, images_of, parse_json
from wdspack.shards import expand_urls
from wdspack.storage import open_shard
from wdspack.tar import TarReader
from wdspack.types import RawSample

_TAR = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, kw_only=True)
class ShardsReader(DraftReader):
    """A row is a sample; its id is its key.

    urls: as for `Source`. canonical: read each sample, whatever its form, check it, and write it in the canonical form
    with its images named by their content; otherwise its files are carried as they are, its images checked and all else
    unread. Other files of it are carried in both cases. strict_end: as for `Source`.
    """

    urls: str | Sequence[str]
    canonical: bool = False
    strict_end: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.caption_prompt and not self.canonical:
            message = "means nothing where texts are carried as they are; leave it out, or add --canonical"
            raise ConfigError(f"caption_prompt={self.caption_prompt!r} {message}")

    def find_parts(self) -> Sequence[Part]:
        """A part for each shard; their samples are counted by their headers, so damage is found before the run."""
        given = [self.urls] if isinstance(self.urls, str) else self.urls
        if all(os.path.isfile(url) and url.endswith(_TAR) for url in given):  # whatever characters are in their names
            return list(map(self._part, given))
        return list(map(self._part, expand_urls(given, storage_options=self.storage_options)))

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        return map(_draft, self._samples(part, start, stop))

    def read(self, part: Part, start: int, stop: int) -> Iterator[Row]:
        if self.canonical:
            return super().read(part, start, stop)
        return map(self._carried, self._samples(part, start, stop))

    def _carried(self, sample: RawSample) -> Row:
        images = [(name, data) for name, data in sample.files.items() if name.rpartition(".")[2] in IMAGE_EXTENSIONS]
        try:
            for number, (_, data) in enumerate(images):
                check(data, number, how=self.check_images, max_pixels=self.max_image_pixels)
        except SampleError as error:
            return Reject(sample.key, error.reason, str(error))
        return Record(sample.key, sample.files)

    def _samples(self, part: Part, start: int, stop: int) -> Iterator[RawSample]:
        with open_shard(part.url, storage_options=self.storage_options) as stream:
            samples = TarReader(stream, strict_end=self.strict_end, wants=lambda ordinal: start <= ordinal < stop)
            yield from islice(samples, stop - start)

    def _part(self, url: str) -> Part:
        with open_shard(url, storage_options=self.storage_options) as stream:
            reader = TarReader(stream, strict_end=self.strict_end, wants=lambda _: False)
            for _ in reader:
                pass
            return Part(url, reader.ordinal, stream.position)


def _draft(sample: RawSample) -> Draft | Reject:
    try:
        record = parse_json(sample.files["json"]) if "json" in sample.files else {}
        images = images_of(sample.files)
    except SampleError as error:
        return Reject(sample.key, error.reason, str(error))
    others = {
        name: data
        for name, data in sample.files.items()
        if name not in ("json", "txt") and name.rpartition(".")[2] not in IMAGE_EXTENSIONS
    }
    return Draft(sample.key, record, images, sample.files.get("txt"), others)
