"""RawSample → Sample: what it says, how many tokens that is, and how many tiles its images take.

Only image headers are read here. The pixels stay compressed until a pack needs them.
"""

from dataclasses import replace

from wdspack import images, records
from wdspack.chat import ChatEncoder
from wdspack.config import DataConfig
from wdspack.errors import SampleError
from wdspack.types import EncodedImage, Place, RawSample, Sample


class Measurer:
    """Measures samples of one run; a sample that leaves it fits into a pack.

    blank: tokens of a blank image where packs need one (`require_image`), else 0.
    """

    def __init__(self, config: DataConfig, encoder: ChatEncoder, blank: int) -> None:
        self._config, self._encoder, self._blank = config, encoder, blank

    def __call__(self, raw: RawSample, place: Place, caption_prompt: str = "") -> Sample:
        """Raises SampleError, with a reason, for a sample that cannot be used or does not fit."""
        config = self._config
        conversation = records.conversation_from(raw, caption_prompt=caption_prompt)
        infos = [images.probe(data, max_pixels=config.max_image_pixels) for data in conversation.images]
        grids = [config.layout.measure(info.width, info.height) for info in infos]
        encoded = self._encoder.encode(conversation, grids)
        encoded_images = tuple(map(EncodedImage, conversation.images, infos, grids))
        sample = Sample(url=raw.url, key=raw.key, place=place, encoded=encoded, images=encoded_images)
        tokens = sample.size.tokens
        while sample.size.tokens > (limit := self._limit(sample)):
            if config.on_long == "drop":
                raise SampleError(
                    f"{tokens:,} tokens, but a pack has room for {limit:,}; raise seq_len or set on_long='truncate'",
                    reason="too_long",
                    tokens=tokens,
                )
            try:
                shorter, kept = self._encoder.truncate(conversation, grids, limit)
            except SampleError as error:
                raise SampleError(str(error), reason=error.reason, tokens=tokens) from error
            sample = replace(sample, encoded=shorter, images=encoded_images[:kept], truncated=True)
        self._check_images(sample, tokens)
        return sample

    def _limit(self, sample: Sample) -> int:
        """A sample without images may have to share its pack with a blank one."""
        return self._config.seq_len - (0 if sample.images else self._blank)

    def _check_images(self, sample: Sample, tokens: int) -> None:
        _, images_, tiles = sample.size
        for name, count, limit in (
            ("images", images_, self._config.max_images),
            ("tiles", tiles, self._config.max_tiles),
        ):
            if limit is not None and count > limit:
                raise SampleError(
                    f"{count:,} {name}, but a pack may have {limit:,}; raise max_{name}",
                    reason=f"too_many_{name}",
                    tokens=tokens,
                )
