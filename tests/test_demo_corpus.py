import gc
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import webdataset as wds
from PIL import Image, ImageOps

from wdspack.demo.charts import bar_chart
from wdspack.demo.corpus import BROKEN, DemoSample, draw_corpus, write_shards
from wdspack.demo.figures import scene

UNREADABLE = ("truncated_jpeg", "empty_image", "bomb")


@pytest.fixture(scope="module")
def corpus() -> list[DemoSample]:
    return list(draw_corpus())


def fingerprint(samples: Iterable[DemoSample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr((sample.key, sorted(sample.files().items()), sample.broken)).encode())
    return digest.hexdigest()


def texts(sample: DemoSample) -> list[str]:
    return [part["text"] for turn in sample.messages for part in turn["content"] if part["type"] == "text"]


def test_one_seed_gives_the_same_bytes_in_any_process() -> None:
    here = fingerprint(draw_corpus(3, 32))
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_demo_corpus import fingerprint, draw_corpus
print(fingerprint(draw_corpus(3, 32)))"""
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here == fingerprint(draw_corpus(3, 32))
    assert fingerprint(draw_corpus(4, 32)) != here


@pytest.mark.parametrize("samples", [0, 1, 14])
def test_any_number_of_samples_can_be_had(samples: int) -> None:
    assert [sample.key for sample in draw_corpus(0, samples)] == [f"{i:06d}" for i in range(samples)]


def test_the_promised_variety_is_there(corpus: list[DemoSample]) -> None:
    sound = [sample for sample in corpus if not sample.broken]
    assert len(corpus) >= 400
    assert len({sample.key for sample in corpus}) == len(corpus)
    assert {len(sample.images) for sample in sound} == set(range(7))
    assert {sample.broken for sample in corpus} == {None, *BROKEN}
    assert len(corpus) - len(sound) <= 0.05 * len(corpus)
    sizes = [sum(map(len, texts(sample))) / 4 for sample in sound if not sample.images]
    assert min(sizes) <= 5
    assert 5_000 < max(sizes) < 6_000
    assert 3 <= sum(size > 4_096 for size in sizes) <= 0.05 * len(corpus)
    turns = Counter(len(sample.messages) for sample in sound)
    assert {2, 3, 4, 6, 8} <= set(turns)
    assert {role["role"] for sample in sound for role in sample.messages} == {"system", "user", "assistant"}


def test_sound_images_decode_within_the_promised_sizes(corpus: list[DemoSample]) -> None:
    sides, kinds, turned, shapes = list[int](), Counter[tuple[str, str]](), 0, list[float]()
    for sample in corpus:
        for extension, data in [] if sample.broken in UNREADABLE else sample.images:
            with Image.open(io.BytesIO(data)) as image:
                image.draft("RGB", (64, 64))
                image.load()
                header = Image.open(io.BytesIO(data))
                assert {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[extension] == image.format
                sides += header.size
                shapes.append(header.width / header.height)
                kinds[extension, header.mode] += 1
                turned += header.getexif().get(0x0112, 1) != 1
    assert min(sides) == 32
    assert max(sides) == 3_000
    assert min(shapes) < 0.2
    assert max(shapes) > 5
    assert {("jpg", "RGB"), ("jpg", "L"), ("png", "P"), ("png", "RGB"), ("png", "RGBA"), ("webp", "RGB")} <= set(kinds)
    assert turned


def test_each_broken_sample_is_broken_in_its_own_way(corpus: list[DemoSample]) -> None:
    for how in BROKEN:
        sample = next(sample for sample in corpus if sample.broken == how)
        document, (_, image) = sample.files()["json"], sample.images[0]
        mentioned = sum(part["type"] == "image" for turn in sample.messages for part in turn["content"])
        assert (mentioned == 1) == (how != "image_count")
        assert ("assistant" in {turn["role"] for turn in sample.messages}) == (how not in ("no_answer", "no_text"))
        assert bool(texts(sample)) == (how != "no_text")
        if how == "bad_json":
            with pytest.raises(json.JSONDecodeError):
                json.loads(document)
        else:
            assert json.loads(document) == {"messages": sample.messages}
        if how == "empty_image":
            assert image == b""
        elif how == "bomb":
            with pytest.raises(Image.DecompressionBombError):
                Image.open(io.BytesIO(image))
        elif how == "truncated_jpeg":
            cut = Image.open(io.BytesIO(image))  # its header is sound: only decoding finds out
            with pytest.raises(OSError, match="truncated"):
                cut.load()


def test_every_image_is_mentioned_once_and_every_question_answered(corpus: list[DemoSample]) -> None:
    for sample in corpus:
        if sample.broken:
            continue
        parts = [part for turn in sample.messages for part in turn["content"]]
        assert sum(part["type"] == "image" for part in parts) == len(sample.images) <= len(sample.facts)
        spoken = [turn["role"] for turn in sample.messages if turn["role"] != "system"]
        assert spoken == ["user", "assistant"] * (len(spoken) // 2)
        assert all(texts(sample))


# What each question's answer must contain, worked out again from the data that was drawn. F: facts, then the groups.

Work = Callable[..., Any]
F = dict[str, Any]


def money(cents: int) -> str:
    return f"${cents / 100:.2f}"


def lookup(keys: list[str], values: list[Any], key: str) -> Any:
    return dict(zip(keys, values, strict=True))[key]


def extreme(values: list[int], names: list[str], pick: Callable[[list[int]], int]) -> str:
    assert values.count(pick(values)) == 1, "a question with two right answers"
    return names[values.index(pick(values))]


def clock_after(f: F, minutes: int) -> str:
    hours, rest = divmod(f["hour"] * 60 + f["minute"] + minutes, 60)
    return f"{(hours - 1) % 12 + 1}:{rest:02d}"


def longest_path(f: F, start: str) -> int:
    after = [two for one, two in f["arrows"] if one == start]
    return 1 + max(longest_path(f, two) for two in after) if after else 0


QUESTIONS: dict[str, dict[str, Work]] = {
    "bar": {
        r"Which bar is the highest\?": lambda f: extreme(f["values"], f["names"], max),
        r"Which bar is the lowest\?": lambda f: extreme(f["values"], f["names"], min),
        r"What is the value for (.+)\?": lambda f, name: lookup(f["names"], f["values"], name),
        r"How much more does (.+) have than (.+)\?": lambda f, a, b: (
            lookup(f["names"], f["values"], a) - lookup(f["names"], f["values"], b)
        ),
        r"What do all bars add up to\?": lambda f: sum(f["values"]),
        r"How many bars are above (\d+)\?": lambda f, bound: len([v for v in f["values"] if v > int(bound)]),
        r"Describe this chart\.": lambda f: f["names"][f["values"].index(max(f["values"]))] + " leads",
    },
    "line": {
        r"In which month does (.+) peak\?": lambda f, name: extreme(
            lookup(f["names"], f["series"], name), f["months"], max
        ),
        r"Which ends higher, (.+) or (.+)\?": lambda f, a, b: max(
            (a, b), key=lambda name: lookup(f["names"], f["series"], name)[-1]
        ),
        r"In how many months is (.+) above (.+)\?": lambda f, a, b: [
            one > two
            for one, two in zip(lookup(f["names"], f["series"], a), lookup(f["names"], f["series"], b), strict=True)
        ].count(True),
        r"How many lines are there\?": lambda f: len(f["series"]),
        r"Which months does the chart cover\?": lambda f: len(f["months"]),
    },
    "ring": {
        r"Which share is the largest\?": lambda f: extreme(f["shares"], f["names"], max),
        r"Which share is the smallest\?": lambda f: extreme(f["shares"], f["names"], min),
        r"What share do (.+) and (.+) have together\?": lambda f, a, b: (
            f"{lookup(f['names'], f['shares'], a) + lookup(f['names'], f['shares'], b)}%"
        ),
        r"Does (.+) make up more than half\?": lambda f, name: (
            "Yes" if lookup(f["names"], f["shares"], name) > 50 else "No"
        ),
        r"List the shares from largest to smallest\.": lambda f: ", ".join(
            f"{name} {share}%"
            for name, share in sorted(zip(f["names"], f["shares"], strict=True), key=lambda pair: -pair[1])
        ),
    },
    "table": {
        r"What is the figure for (.+) on (\w+)\?": lambda f, row, column: lookup(
            f["columns"], lookup(f["names"], f["cells"], row), column
        ),
        r"What does the column (\w+) add up to\?": lambda f, column: sum(
            lookup(f["columns"], row, column) for row in f["cells"]
        ),
        r"What does the row (.+) add up to\?": lambda f, row: sum(lookup(f["names"], f["cells"], row)),
        r"Which \w+ has the greatest total\?": lambda f: extreme([sum(row) for row in f["cells"]], f["names"], max),
        r"Write the table out as text\.": lambda f: "\n".join(
            " | ".join([name, *map(str, row)]) for name, row in zip(f["names"], f["cells"], strict=True)
        ),
    },
    "receipt": {
        r"What is the total\?": lambda f: money(sum(n * price for _, n, price in f["items"]) + f["tax"]),
        r"How much change was given\?": lambda f: money(
            f["paid"] - f["tax"] - sum(n * price for _, n, price in f["items"])
        ),
        r"How many articles were bought\?": lambda f: sum(n for _, n, _ in f["items"]),
        r"What does one (.+) cost\?": lambda f, article: money({name: price for name, _, price in f["items"]}[article]),
        r"What is the highest amount on a single line of items\?": lambda f: money(
            max(n * price for _, n, price in f["items"])
        ),
        r"Copy the items with their amounts\.": lambda f: "\n".join(
            f"{n} x {name}: {money(n * price)}" for name, n, price in f["items"]
        ),
    },
    "flow": {
        r"How many boxes are there\?": lambda f: len({name for arrow in f["arrows"] for name in arrow}),
        r"How many arrows are there\?": lambda f: len(f["arrows"]),
        r"What comes directly after (\w+)\?": lambda f, box: " and ".join(b for a, b in f["arrows"] if a == box),
        r"How many arrows does it take from (\w+) to .+\?": longest_path,
        r"List every arrow\.": lambda f: "\n".join(f"{a} -> {b}" for a, b in f["arrows"]),
    },
    "scene": {
        r"Which shape is it, and in which colour\?": lambda f: " ".join(f["shapes"][0]),
        r"How many shapes are there\?": lambda f: len(f["shapes"]),
        r"How many shapes are (\w+)\?": lambda f, colour: Counter(c for c, _ in f["shapes"])[colour],
        r"How many (\w+)s are there\?": lambda f, shape: Counter(s for _, s in f["shapes"])[shape],
        r"Name the colours that occur\.": lambda f: ", ".join(sorted({c for c, _ in f["shapes"]})).capitalize(),
    },
    "clock": {
        r"What time does the clock show\?": lambda f: clock_after(f, 0),
        r"What will it show in 45 minutes\?": lambda f: clock_after(f, 45),
        r"Which number is the minute hand on\?": lambda f: {0: 12}.get(f["minute"] // 5, f["minute"] // 5),
    },
    "log": {
        r"Here is a log\..*How many lines report an ERROR\?": lambda f: [r[0] for r in f["records"]].count("ERROR"),
        r"How many lines come from (\w+)\?": lambda f, service: [r[1] for r in f["records"]].count(service),
        r"What is the longest time.*": lambda f: f"{max(r[2] for r in f['records'])} ms",
        r"Give the number of lines for each level\.": lambda f: (
            f"INFO: {sum(level == 'INFO' for level, _, _ in f['records'])}"
        ),
    },
    "journal": {
        r"Day 1\..*How many crates of ([\w ]+) came in altogether\?": lambda f, what: sum(
            crates for _, goods, crates in f["records"] if goods == what
        ),
        r"How many deliveries came from ([\w ]+)\?": lambda f, depot: [r[0] for r in f["records"]].count(depot),
        r"On which day did the most crates arrive\?": lambda f: max(r[2] for r in f["records"]),
    },
}


def check_answer(facts: F, question: str, answer: str) -> None:
    for pattern, work in QUESTIONS[facts["kind"]].items():
        if match := re.fullmatch(pattern, question, re.DOTALL):
            expected = re.escape(str(work(facts, *match.groups())))
            assert re.search(rf"(?<![\w.$]){expected}(?!\w|\.\d)", answer), (facts, question, answer)
            if equation := re.fullmatch(r"([\d+\-.%$ ]+)= ([\d.%$]+?)( \D+)?\.", answer):
                left, right = (re.sub(r"[%$]", "", side) for side in equation.groups()[:2])
                assert sum(map(float, left.replace("- ", "-").replace("+", " ").split())) == pytest.approx(float(right))
            return
    pytest.fail(f"no check for the question {question!r}")


def turns_of(sample: DemoSample) -> list[tuple[str, str]]:
    spoken = [turn for turn in sample.messages if turn["role"] != "system"]
    said = [" ".join(part["text"] for part in turn["content"] if part["type"] == "text") for turn in spoken]
    return list(zip(said[::2], said[1::2], strict=True))


def test_answers_follow_from_what_was_drawn(corpus: list[DemoSample]) -> None:
    checked = Counter[str]()
    for sample in corpus:
        kinds = [facts["kind"] for facts in sample.facts]
        if sample.broken or len(kinds) != 1 or kinds == ["sums"]:
            continue
        for question, answer in turns_of(sample):
            check_answer(dict(sample.facts[0]), question, answer)
        checked[kinds[0]] += 1
    assert set(checked) == set(QUESTIONS)


def test_running_sums_are_right(corpus: list[DemoSample]) -> None:
    for sample in corpus:
        if [facts["kind"] for facts in sample.facts] == ["sums"] and not sample.broken:
            answers = [int(re.findall(r"\d+", answer)[-1]) for _, answer in turns_of(sample)]
            assert answers == [sum(sample.facts[0]["numbers"][: i + 1]) for i in range(len(answers))]


MEASURES: dict[str, Work] = {
    "bar": lambda f: sum(f["values"]),
    "line": lambda f: max(max(line) for line in f["series"]),
    "ring": lambda f: f"{max(f['shares'])}%",
    "table": lambda f: sum(sum(row) for row in f["cells"]),
    "receipt": lambda f: money(sum(n * price for _, n, price in f["items"]) + f["tax"]),
    "flow": lambda f: len({name for arrow in f["arrows"] for name in arrow}),
    "scene": lambda f: len(f["shapes"]),
    "clock": lambda f: f["hour"] % 12 * 60 + f["minute"],
}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def test_comparisons_and_articles_are_right(corpus: list[DemoSample]) -> None:
    compared = articles = 0
    for sample in corpus:
        if len(sample.facts) < 2:
            continue
        (question, answer), *more = turns_of(sample)
        if asked := re.search(r"About figure (\d): (.+)$", question, re.DOTALL):
            check_answer(dict(sample.facts[int(asked[1]) - 1]), asked[2], answer)
            late = re.sub(r"^And here is figure \d\. ", "", more[0][0])
            check_answer(dict(sample.facts[-1]), late, more[0][1])
            articles += 1
        else:
            scores = [str(MEASURES[facts["kind"]](facts)) for facts in sample.facts]
            amounts = [float(score.strip("$%")) for score in scores]
            winners = {ORDINALS[i] for i, amount in enumerate(amounts) if amount == max(amounts)}
            assert set(re.findall(r"\w+", answer)) & set(ORDINALS) == winners
            assert scores[amounts.index(max(amounts))] in answer
            assert all(reply.splitlines() == [f"{i}: {s}" for i, s in enumerate(scores, 1)] for _, reply in more)
            compared += 1
    assert compared >= 50
    assert articles >= 40


def test_bars_are_as_high_as_their_values() -> None:
    picture = next(
        drawn
        for drawn in (bar_chart(Random(seed), 1600, 800) for seed in range(20))
        if len(drawn.facts["values"]) >= 4  # wide, so that the bars stand upright
    )
    image = picture.image.convert("RGB").crop((0, 100, 1600, 800))
    colours = sorted(image.getcolors(1 << 24) or [], reverse=True)
    tint = colours[1][1]  # the paper covers most, the bars come next
    heights = [sum(image.getpixel((x, y)) == tint for y in range(0, 700, 2)) * 2 for x in range(1600)]
    bars, run = list[int](), list[int]()
    for height in [*heights, 0]:
        if height > 30:
            run.append(height)
        elif run:
            bars.append(sorted(run)[len(run) // 2])
            run = []
    values = picture.facts["values"]
    assert len(bars) == len(values)
    assert [bar / max(bars) for bar in bars] == pytest.approx([value / max(values) for value in values], abs=0.02)


def test_scenes_show_the_colours_they_name() -> None:
    rgb = {(216, 74, 74): "red", (63, 111, 209): "blue", (63, 158, 99): "green", (240, 194, 59): "yellow"}
    rgb |= {(142, 91, 192): "purple", (42, 45, 52): "black"}
    for seed in range(12):
        picture = scene(Random(seed), 400, 300)
        seen = {colour for _, colour in picture.image.getcolors(1 << 20) or []}
        assert {name for colour, name in rgb.items() if colour in seen} == {c for c, _ in picture.facts["shapes"]}


def test_a_turned_photo_is_upright_once_exif_is_obeyed(corpus: list[DemoSample]) -> None:
    for sample in corpus:
        for extension, data in sample.images if sample.broken not in UNREADABLE else []:
            image = Image.open(io.BytesIO(data))
            if extension == "jpg" and image.getexif().get(0x0112) == 6:
                assert ImageOps.exif_transpose(image).size == image.size[::-1]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves closing to the collector
def test_shards_give_the_samples_back(corpus: list[DemoSample], tmp_path: Path) -> None:
    some = corpus[:150]
    paths = write_shards(some, tmp_path / "one", per_shard=64)
    assert [Path(path).name for path in paths] == [f"demo-{i:06d}.tar" for i in range(3)]
    read = list(wds.WebDataset(paths, shardshuffle=False))
    gc.collect()  # so that what it left open does not warn in another test
    assert [sample["__key__"] for sample in read] == [sample.key for sample in some]
    for got, sample in zip(read, some, strict=True):
        assert {name: data for name, data in got.items() if not name.startswith("_")} == sample.files()
        assert len(sample.files()) == 1 + len(sample.images)
    again = write_shards(some, tmp_path / "two", per_shard=64)
    assert [Path(path).read_bytes() for path in paths] == [Path(path).read_bytes() for path in again]
