"""FineVision's ratings: a list for each aspect, `relevance_ratings` say, with a number for each exchange of `texts`."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from wdspack.errors import ConfigError, SampleError

MinRating = int | Mapping[str, int]
_SUFFIX = "_ratings"


def rated(record: Mapping[str, Any], least: MinRating) -> dict[str, Any]:
    """The row without the exchanges that any aspect rates below `least`; an absent rating passes.

    least: for every aspect, or by aspect ({"relevance": 3}). What stays keeps its ratings, the aspects' `_min` are
    taken anew, and `dropped_turns` says how many exchanges went.

    Raises SampleError: "low_rating" if nothing stays, "bad_ratings" if ratings and exchanges differ in number.
    """
    texts = record.get("texts")
    if texts is None:
        return dict(record)
    if not isinstance(texts, list):
        raise SampleError(f"texts is {reprlib.repr(texts)}; to be rated it must be a list", reason="bad_messages")
    columns = {name: value for name, value in record.items() if name.endswith(_SUFFIX) and value is not None}
    for name, ratings in columns.items():
        if not isinstance(ratings, list) or len(ratings) != len(texts) or not all(map(_is_rating, ratings)):
            given = f"{name} is {reprlib.repr(ratings)}, but there are {len(texts)} exchanges"
            raise SampleError(f"{given}; give one number for each, or null", reason="bad_ratings")
    bounds = {name: _bound(name, least) for name in columns}
    stay = [
        at for at in range(len(texts))
        if all(ratings[at] is None or ratings[at] >= bounds[name] for name, ratings in columns.items())
    ]  # fmt: skip
    if texts and not stay:
        raise SampleError(f"each of {len(texts)} exchanges has a rating below {least}", reason="low_rating")
    kept = {**record, "texts": [texts[at] for at in stay]}
    for name, ratings in columns.items():
        kept[name] = [ratings[at] for at in stay]
        minimum = name.removesuffix(_SUFFIX) + "_min"
        if minimum in kept:
            kept[minimum] = min((rating for rating in kept[name] if rating is not None), default=None)
    return kept | ({"dropped_turns": len(texts) - len(stay)} if len(stay) < len(texts) else {})


def min_rating_of(texts: Sequence[str]) -> MinRating | None:
    """["3"] → 3, ["relevance=3", "formatting=2"] → {…}, [] → None. Raises ConfigError for anything else."""
    try:
        if len(texts) == 1 and "=" not in texts[0]:
            return int(texts[0])
        return {aspect: int(number) for aspect, number in (text.split("=") for text in texts)} or None
    except ValueError:
        message = f"min rating {' '.join(texts)!r}; give one number for all aspects, or aspect=number for each"
        raise ConfigError(message) from None


def aspects(columns: list[str]) -> list[str]:
    """The aspects that a table rates, by the names of its columns."""
    return [name.removesuffix(_SUFFIX) for name in columns if name.endswith(_SUFFIX)]


def _is_rating(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _bound(column: str, least: MinRating) -> float:
    return least if isinstance(least, int) else least.get(column.removesuffix(_SUFFIX), float("-inf"))
