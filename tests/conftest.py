"""Corpora small enough to reason about, and where to find the large ones."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from corpora import Shards, training_texts
from hypothesis import settings

from wdspack.errors import ConfigError
from wdspack.serve import S3Server
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


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server. Where none is installed its tests are skipped, but fail with WDSPACK_REQUIRE_S3=1."""
    try:
        server = S3Server(tmp_path_factory.mktemp("s3"))
    except ConfigError as error:
        if os.environ.get("WDSPACK_REQUIRE_S3") == "1":
            raise
        pytest.skip(str(error))
    with server:
        yield server
