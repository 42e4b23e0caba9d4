"""tools/serve_s3.py as a service: its own credentials, other hosts, an end in order."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wdspack.errors import ConfigError, ShardError
from wdspack.serve import S3Server, free_ports
from wdspack.storage import read_file

SCRIPT = Path(__file__).parents[1] / "tools" / "serve_s3.py"


@contextmanager
def served(folder: Path, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and what it prints until it serves."""
    process = subprocess.Popen(
        [sys.executable, "-u", SCRIPT, "--folder", folder, *arguments],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        said = ""
        while not said.endswith("Ctrl-C ends it\n"):
            line = process.stdout.readline()
            assert line, said
            said += line
        yield process, said
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module", autouse=True)
def installed(s3: S3Server) -> None:
    """A server is there, or these tests are skipped."""


def own_address() -> str:
    """This host's address as other hosts may see it; loopback where it has none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def options(port: int, host: str = "127.0.0.1", **changed: str) -> dict[str, str]:
    return {"key": "mine", "secret": "mine-and-long", "endpoint_url": f"http://{host}:{port}", **changed}


def test_credentials_of_the_environment_are_asked_for_and_the_secret_is_not_printed(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.bin").write_bytes(b"hello")
    (port,) = free_ports(1)
    given = {"WDSPACK_S3_KEY": "mine", "WDSPACK_S3_SECRET": "mine-and-long"}
    arguments = ["--port", str(port), "--listen", "0.0.0.0", "--upload", str(tmp_path / "files")]
    with served(tmp_path / "s3", *arguments, **given) as (process, said):
        assert "AWS_ACCESS_KEY_ID=mine\n" in said
        assert "mine-and-long" not in said
        url = "s3://wdspack/x.bin"
        assert read_file(url, storage_options=options(port)) == b"hello"
        assert read_file(url, storage_options=options(port, own_address())) == b"hello"
        with pytest.raises(ShardError) as raised:
            read_file(url, storage_options=options(port, secret="wdspack-secret"))
        assert raised.value.reason == "denied"
        process.send_signal(signal.SIGINT)  # what `docker stop` sends
        assert process.wait(20) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_by_itself_it_prints_all_that_a_client_needs_and_serves_this_machine_only(tmp_path):
    with served(tmp_path / "s3") as (process, said):
        found = dict(re.findall(r"export (\w+)=(.*)", said))
        assert found["AWS_SECRET_ACCESS_KEY"] == "wdspack-secret"
        port = int(found["AWS_ENDPOINT_URL"].rpartition(":")[2])
        if not own_address().startswith("127."):
            with socket.socket() as probe:
                assert probe.connect_ex((own_address(), port)) != 0
        process.terminate()
        assert process.wait(20) == 0


def test_a_short_secret_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="7 characters; the servers ask for 8"):
        S3Server(tmp_path, secret="1234567")
