"""Grids and prompts against values computed by other code, and against exact arithmetic."""

import json
import math
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from wdspack.errors import ConfigError, SampleError
from wdspack.layouts import FixedLayout, Layout, NativeLayout, TileLayout

RULES = {
    "smolvlm_512_2048": TileLayout(),
    "smolvlm_364_1456": TileLayout(tile=364, max_side=1456, tokens_per_tile=81),
    "nanovlm_512_2048": TileLayout(style="nanovlm", upscale=False),
    "nanovlm_512_2048_upscale": TileLayout(style="nanovlm"),
    "qwen2vl_14_2": NativeLayout(),
}
LAYOUTS = [*RULES.values(), TileLayout(upscale=False), FixedLayout(), FixedLayout(fit="stretch", tokens=144)]
SIDE = st.integers(1, 6000)
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=repr)


@pytest.mark.parametrize("rule", RULES)
def test_every_golden_size(rule: str, shared: Path) -> None:
    cases = json.loads((shared / "golden/image_layouts.json").read_text())["cases"]
    assert len(cases) == 134
    for case in cases:
        expected, layout = case[rule], RULES[rule]
        if "error" in expected:
            with pytest.raises(SampleError, match="200 times") as refused:
                layout.measure(case["width"], case["height"])
            assert refused.value.reason == "aspect"
            continue
        grid = layout.measure(case["width"], case["height"])
        found = {"patches": grid.rows * grid.cols, "grid_h": grid.rows, "grid_w": grid.cols, **grid._asdict()}
        assert {name: found[name] for name in expected} == expected, case


@pytest.mark.parametrize("style", ["smolvlm", "nanovlm"])
def test_every_golden_tile_prompt(style: str, shared: Path) -> None:
    layout = TileLayout(style=style, tokens_per_tile=2)
    prompts = json.loads((shared / "golden/image_prompts.json").read_text())[style]
    for shape, expected in prompts.items():
        rows, cols = (max(1, int(side)) for side in shape.split("x"))
        assert layout.prompt(layout.grid(rows, cols)) == expected


def test_golden_native_prompt(shared: Path) -> None:
    expected = json.loads((shared / "golden/image_prompts.json").read_text())["qwen2vl"]
    assert NativeLayout().prompt(NativeLayout().measure(28, 28)) == expected


@given(width=SIDE, height=SIDE, tile=st.sampled_from([364, 384, 512]), times=st.integers(1, 8))
def test_smolvlm_grids_are_those_of_the_models_processor(width: int, height: int, tile: int, times: int) -> None:
    side = tile * times
    processor = SmolVLMImageProcessorPil(size={"longest_edge": side}, max_image_size={"longest_edge": tile})
    tiles, rows, cols = processor.get_number_of_image_patches(height, width)
    grid = TileLayout(tile=tile, max_side=side).measure(width, height)
    assert (grid.tiles, grid.rows, grid.cols) == (tiles or 1, rows, cols)


@given(width=SIDE, height=SIDE, upscale=st.booleans())
def test_nanovlm_grids_are_those_of_exact_arithmetic(width: int, height: int, upscale: bool) -> None:
    side = 2048 if upscale else min(2048, 512 * -(-max(width, height) // 512))
    scale = Fraction(side, max(width, height))
    exact = [height * scale / 512, width * scale / 512]
    grid = TileLayout(style="nanovlm", upscale=upscale).measure(width, height)
    for found, wanted in zip((grid.rows, grid.cols), exact, strict=True):
        on_edge = abs(wanted - round(wanted)) < 1e-9  # there the model's own floats may go either way
        assert found == math.ceil(wanted) or (on_edge and found == round(wanted) + 1)


@given(width=SIDE, height=SIDE, low=st.integers(1, 10**6), high=st.integers(784, 10**7))
def test_native_grids_are_those_of_the_models_processor(width: int, height: int, low: int, high: int) -> None:
    low = min(low, high)
    layout = NativeLayout(min_pixels=low, max_pixels=high)
    try:
        tall, wide = smart_resize(height, width, 28, low, high)
    except ValueError:
        with pytest.raises(SampleError):
            layout.measure(width, height)
        return
    grid = layout.measure(width, height)
    assert (grid.rows, grid.cols) == (tall // 14, wide // 14)
    assert grid.tokens == tall * wide // 28**2
    assert grid.tiles == math.ceil(tall * wide / 14**2 / 256)


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def tokenizer(request: pytest.FixtureRequest, shared: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared / "tokenizers" / request.param)


@by_layout
def test_length_is_what_a_real_tokenizer_counts(layout: Layout, tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.add_tokens(list(layout.special_tokens), special_tokens=True)
    for width, height in [(1, 1), (640, 480), (300, 1999), (2048, 150), (5000, 5000)]:
        grid = layout.measure(width, height)
        ids = tokenizer(layout.prompt(grid), add_special_tokens=False).input_ids
        assert len(ids) == grid.length
        assert ids.count(tokenizer.convert_tokens_to_ids(layout.image_token)) == grid.tokens
        assert {ids[0], ids[-1]} <= set(tokenizer.convert_tokens_to_ids(list(layout.special_tokens)))


@given(width=st.integers(20, 3000), height=st.integers(20, 3000))
@by_layout
def test_a_grid_is_consistent(layout: Layout, width: int, height: int) -> None:
    grid = layout.measure(width, height)
    assert layout.prompt(grid).count(layout.image_token) == grid.tokens <= grid.length
    views = layout.views(grid)
    assert layout.pixel_rows(grid) == sum(view.rows * view.cols for view in views)
    if not isinstance(layout, NativeLayout):
        assert layout.pixel_rows(grid) == grid.tiles
    blank = layout.blank()
    assert blank.length <= grid.length
    assert blank.tiles == 1
    assert layout.prompt(blank).count(layout.image_token) == blank.tokens > 0


def test_order_of_views_is_that_of_the_placeholders() -> None:
    for style, first in (("smolvlm", (3, 4)), ("nanovlm", (1, 1))):
        layout = TileLayout(style=style)
        views = layout.views(layout.measure(640, 480))
        assert [(view.rows, view.cols) for view in views] == [first, (1, 1) if first == (3, 4) else (3, 4)]
        assert ("<row_1" in layout.prompt(layout.measure(640, 480))[:40]) == (style == "smolvlm")


def test_only_nanovlm_numbers_images_and_only_several() -> None:
    nano = TileLayout(style="nanovlm")
    assert [nano.prefix(index, 2) for index in range(2)] == ["<image: 0>", "<image: 1>"]
    assert nano.prefix(0, 1) == TileLayout().prefix(1, 2) == NativeLayout().prefix(1, 2) == ""


def test_small_images_need_not_be_enlarged() -> None:
    assert TileLayout(upscale=False).measure(400, 300)[:3] == (0, 0, 1)
    assert TileLayout(upscale=False).measure(1000, 500)[:3] == (1, 2, 3)
    assert TileLayout().measure(400, 300)[:3] == (3, 4, 13)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5), (0, 0)])
@by_layout
def test_no_size_is_broken(layout: Layout, size: tuple[int, int]) -> None:
    with pytest.raises(SampleError, match="at least 1") as refused:
        layout.measure(*size)
    assert refused.value.reason == "broken_image"


@pytest.mark.parametrize(
    ("kind", "settings", "advice"),
    [
        (TileLayout, {"tile": 0}, "tile=0.*whole number of 1 or more"),
        (TileLayout, {"tile": 512.0}, "tile=512.0.*whole number"),
        (TileLayout, {"tokens_per_tile": -3}, "tokens_per_tile=-3"),
        (TileLayout, {"max_side": 2000}, "max_side a multiple"),
        (TileLayout, {"tile": 365, "max_side": 1460}, "even.*use tile=366"),
        (TileLayout, {"max_side": 5120}, "stops at 4096"),
        (TileLayout, {"style": "llava"}, "style='llava'"),
        (TileLayout, {"mean": (0.5, 0.5)}, "three finite numbers"),
        (TileLayout, {"mean": 0.5}, "three finite numbers"),
        (NativeLayout, {"std": (0.5, 0.0, 0.5)}, "above 0"),
        (NativeLayout, {"mean": (0.5, math.nan, 0.5)}, "finite"),
        (NativeLayout, {"min_pixels": 10**7}, "max_pixels=1003520 but it must be a whole number of 10,000,000"),
        (NativeLayout, {"min_pixels": 1, "max_pixels": 783}, "784 or more"),
        (NativeLayout, {"merge": True}, "merge=True"),
        (FixedLayout, {"tokens": 0}, "tokens=0"),
        (FixedLayout, {"fit": "crop"}, '"pad" or "stretch"'),
        (FixedLayout, {"image_token": ""}, "needs a placeholder"),
    ],
)
def test_settings_that_cannot_work(kind: type[Layout], settings: dict[str, object], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        kind(**settings)


@by_layout
def test_layouts_are_values(layout: Layout) -> None:
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert hash(type(layout)(**vars(layout))) == hash(layout)
    with pytest.raises(FrozenInstanceError):
        layout.mean = (0.0, 0.0, 0.0)  # type: ignore[misc]


def test_a_list_of_yaml_is_as_good_as_a_tuple() -> None:
    assert hash(TileLayout(mean=[0, 0, 0])) == hash(TileLayout(mean=(0.0, 0.0, 0.0)))  # type: ignore[arg-type]


def test_measuring_loads_neither_torch_nor_pillow() -> None:
    code = "import sys, wdspack.layouts; print({'torch', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
