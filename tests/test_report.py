import base64
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from wdspack.compare import StrategyRow
from wdspack.demo.report import (
    LedgerRow,
    PackStrip,
    Report,
    SampleCard,
    Segment,
    render_report,
    runs,
    strip_from_pack,
    thumbnail,
)

EVIL = "<script>alert(1)</script>\"'>&<img src=http://x.test/a.png>"
VOID = {"meta", "link", "img", "path", "rect", "circle"}


class Page(HTMLParser):
    """Collects elements and text; fails where a tag closes what is not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements, self.text, self.open = list[tuple[str, dict[str, str]]](), "", list[str]()
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def all(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        return [found for name, found in self.elements if name == tag and kind in [*found.get("class", "").split(), ""]]


def picture(width: int = 900, height: int = 600, kind: str = "PNG", mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(file, kind)
    return file.getvalue()


@pytest.fixture
def report() -> Report:
    row = StrategyRow(
        name="rolling",
        packs=3,
        fill=0.975,
        padding=0.025,
        dropped={"too_long": 2, EVIL: 1},
        images_min=0,
        images_mean=2.5,
        images_max=7,
        micros=21.5,
    )
    return Report(
        title=EVIL,
        subtitle=EVIL,
        headline={EVIL: EVIL},
        strategies=[row, replace(row, name=EVIL)],
        ledger=[LedgerRow(source=EVIL, read=10, packed=6, dropped={"too_long": 2, EVIL: 1}, held=1)],
        lengths=[(10, 0), (40, 64), (4_000, 900)],
        packs=[PackStrip(100, (Segment(EVIL, 0, 40), Segment("b", 40, 90)), ((5, 25), (50, 60)), ((30, 40), (80, 90)))],
        samples=[
            SampleCard(
                key=EVIL, images=[picture(), b"not an image"], turns=[(EVIL, EVIL), ("assistant", EVIL)], tokens=3
            ),
            SampleCard(key="lost", turns=[("user", "x" * 9_000)], dropped=EVIL),
        ],
        notes=[EVIL],
    )


def test_the_page_is_self_contained_and_escapes_all_it_is_given(report: Report) -> None:
    html = render_report(report)
    page = Page(html)
    assert not page.all("script")
    assert not re.search(r"@import|url\(", html)
    assert len(page.all("img")) == 1  # the picture: the other image is broken, and none came from a text
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert attributes.get(name, "data:").startswith("data:")
    assert page.text.count(EVIL) >= 10
    assert "cannot be decoded" in page.text


def test_figures_stand_on_the_page(report: Report) -> None:
    text = re.sub(r"\s+", " ", Page(render_report(replace(report, title="A run"))).text)
    for shown in (
        "97.5%",
        "2.5%",
        "0 · 2.5 · 7",
        "21.5",
        "too long 2",
        "10 read = 6 packed + 3 dropped + 1 held",
        "adds up",
    ):
        assert shown in text
    assert "8,640 more characters" in text
    lying = LedgerRow(source="s", read=11, packed=6, dropped={}, held=1)
    assert "does not add up" in render_report(replace(report, ledger=[lying]))


def test_strips_add_up_to_the_pack() -> None:
    strip = PackStrip(100, (Segment("a", 0, 40), Segment("b", 40, 90)), ((5, 25), (50, 60)), ((30, 40), (80, 90)))
    page = Page(render_report(Report(title="t", packs=[strip])))
    (svg,) = page.all("svg", "strip")
    assert svg["viewbox"] == "0 0 100 30"
    drawn = {
        kind: [(int(rect["x"]), int(rect["x"]) + int(rect["width"])) for rect in page.all("rect", kind)]
        for kind in ("one", "two", "hit", "image", "trained")
    }
    assert drawn == {
        "one": [(0, 40)],
        "two": [(40, 90)],
        "hit": [(90, 100)],
        "image": [(5, 25), (50, 60)],
        "trained": [(30, 40), (80, 90)],
    }
    assert "a: 40 tokens, 20 of them image, 10 trained on" in page.text
    full = replace(strip, segments=(*strip.segments, Segment("c", 90, 100)))
    assert "padding:" not in Page(render_report(Report(title="t", packs=[full]))).text


def test_histogram_bars_hold_every_sample_and_token() -> None:
    lengths = [(10, 0), (40, 64), (41, 64), (700, 0), (3_000, 2_000)]
    page = Page(render_report(Report(title="t", lengths=lengths)))
    hovers = re.findall(r"([\d,]+) samples with ([\d,]+) text and ([\d,]+) image", page.text)
    first = hovers[: len(hovers) // 2]  # two charts over the same bins
    sums = [sum(int(row[i].replace(",", "")) for row in first) for i in range(3)]
    assert sums == [5, 3_791, 2_128]


def test_a_strip_from_a_pack() -> None:
    segment_ids = np.array([1, 1, 1, 1, 2, 2, 3, 3, 3, 0, 0], np.int32)
    labels = np.array([-100, -100, 7, 8, -100, 9, -100, -100, 4, -100, -100])
    images = np.array([0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0], bool)
    strip = strip_from_pack(segment_ids, labels, images, ["a", "b", "c"])
    assert strip.segments == (("a", 0, 4), ("b", 4, 6), ("c", 6, 9))
    assert strip.images == ((1, 2), (6, 8))
    assert strip.supervised == ((2, 4), (5, 6), (8, 9))
    assert (strip.seq_len, strip.padding_from) == (11, 9)
    with pytest.raises(ValueError, match="zip"):
        strip_from_pack(segment_ids, labels, images, ["a", "b"])
    filler = strip_from_pack(np.zeros(4, np.int32), np.full(4, -100), np.zeros(4, bool), [])
    assert (filler.segments, filler.padding_from) == ((), 0)


@given(st.lists(st.booleans(), max_size=40))
def test_runs_are_exactly_the_true_stretches(mask: list[bool]) -> None:
    found = runs(np.array(mask, bool))
    assert sorted(i for start, stop in found for i in range(start, stop)) == [i for i, on in enumerate(mask) if on]
    assert all(start < stop for start, stop in found)
    assert all(stop < start for (_, stop), (start, _) in pairwise(found))  # none touch


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "I;16", "CMYK"])
def test_thumbnails_are_small_jpegs(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    data = picture(500, 250, kind, "L" if mode == "I;16" else mode)
    head, _, body = (thumbnail(data) or "").partition(",")
    assert head == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(body))).size == (240, 120)


@pytest.mark.parametrize("data", [b"", b"nonsense", picture(64, 64)[:3_000]], ids=["empty", "nonsense", "cut"])
def test_what_cannot_be_decoded_has_no_thumbnail(data: bytes) -> None:
    assert thumbnail(data) is None


def test_a_page_of_noise_stays_small() -> None:
    segments = tuple(Segment(f"{i:06d}", i * 80, i * 80 + 80) for i in range(51))
    spans = tuple((i * 80 + 10, i * 80 + 60) for i in range(51))
    page = Report(
        title="t",
        packs=[PackStrip(4_096, segments, spans, spans)] * 24,
        samples=[
            SampleCard(key=str(i), images=[picture(300, 200)] * 3, turns=[("user", "y" * 20_000)]) for i in range(24)
        ],
    )
    assert len(render_report(page)) < 3_000_000


def test_an_empty_report_is_a_page_still() -> None:
    page = Page(render_report(Report(title="Nothing yet")))
    assert "Nothing yet" in page.text
    assert not page.all("section")
