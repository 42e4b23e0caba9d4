"""Corpora small enough to reason about, and where to find the large ones."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from corpora import Shards, training_texts
from hypothesis import settings

from wdspack.tokenizer import train_tokenizer

settings.register_profile("project", database=None, derandomize=True, deadline=None)
settings.load_profile("project")


@pytest.fixture(scope="session")
def shared() -> Path:
    path = Path(os.environ.get("WDSPACK_SHARED", Path(__file__).parents[2] / "shared"))
    if not path.is_dir():
        pytest.skip(f"no shared data at {path}; set WDSPACK_SHARED to its folder")
    return path


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The project's own small tokenizer, saved."""
    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(training_texts(), vocab_size=600).save_pretrained(path)
    return str(path)


@pytest.fixture
def shards(tmp_path: Path) -> Callable[..., Shards]:
    """Makes a folder of shards: `shards(counts=[3, 0, 5])`."""
    return lambda **options: Shards(tmp_path, **options)
