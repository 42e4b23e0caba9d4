"""Files are cut between rows, wherever the chunks end that they are read in."""

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdspack.convert.readers import stretches
from wdspack.convert.readers.stretches import Split, Window, split_array, split_lines, split_table
from wdspack.errors import ConfigError
from wdspack.storage import ShardStream

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def split(data: bytes, splitter: Split[Any], chunk: int) -> list[Any]:
    """All rows; each is also found by reading from where it starts to where it, or the last one, ends."""

    def window(start: int = 0, stop: int | None = None) -> Window:
        return Window(ShardStream(io.BufferedReader(io.BytesIO(data[start:])), "x", position=start), stop)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "CHUNK", chunk)
        found = list(splitter(window()))
        for at, (start, end, row) in enumerate(found):
            assert list(splitter(window(start, end))) == [(start, end, row)]
            assert [row for _, _, row in splitter(window(start, found[-1][1]))] == [row for _, _, row in found[at:]]
    return [row for _, _, row in found]


@given(st.lists(VALUES, max_size=6), st.integers(1, 40), st.sampled_from([None, 1]), st.booleans(), st.booleans())
def test_arrays(rows: list[Any], chunk: int, indent: int | None, ascii_only: bool, marked: bool) -> None:
    text = json.dumps(rows, indent=indent, ensure_ascii=ascii_only)
    found = split(text.encode("utf-8-sig" if marked else "utf-8"), split_array, chunk)
    assert [json.loads(row) for row in found] == rows


@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(1, 40), st.data())
def test_arrays_that_are_cut_are_not_taken_for_whole(rows: list[Any], chunk: int, data: st.DataObject) -> None:
    whole = json.dumps(rows).encode()
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(ConfigError, match=r"not a JSON array|ends without"):
        list(split(cut, split_array, chunk))


@given(st.lists(TEXTS, max_size=6), st.integers(1, 40))
def test_lines(rows: list[str], chunk: int) -> None:
    data = b"\r\n".join(json.dumps(row).encode() for row in rows)
    assert [json.loads(row) for row in split(data, split_lines, chunk)] == rows


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=6), st.integers(1, 40), st.sampled_from(",\t;"))
def test_tables(rows: list[list[str]], chunk: int, delimiter: str) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows(rows)
    found = split(out.getvalue().encode(), split_table(delimiter, '"'), chunk)
    assert [[field.decode() for field in row] for row in found] == rows
