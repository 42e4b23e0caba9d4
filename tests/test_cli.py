"""The commands as a user runs them."""

import hashlib
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import wdspack
from wdspack.packing import STRATEGIES


def wdspack_(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "wdspack", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("a demo") / "out"
    return out, wdspack_("demo", "--out", str(out), "--samples", "60", "--workers", "2")


def test_the_demo_shows_strategies_ledger_and_speed(demo):
    out, done = demo
    for strategy in STRATEGIES:
        assert re.search(rf"{strategy} +\d+ +[\d.]+% +[\d.]+%", done.stdout), strategy
    read, packed, dropped, held = map(int, re.search(r"demo +(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)", done.stdout).groups())
    assert (read, held) == (60, 0)
    assert packed + dropped == 60
    assert dropped >= 2
    assert re.search(r"[\d,]+ samples/s, [\d,]+ tokens/s", done.stdout)
    assert (out / "report.html").stat().st_size < 3_000_000


def test_the_demo_is_the_same_every_time(demo, tmp_path):
    out, done = demo
    wdspack_("demo", "--out", str(tmp_path), "--samples", "60", "--workers", "0")
    for path in (out / "shards").iterdir():
        twin = tmp_path / "shards" / path.name
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(twin.read_bytes()).digest()
    assert (out / "tokenizer/tokenizer.json").read_bytes() == (tmp_path / "tokenizer/tokenizer.json").read_bytes()
    again = wdspack_("demo", "--out", str(out), "--samples", "60", "--workers", "2")
    figures = [re.findall(r"^ *(\w+ +\d+ +[\d.]+% .*?/\S+)", text, re.M) for text in (done.stdout, again.stdout)]
    assert figures[0] == figures[1]
    assert len(figures[0]) == len(STRATEGIES)


def test_the_demos_config_is_anybodys(demo):
    out, _ = demo
    config = wdspack.load_config(out / "data.yaml")
    loader = wdspack.make_loader(config, batch_size=2)
    assert next(loader)["input_ids"].shape == (2, 4096)
    loader.close()
    done = wdspack_("compare", str(out / "data.yaml"), "--limit", "30")
    assert re.search(r"rolling +\d+ +[\d.]+%", done.stdout)
    assert re.search(r"besides \d+ faulty samples", done.stdout)
    assert re.search(r"sizes: 0 shards from the index, (\d+) read \(no_index \1\)", done.stdout)


def test_the_demo_from_s3_gives_the_same_packs(s3, demo, tmp_path, monkeypatch):
    _, local = demo
    done = wdspack_("demo", "--out", str(tmp_path), "--samples", "60", "--workers", "2", "--storage", "s3")
    books = [re.findall(r"^demo .*|^dropped: .*|^packs: .*", text, re.M) for text in (local.stdout, done.stdout)]
    assert books[0] == books[1]
    assert len(books[0]) == 3
    assert re.search(r"storage: .*requests \d", done.stdout)
    assert "s3://wdspack/shards of an S3 server at http://" in (tmp_path / "report.html").read_text()
    with type(s3)(tmp_path / "s3") as server:  # as tools/serve_s3.py does
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with closing(wdspack.make_loader(wdspack.load_config(tmp_path / "data-s3.yaml"), batch_size=None)) as loader:
            assert all(url.startswith("s3://wdspack/shards/") for url, _ in next(loader)["keys"])


def test_inspect_shows_samples_and_what_is_wrong_with_them(demo):
    out, _ = demo
    done = wdspack_("inspect", f"{out}/shards/*.tar", "--count", "60")
    assert done.stdout.count("user: ") > 40
    assert "would be dropped (bad_json)" in done.stdout
    assert re.search(r"\.jpg +[\d,]+ bytes +\d+ × \d+", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["inspect", "/no/such-*.tar"], "ConfigError"),
        (["inspect", "/no/such.tar"], "/no/such.tar"),
        (["compare", "/no/such.yaml"], "cannot be read"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(arguments, says):
    assert says in " ".join(wdspack_(*arguments, code=1).stderr.split())


def test_a_file_that_is_no_tar_is_said_to_be_none(tmp_path):
    path = Path(tmp_path / "no.tar")
    path.write_bytes(b"hello" * 1000)
    assert "no.tar" in wdspack_("inspect", str(path), code=1).stderr
