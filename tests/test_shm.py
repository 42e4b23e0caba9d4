"""Too little shared memory: a clear error, at once, in a namespace whose /dev/shm is as small as we like."""

import shutil
import subprocess
import sys
import textwrap

import pytest
import yaml

SCRIPT = """
    import sys
    import wdspack
    from torch.utils.data import DataLoader

    config = wdspack.load_config(sys.argv[1])
    if sys.argv[2] == "loader":
        packs = wdspack.make_loader(config, batch_size=None, num_workers=2)
    else:
        packs = DataLoader(wdspack.PackedDataset(config), batch_size=None, num_workers=2)
    keys = [key for pack in packs for key in pack["keys"]]
    print(len(keys), len(set(map(tuple, keys))))
"""


@pytest.fixture
def run(shards, tokenizer_path, tmp_path):
    plan = {
        "sources": shards(counts=[20, 20], images=2).urls, "tokenizer": tokenizer_path, "seq_len": 512,
        "buffer_size": 8, "lanes": 2, "epochs": 1,
        "layout": {"type": "tile", "tile": 64, "max_side": 128, "tokens_per_tile": 4},
    }  # fmt: skip
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(plan))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    namespace = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("this user may not have a mount namespace of its own: `unshare --mount --map-root-user true` fails")

    def run(what: str, size: str) -> subprocess.CompletedProcess[str]:
        mount = 'mount -t tmpfs -o size="$1" tmpfs /dev/shm && shift && exec "$@"'
        command = [sys.executable, "-W", "ignore", str(tmp_path / "script.py"), str(tmp_path / "data.yaml"), what]
        return subprocess.run(
            [*namespace, "sh", "-c", mount, "sh", size, *command], capture_output=True, text=True, timeout=100
        )

    return run


@pytest.mark.parametrize(("what", "size"), [("loader", "128k"), ("dataset", "64m")])
def test_it_works_with_what_it_needs(run, what, size):
    done = run(what, size)
    assert done.stdout == "40 40\n", done.stderr


@pytest.mark.parametrize(
    ("what", "size", "named"), [("loader", "16k", "num_workers=2"), ("dataset", "256k", "pixel_values")]
)
def test_it_says_what_is_missing(run, what, size, named):
    done = run(what, size)
    assert done.returncode != 0
    last = next(line for line in reversed(done.stderr.splitlines()) if "ConfigError: " in line)
    assert named in last
    assert "are free in /dev/shm" in last
    assert "--shm-size" in last
