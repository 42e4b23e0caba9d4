"""The converters' command line, as a tool has it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from made_up import MadeUp
from test_convert import contents, samples
from typer.testing import CliRunner

from wdspack.convert import Options, Reader, cli, convert
from wdspack.shards import expand_urls

TOOLS = Path(__file__).parents[1] / "tools"


def made_up(
    source: Annotated[str, typer.Argument()],
    bad: Annotated[int, typer.Option()] = 0,
    *,
    storage_options: cli.Options = None,
) -> Reader:
    """Converts nothing that is."""
    seen.append((source, dict(storage_options or {})))
    return MadeUp((30, 70), bad=bad)


seen: list[tuple[str, dict[str, object]]] = []


@pytest.fixture
def tool():
    """Runs the tool: its exit code, and what it said, without line breaks."""
    seen.clear()

    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(cli.application(made_up), list(map(str, arguments)))
        return result.exit_code, re.sub(r"\s+", " ", result.output)

    return run


def test_a_tool_has_its_own_options_and_the_shared_ones(tool, tmp_path):
    code, said = tool(
        "src", tmp_path / "out", "--bad", 25, "--per-shard", 20, "--shuffle", 1, "--summary", tmp_path / "s"
    )
    assert code == 0, said
    convert(MadeUp((30, 70), bad=25), str(tmp_path / "expected"), Options(per_shard=20, shuffle=1))
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    summary = json.loads((tmp_path / "s").read_text())
    assert (summary["samples"], summary["shards"], summary["rejects"]) == (96, 5, {"made_up": 2, "other": 2})
    assert "samples │ 96" in said
    assert "other │ 2 │ row 24: row 24 is bad" in said
    assert re.search(r"100/100 .* rows/s", said), "progress"


def test_errors_are_one_line(tool, tmp_path):
    for arguments, message in (
        (("--bad", 10), "SampleError: 10 of 100 rows are rejected"),
        (("--bad", 10, "--max-rejects", "9"), "but max_rejects allows 9"),
        (("--max-rejects", "many"), "--max-rejects 'many': must be a count or a share"),
        (("--shard-size", "huge"), "--shard-size 'huge': must be a size, such as 256MB"),
        (("--storage-options", "[1]"), "--storage-options '[1]': must be an object"),
        (("--source-options", "{"), "--source-options '{' is not JSON"),
        (("--where", "nothing:at_all"), "where='nothing:at_all'"),
    ):
        code, said = tool("src", tmp_path / "out", *arguments)
        assert code == 1
        assert message in said
        assert "Traceback" not in said


def test_storage_options_are_the_outputs_and_the_sources_unless_these_have_their_own(tool, tmp_path):
    tool("src", tmp_path / "a", "--storage-options", '{"auto_mkdir": true}')
    tool("src", tmp_path / "b", "--storage-options", '{"auto_mkdir": true}', "--source-options", '{"anon": true}')
    assert [options for _, options in seen] == [{"auto_mkdir": True}, {"anon": True}]
    seen.clear()
    tool("s3://bucket/src", tmp_path / "c", "--storage-options", '{"auto_mkdir": true}')
    assert [options for _, options in seen] == [{}], "another store's are not for it"


def test_what_is_wrong_is_said_before_the_work(tool, tmp_path):
    code, said = tool("src", tmp_path / "out", "--summary", tmp_path / "none/s.json")
    assert (code, seen, "there is no folder" in said) == (1, [], True)
    assert tool("src", tmp_path / "out", "--memory", "0")[0] == 1
    assert not (tmp_path / "out").exists()


def test_a_share_of_rejects_may_be_a_fraction(tool, tmp_path):
    assert tool("src", tmp_path / "a", "--bad", 10, "--max-rejects", "0.1")[0] == 0
    code, said = tool("src", tmp_path / "b", "--bad", 10, "--max-rejects", "0.09")
    assert (code, "but max_rejects allows 9" in said) == (1, True)


def test_a_function_in_the_current_folder_chooses_rows(tool, tmp_path, monkeypatch):
    name = f"chooses_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import json\n\ndef early(files):\n    number = json.loads(files['json'])['number']\n"
        "    assert number != 70, 'no seventies'\n    return number < 50\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [path for path in before if path])
    code, said = tool("src", tmp_path / "a", "--where", f"{name}:early", "--limit", 60, "--workers", 2)
    assert code == 0, said
    assert len(samples(tmp_path / "a")) == 50
    code, said = tool("src", tmp_path / "b", "--where", f"{name}:early")
    assert code == 1
    assert re.search(
        r"ConfigError: row 70: \S+:early fails on the row 'a/70.x' of part-1: AssertionError: no seven", said
    )


@pytest.mark.parametrize(("text", "size"), [("256MB", 256_000_000), ("1.5 GiB", 3 << 29), ("10k", 10_000), ("7", 7)])
def test_sizes(tool, tmp_path, text, size):
    tool("src", tmp_path, "--shard-size", text, "--limit", 5)
    convert(MadeUp((30, 70)), str(tmp_path / "expected"), Options(shard_size=size, limit=5))
    assert json.loads((tmp_path / "convert.json").read_text()) == json.loads(
        (tmp_path / "expected/convert.json").read_text()
    )


def test_a_dry_run_writes_nothing(tool, tmp_path):
    code, said = tool("src", tmp_path / "out", "--bad", 50, "--dry-run")
    assert code == 0
    assert "nothing written" in said
    assert not (tmp_path / "out").exists()


def test_text_tokens_are_those_of_the_tokenizer(tmp_path, tokenizer_path):
    from wdspack.tokenizer import load_tokenizer  # imports much

    texts = ["One receipt, two totals.", "<image> is plain text here"]
    lines = [
        {"messages": [{"role": "user", "content": "What is this?"}, {"role": "assistant", "content": text}]}
        for text in texts
    ]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, TOOLS / "convert_messages.py", tmp_path / "records.jsonl", tmp_path / "out"]
    done = subprocess.run(
        [*command, "--tokenizer", tokenizer_path, "--per-shard", "1"],
        env={**os.environ, "PYTHONPATH": str(TOOLS.parent)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tokenizer = load_tokenizer(tokenizer_path, type("No", (), {"special_tokens": ()})())
    expected = sum(len(tokenizer.apply_chat_template(line["messages"], tokenize=True).input_ids) for line in lines)
    record = json.loads((tmp_path / "out/convert.json").read_text())
    assert record["summary"]["tokens"] == expected
    assert len(samples(tmp_path / "out")) == 2
    urls = expand_urls(str(tmp_path / "out/convert.json"))
    assert urls == [str(tmp_path / f"out/shard-{number:06d}.tar") for number in range(2)], "a manifest, too"
