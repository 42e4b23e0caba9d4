"""Recompression touches only the images that must change; a filter keeps what its function says."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from datasets_of import pictures
from PIL import Image
from test_readers import records_of, rows_of
from test_readers_hostile import chat_of, encoded

from wdspack.convert import write_shards
from wdspack.convert.readers import ShardsReader
from wdspack.convert.recode import Chosen, recoded
from wdspack.convert.rows import Record, Reject
from wdspack.errors import ConfigError

WIDE = Image.effect_noise((80, 40), 60).convert("RGB")


def image_of(record: Record) -> tuple[str, bytes]:
    [(name, data)] = [(name, data) for name, data in record.files.items() if name != "json"]
    return name, data


def test_nothing_asked_nothing_done(tmp_path: Path) -> None:
    reader = chat_of(tmp_path, *pictures(3))
    assert recoded(reader) is reader


def test_only_other_formats_are_encoded_again(tmp_path: Path) -> None:
    images = pictures(7)
    before = records_of(chat_of(tmp_path, *images))
    after = records_of(recoded(chat_of(tmp_path, *images), image_format="jpg"))
    for source, old, new in zip(images, before, after, strict=True):
        name, data = image_of(new)
        assert name == "jpg"
        assert (data == source) == (image_of(old)[0] == "jpg")
        was, now = (Image.open(io.BytesIO(image)).convert("RGB") for image in (source, data))
        assert (now.format or Image.open(io.BytesIO(data)).format) == "JPEG"
        assert now.size == was.size
        assert new.files["json"] == old.files["json"]


def test_only_large_images_are_made_small(tmp_path: Path) -> None:
    sources = [encoded(WIDE, kind) for kind in ("jpeg", "png", "webp", "bmp")] + [encoded(WIDE.resize((50, 50)), "png")]
    after = [image_of(record) for record in records_of(recoded(chat_of(tmp_path, *sources), max_side=50))]
    assert [name for name, _ in after] == ["jpg", "png", "webp", "png", "png"]
    assert [Image.open(io.BytesIO(data)).size for _, data in after] == [(50, 25)] * 4 + [(50, 50)]
    assert after[4][1] == sources[4]
    assert rows_of(recoded(chat_of(tmp_path, *sources), max_side=50)) == rows_of(
        recoded(chat_of(tmp_path, *sources), max_side=50)
    )


def test_quality_and_orientation(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # shown a quarter turn to the right
    source = encoded(WIDE, "png", exif=turned)
    sizes = []
    for quality in (20, 90):
        [record] = records_of(recoded(chat_of(tmp_path, source), image_format="webp", quality=quality))
        name, data = image_of(record)
        assert (name, Image.open(io.BytesIO(data)).size) == ("webp", (40, 80))
        sizes.append(len(data))
    assert sizes[0] < 0.6 * sizes[1]


def test_images_that_do_not_decode_are_rejected(tmp_path: Path) -> None:
    cut = encoded(WIDE, "png")[:2000]
    rows = rows_of(recoded(chat_of(tmp_path, cut, encoded(WIDE, "png")), image_format="jpg"))
    assert [(row.id, row.reason) for row in rows if isinstance(row, Reject)] == [("r0", "broken_image")]


def test_two_images_are_not_made_one(tmp_path: Path) -> None:
    jpg, png = pictures(2)
    write_shards([("k", {"jpg": jpg, "png": png, "txt": b"w"})], tmp_path)
    for canonical, found in ((False, ["image_mismatch"]), (True, ["0.webp", "1.webp", "json"])):
        [row] = rows_of(recoded(ShardsReader(urls=str(tmp_path), canonical=canonical), image_format="webp"))
        assert ([row.reason] if isinstance(row, Reject) else sorted(row.files)) == found


@pytest.mark.parametrize("wrong", [{"image_format": "jp2"}, {"max_side": 0}, {"quality": 0, "max_side": 5}])
def test_what_no_image_can_be(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give"):
        recoded(chat_of(tmp_path), **wrong)  # type: ignore[arg-type]


def second(files: Mapping[str, bytes]) -> bool:
    return json.loads(files["json"])["id"] == "r1"


def test_rows_are_chosen_by_a_function(tmp_path: Path) -> None:
    rows = rows_of(Chosen(chat_of(tmp_path, *pictures(3)), "test_recode:second"))
    assert [row.reason if isinstance(row, Reject) else row.id for row in rows] == ["filtered", "r1", "filtered"]
    with pytest.raises(ConfigError, match=r"test_recode:fails fails on the row .r0. of .*KeyError"):
        rows_of(Chosen(chat_of(tmp_path, *pictures(1)), "test_recode:fails"))
    with pytest.raises(ConfigError, match="module:function"):
        Chosen(chat_of(tmp_path), "nowhere:nothing")


def fails(files: Mapping[str, bytes]) -> bool:
    return bool(files["none"])
