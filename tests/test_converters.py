"""The scripts in tools/: each makes, of its form, the shards that the form's reader says."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from datasets_of import FORMS, pictures
from test_readers import samples_in
from typer.testing import CliRunner

from wdspack.convert import cli, write_shards
from wdspack.records import conversation_from

TOOLS = Path(__file__).parents[1] / "tools"
COMMANDS = {
    "cauldron": "convert_parquet {in}",
    "saved": "convert_parquet {in}/saved",
    "referenced": "convert_parquet {in}/*.parquet --caption-prompt 'What is it?'",
    "llava": "convert_llava {in}/llava.json --images {in}/pics",
    "messages": "convert_messages {in}/rows.jsonl --check-images decode",
    "coco_captions": "convert_coco {in}/captions.json",
    "coco_instances": "convert_coco {in}/instances.json --images {in}",
    "beside": "convert_folder {in}/data --caption-prompt Say.",
    "table": "convert_table {in}/t.csv",
    "tsv": "convert_table {in}/t.tsv --path-column path --caption-column caption",
    "img2dataset": "reshard {in}/{{00000..00001}}.tar --canonical",
    "mds_by_hand": "convert_mds {in}",
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(TOOLS))

    def imported(name: str) -> ModuleType:
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return imported


def run(module: ModuleType, *arguments: str) -> str:
    name = module.__name__.removeprefix("convert_")
    result = CliRunner().invoke(cli.application(getattr(module, name)), arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("form", COMMANDS)
def test_tools_convert(form: str, tmp_path: Path, tool: object) -> None:
    import shlex

    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    if form == "saved":
        pytest.importorskip("datasets")
    _, expected = FORMS[form](source)
    name, *arguments = shlex.split(COMMANDS[form].format(**{"in": source}))
    run(tool(name), *arguments, str(output), "--per-shard", "4", "--max-rejects", "0")  # type: ignore[operator]
    shards = sorted(map(str, output.glob("*.tar")))
    assert [conversation_from(sample) for sample in samples_in(shards)] == expected


def test_reshard_filters_recompresses_and_calls_by_key(tmp_path: Path, tool: object) -> None:
    images = pictures(4)
    samples = [
        (f"k{at}", {"json": json.dumps({"caption": f"{at}"}).encode(), "jpg": image}) for at, image in enumerate(images)
    ]
    write_shards(samples, tmp_path / "in")
    arguments = f"{tmp_path}/in/ {tmp_path}/out --canonical --image-format png --max-side 20 --key id".split()
    run(tool("reshard"), *arguments, "--where", "test_converters:even", "--max-rejects", "0")  # type: ignore[operator]
    found = samples_in(sorted(map(str, (tmp_path / "out").glob("*.tar"))))
    assert [(sample.key, sorted(sample.files)) for sample in found] == [
        ("k0", ["json", "png"]),
        ("k2", ["json", "png"]),
    ]
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert [(reject["id"], reject["reason"]) for reject in rejects] == [("k1", "filtered"), ("k3", "filtered")]


def even(files: dict[str, bytes]) -> bool:
    """Whether the caption is an even number."""
    return int(json.loads(files["json"])["messages"][1]["content"][0]["text"]) % 2 == 0
