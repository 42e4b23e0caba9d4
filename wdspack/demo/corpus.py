"""The demo's corpus: charts, papers and figures drawn on the spot, their questions answered right by construction.

    draw_corpus(seed, samples) ──▶ DemoSample … ──write_shards──▶ [demo-000000.tar, …]

0 to 6 images a sample, 32 to 3,000 pixels a side, JPEG, PNG and WebP, in colour, gray, with a palette, with alpha or
turned by EXIF; about 5 to 6,000 tokens; one sample in 26 is broken on purpose, in the ways that real corpora are.
A sample depends on (seed, samples, its number) alone: the same bytes wherever Pillow and its codecs are the same.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from wdspack import convert
from wdspack.demo.canvas import Picture
from wdspack.demo.charts import bar_chart, line_chart, ring_chart
from wdspack.demo.encode import bomb, encode, save
from wdspack.demo.figures import clock, flow_chart, scene
from wdspack.demo.papers import receipt, table
from wdspack.demo.texts import Written, journal, log, sums
from wdspack.hashing import mix64

Message = dict[str, Any]

BROKEN = ("truncated_jpeg", "bad_json", "bomb", "no_answer", "empty_image", "image_count", "no_text")
"""How samples are broken on purpose."""

_BREAK_EVERY = 26
_DRAW = (bar_chart, receipt, line_chart, table, ring_chart, flow_chart, clock, scene)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_SYSTEM = "You read charts and papers with care, and answer briefly."


@dataclass(frozen=True, slots=True)
class DemoSample:
    """One conversation and its encoded images.

    messages: transformers' chat format, the n-th {"type": "image"} meaning the n-th image.
    images: (extension, bytes). broken: what was broken on purpose, one of BROKEN.
    facts: the data behind each picture or text, from which the answers can be worked out again.
    """

    key: str
    messages: list[Message]
    images: list[tuple[str, bytes]]
    facts: tuple[Mapping[str, Any], ...] = ()
    broken: str | None = None

    def files(self) -> dict[str, bytes]:
        """What a shard holds of the sample, by extension: "json" and "jpg", or "0.jpg", "1.png", …"""
        document = json.dumps({"messages": self.messages}, ensure_ascii=False).encode()
        if self.broken == "bad_json":
            document = document[:-17]
        alone = len(self.images) == 1
        named = {name if alone else f"{i}.{name}": data for i, (name, data) in enumerate(self.images)}
        return {"json": document, **named}


def draw_corpus(seed: int = 0, samples: int = 480) -> Iterator[DemoSample]:
    """Draws the corpus, one sample after the other, its kinds well mixed (from 400 samples on, all of them occur)."""
    recipes = [recipe for recipe, share in _RECIPES for _ in range(max(1, round(share * samples)))]
    Random(mix64(seed, samples)).shuffle(recipes)
    counts = dict.fromkeys(recipes, 0)
    for number in range(samples):
        rng = Random(mix64(seed, samples, number))
        key = f"{number:06d}"
        if number % _BREAK_EVERY == _BREAK_EVERY // 2:
            yield _broken(rng, key, number // _BREAK_EVERY)
            continue
        recipe = recipes[number % len(recipes)]
        draft = recipe(rng, counts[recipe])
        counts[recipe] += 1
        images = [encode(rng, picture) for picture in draft.pictures]
        yield DemoSample(key, draft.messages, images, draft.facts)


def write_shards(samples: Iterable[DemoSample], folder: str | Path, *, per_shard: int = 20) -> list[str]:
    """Writes `folder`/demo-000000.tar, … as `convert.write_shards` does."""
    files = ((sample.key, sample.files()) for sample in samples)
    return convert.write_shards(files, folder, name="demo", per_shard=per_shard)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A sample whose pictures are still to be encoded."""

    messages: list[Message]
    pictures: tuple[Picture, ...]
    facts: tuple[Mapping[str, Any], ...]


# Recipes. `count` is how many samples the recipe has made so far: what must not be left to chance (the kind of
# picture, how many of them, the extreme sizes) goes by it.


def _single(rng: Random, count: int) -> _Draft:
    """One picture, one to four questions, in turn; now and then a system message."""
    return _ask(rng, _DRAW[count % len(_DRAW)](rng, *_size(rng, 190, 1300)))


def _tiny(rng: Random, count: int) -> _Draft:
    """An icon of 32 to 96 pixels."""
    width, height = (rng.randint(32, 96), rng.randint(32, 96)) if count else (32, 32)
    return _ask(rng, (scene, clock)[count % 2](rng, width, height))


def _large(rng: Random, count: int) -> _Draft:
    """A scan or banner with a side of up to 3,000 pixels."""
    long, short = (rng.randint(1500, 3000), rng.choice((280, 420, 900, 1300, 1900))) if count else (3000, 2000)
    return _ask(rng, _DRAW[count % len(_DRAW)](rng, *((short, long) if count % 2 else (long, short))))


def _compare(rng: Random, count: int) -> _Draft:
    """Two to six pictures of one kind: which of them has the most of something?"""
    draw, many = _DRAW[count % len(_DRAW)], 2 + count % 5
    pictures = [draw(rng, *_size(rng, 190, 700)) for _ in range(many)]
    what, most, shown = max((picture.measure for picture in pictures), key=lambda measure: measure[1])
    winners = [_ORDINALS[i] for i, picture in enumerate(pictures) if picture.measure[1] == most]
    named = rng.random() < 0.5
    content = [part for i in range(many) for part in [*([_text(f"Picture {i + 1}:")] if named else []), _IMAGE]]
    content.append(_text(f"Which of these {many} pictures has the greatest {what}?"))
    answer = f"The {' and the '.join(winners)}, with {shown}{' each' if len(winners) > 1 else ''}."
    listing = "\n".join(f"{i}: {picture.measure[2]}" for i, picture in enumerate(pictures, 1))
    messages = [_say("user", *content), _say("assistant", _text(answer))]
    if rng.random() < 0.4:
        messages += _turn((f"Give the {what} of each picture, numbered.", listing))
    return _draft(messages, pictures)


def _article(rng: Random, count: int) -> _Draft:
    """Text and two to six different pictures interleaved, the last of them shown in a later turn."""
    many = 2 + count % 5
    pictures = [_DRAW[(count + 3 * i) % len(_DRAW)](rng, *_size(rng, 190, 800)) for i in range(many)]
    paragraphs = journal(rng, many)[1][0][0].split("\n\n")
    content = list[Message]()
    for i in range(many - 1):
        content += [_text(f"{paragraphs[i]}\n\nFigure {i + 1} ({pictures[i].facts['kind']}):"), _IMAGE]
    asked = rng.randrange(many - 1)
    question, answer = rng.choice(pictures[asked].turns)
    late, reply = rng.choice(pictures[-1].turns)
    content.append(_text(f"About figure {asked + 1}: {question}"))
    messages = [
        _say("user", *content),
        _say("assistant", _text(answer)),
        _say("user", _text(f"And here is figure {many}."), _IMAGE, _text(late)),
        _say("assistant", _text(reply)),
    ]
    return _draft(messages, pictures)


def _log(rng: Random, count: int) -> _Draft:
    return _written(log(rng, round(6 * 25 ** (count % 12 / 11))), rng.randint(1, 4))  # 6 to 150 lines


def _journal(rng: Random, count: int) -> _Draft:
    return _written(journal(rng, round(4 * 22 ** (count % 12 / 11))), rng.randint(1, 3))  # 4 to 88 entries


def _overlong(rng: Random, count: int) -> _Draft:
    """A text that no pack of 4,096 tokens can hold."""
    return _written(journal(rng, 138 + 6 * (count % 5)), 2)


def _sums(rng: Random, count: int) -> _Draft:
    return _written(sums(rng, 1 + count % 9), 9)


_RECIPES: tuple[tuple[Callable[[Random, int], _Draft], float], ...] = (  # and their shares of the corpus
    (_single, 0.42),
    (_compare, 0.15),
    (_article, 0.10),
    (_tiny, 0.07),
    (_large, 0.03),
    (_log, 0.08),
    (_journal, 0.06),
    (_overlong, 0.02),
    (_sums, 0.07),
)

_IMAGE: Message = {"type": "image"}


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def _say(role: str, *content: Message) -> Message:
    return {"role": role, "content": list(content)}


def _turn(turn: tuple[str, str]) -> list[Message]:
    return [_say("user", _text(turn[0])), _say("assistant", _text(turn[1]))]


def _draft(messages: list[Message], pictures: list[Picture]) -> _Draft:
    return _Draft(messages, tuple(pictures), tuple(picture.facts for picture in pictures))


def _ask(rng: Random, picture: Picture) -> _Draft:
    first, *more = rng.sample(picture.turns, rng.choice((1, 1, 2, min(4, len(picture.turns)))))
    shown = [_IMAGE, _text(first[0])] if rng.random() < 0.8 else [_text(first[0]), _IMAGE]
    messages = [_say("user", *shown), _say("assistant", _text(first[1])), *(m for turn in more for m in _turn(turn))]
    if rng.random() < 0.12:
        messages.insert(0, _say("system", _text(_SYSTEM)))
    return _draft(messages, [picture])


def _written(written: Written, turns: int) -> _Draft:
    facts, asked = written
    return _Draft([message for turn in asked[:turns] for message in _turn(turn)], (), (facts,))


def _size(rng: Random, least: int, most: int) -> tuple[int, int]:
    """A width and a height of `least` pixels or more, the longer one spread evenly on a log scale up to `most`."""
    long = least * (most / least) ** rng.random()
    short = long / rng.choice((1, 1.25, 4 / 3, 1.5, 16 / 9, 2.2))
    sides = round(long), max(least, round(short))
    return sides if rng.random() < 0.65 else sides[::-1]


def _broken(rng: Random, key: str, count: int) -> DemoSample:
    """A sample with one picture, broken in the `count`-th way."""
    draft, how = _single(rng, count), BROKEN[count % len(BROKEN)]
    _, data = save(draft.pictures[0].image, "jpg")
    sample = DemoSample(key, draft.messages, [("jpg", data)], draft.facts, how)
    question = _say("user", _IMAGE, _text(draft.pictures[0].turns[0][0]))
    match how:
        case "truncated_jpeg":
            return replace(sample, images=[("jpg", data[: len(data) * 6 // 10])])
        case "empty_image":
            return replace(sample, images=[("jpg", b"")])
        case "bomb":
            return replace(sample, images=[("png", bomb(60_000))])
        case "no_answer":
            return replace(sample, messages=[question])
        case "no_text":
            return replace(sample, messages=[_say("user", _IMAGE)])
        case "image_count":
            return replace(
                sample, messages=[_say("user", _IMAGE, *question["content"]), *_turn(("Why?", "See above."))]
            )
    return sample  # bad_json: spoilt where the file is written
