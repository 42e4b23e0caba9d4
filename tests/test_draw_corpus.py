"""tools/draw_corpus.py and a converter give the shards of the demo, less what a converter refuses."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from transformers import AutoTokenizer

from wdspack.demo.corpus import BROKEN, draw_corpus

TOOLS = Path(__file__).parents[1] / "tools"
SAMPLES = 200  # every way to break a sample occurs once


def run(*command: object) -> str:
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_converter_reads_what_is_drawn(tmp_path):
    run(TOOLS / "draw_corpus.py", tmp_path / "corpus", "--samples", SAMPLES, "--seed", 3, "--vocabulary", 600)
    summary = tmp_path / "summary.json"
    run(TOOLS / "convert_messages.py", tmp_path / "corpus" / "records.jsonl", tmp_path / "shards", "--summary", summary)
    found: dict[int, dict[str, bytes]] = {}
    for shard in sorted((tmp_path / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, ending = member.name.partition(".")
                found.setdefault(int(key.rpartition("-")[2]), {})[ending] = tar.extractfile(member).read()

    drawn = list(draw_corpus(3, SAMPLES))
    assert {sample.broken for sample in drawn} == {None, *BROKEN}
    books = json.loads(summary.read_text())
    assert books["rows"] == SAMPLES == len(found) + sum(books["rejects"].values())
    for number, sample in enumerate(drawn):
        if sample.broken is None:
            assert json.load(io.BytesIO(found[number]["json"]))["messages"] == sample.messages
            assert [data for ending, data in found[number].items() if ending != "json"] == [d for _, d in sample.images]
        elif number in found:  # what only decoding can tell
            assert sample.broken == "truncated_jpeg"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "corpus" / "tokenizer")
    assert tokenizer.decode(tokenizer.encode("What is the total?"), skip_special_tokens=True) == "What is the total?"
