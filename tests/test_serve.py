"""The S3 server that is started for a user, and the proxy that makes the way to it slow and broken."""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from fault_proxy import Fault, FaultProxy
from faults import parse_fault

from wdspack import serve
from wdspack.errors import ConfigError
from wdspack.serve import S3Server

TOOLS = Path(__file__).parents[1] / "tools"
DATA = bytes(range(256)) * 2000

pytestmark = pytest.mark.usefixtures("s3")  # skipped where no server is installed


def listening(endpoint):
    host, _, port = endpoint.removeprefix("http://").partition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0


def gone(endpoint, seconds=10.0):
    end = time.monotonic() + seconds
    while listening(endpoint) and time.monotonic() < end:
        time.sleep(0.02)
    return not listening(endpoint)


@pytest.fixture
def server(tmp_path):
    with S3Server(tmp_path / "server") as server:
        yield server


def test_objects_outlive_the_server(server, tmp_path):
    (tmp_path / "up/deep").mkdir(parents=True)
    (tmp_path / "up/b.tar").write_bytes(DATA)
    (tmp_path / "up/deep/a.tar").write_bytes(b"a")
    urls = server.upload(tmp_path / "up", prefix="train/")
    assert urls == ["s3://wdspack/train/b.tar", "s3://wdspack/train/deep/a.tar"]
    before, tag = server.endpoint, server.client().head_object(Bucket="wdspack", Key="train/b.tar")["ETag"]
    server.kill()
    assert not listening(before)
    server.start()
    server.restart()
    assert server.endpoint == before
    found = server.client().get_object(Bucket="wdspack", Key="train/b.tar", Range="bytes=1000-1999", IfMatch=tag)
    assert found["Body"].read() == DATA[1000:2000]
    server.stop()
    assert not listening(before)
    with S3Server(server.folder) as again:
        listed = again.client().list_objects_v2(Bucket="wdspack")["Contents"]
        assert [entry["Key"] for entry in listed] == ["train/b.tar", "train/deep/a.tar"]


def test_another_secret_is_refused(server):
    server.secret = "some-other-secret"
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        server.client().list_objects_v2(Bucket="wdspack")


def test_a_server_dies_with_its_owner(tmp_path):
    code = "import sys, time; from wdspack.serve import S3Server; s = S3Server(sys.argv[1]).start(); "
    code += "print(s.endpoint, flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "server")], stdout=subprocess.PIPE, text=True
    ) as owner:
        endpoint = owner.stdout.readline().strip()
        assert listening(endpoint)
        owner.kill()
    assert gone(endpoint)


def test_mistakes_say_what_to_do(s3, tmp_path, monkeypatch):
    port = int(s3.endpoint.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port={port}: another program listens there"):
        S3Server(tmp_path, port=port).start()
    with pytest.raises(ConfigError, match="bucket='My_Bucket'"):
        S3Server(tmp_path, bucket="My_Bucket")
    with pytest.raises(ConfigError, match="must be one of juicefs, seaweedfs"):
        S3Server(tmp_path, kind="minio")
    (tmp_path / "meta.db").write_text("no database")
    with pytest.raises(ConfigError, match=r"server\.log ends: .*not a database"):
        S3Server(tmp_path).start()
    monkeypatch.setattr(serve.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'wdspack\[s3-server\]'"):
        S3Server(tmp_path)


def test_serve_s3_prints_what_to_export_and_stops_in_order(s3, tmp_path):
    (tmp_path / "a.tar").write_bytes(DATA)
    command = [sys.executable, TOOLS / "serve_s3.py", "--upload", tmp_path, "--bucket", "try-it", "--prefix", "x/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        lines = [running.stdout.readline().strip() for _ in range(7)]
        exported = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export"))
        assert lines[0] == "# 1 files in s3://try-it/x/"
        assert exported.keys() == s3.environment().keys()
        assert listening(exported["AWS_ENDPOINT_URL"])
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
    assert gone(exported["AWS_ENDPOINT_URL"])


# --- the proxy ---------------------------------------------------------------------------------------------------


@pytest.fixture
def url(s3):
    """Of DATA, signed: the signature holds for whichever host it is asked of with that Host header."""
    s3.client().put_object(Bucket=s3.bucket, Key="data.bin", Body=DATA)

    def signed(endpoint):
        server = S3Server(s3.folder, port=int(endpoint.rpartition(":")[2]))
        return server.client().generate_presigned_url("get_object", Params={"Bucket": s3.bucket, "Key": "data.bin"})

    return signed


def fetched(url, start=0, stop=512_000):
    """The bytes that came, and the exception that ended it."""
    request, data = urllib.request.Request(url, headers={"Range": f"bytes={start}-{stop - 1}"}), b""
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:
            while chunk := answer.read1(4096):
                data += chunk
            return data, "" if answer.length == 0 else f"{answer.length} missing"
    except OSError as error:
        return data, type(error).__name__


def test_without_faults_bytes_pass_and_are_counted(s3, url):
    with FaultProxy(s3.endpoint) as proxy:
        assert fetched(url(proxy.endpoint)) == (DATA, "")
        assert fetched(url(proxy.endpoint), 10, 20) == (DATA[10:20], "")
        s3.client().head_object(Bucket=s3.bucket, Key="data.bin")
        through = S3Server(s3.folder, port=int(proxy.endpoint.rpartition(":")[2])).client()
        assert through.head_object(Bucket=s3.bucket, Key="data.bin")["ContentLength"] == len(DATA)
        through.put_object(Bucket=s3.bucket, Key="put.bin", Body=DATA)
        assert "data.bin" in {e["Key"] for e in through.list_objects_v2(Bucket=s3.bucket)["Contents"]}
        assert (proxy.count("GET", "/data.bin", "206"), proxy.count("HEAD"), proxy.count("PUT")) == (2, 1, 1)
        assert sum(n for request, n in proxy.sent.items() if request.path.endswith("/data.bin")) == len(DATA) + 10
    assert s3.client().get_object(Bucket=s3.bucket, Key="put.bin")["Body"].read() == DATA


@pytest.mark.parametrize(
    ("fault", "came", "ended"),
    [
        ("reset,at=5000", 4000, "ConnectionResetError"),
        ("cut,at=5000", 4000, "5000 missing"),
        ("short,after=100", 100, ""),
        ("stall,at=5000", 4000, "TimeoutError"),
        ("slow,rate=100000", 9000, ""),
        ("answer,status=400,code=ExpiredToken", 0, "HTTPError"),
    ],
)
def test_a_fault_strikes_where_it_is_told_to_and_once(s3, url, fault, came, ended):
    with FaultProxy(s3.endpoint, [parse_fault(fault + ",path=data.bin")]) as proxy:
        signed = url(proxy.endpoint)
        if "at=" in fault:
            assert fetched(signed, 0, 5000) == (DATA[:5000], "")  # does not cover byte 5000
        assert fetched(signed, 1000, 10_000) == (DATA[1000 : 1000 + came], ended)
        assert proxy.count(answer=fault.partition(",")[0]) == 1
        assert fetched(signed, 1000, 10_000) == (DATA[1000:10_000], "")


def test_an_answer_is_s3s_own(s3, url):
    with FaultProxy(s3.endpoint, [Fault(kind="answer", skip=1, times=2)]) as proxy:
        signed = url(proxy.endpoint)
        assert fetched(signed) == (DATA, "")
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match="503") as refused:
                urllib.request.urlopen(signed)
            assert b"<Code>SlowDown</Code>" in refused.value.read()
        assert fetched(signed) == (DATA, "")


def test_latency_and_rate(s3, url):
    with FaultProxy(s3.endpoint, first_byte=0.1, jitter=0.01, rate=1e6) as proxy:
        signed, begun = url(proxy.endpoint), time.monotonic()
        assert fetched(signed) == (DATA, "")
        assert time.monotonic() - begun > 0.1 + len(DATA) / 1e6
        assert 0.1 < proxy.delay() != proxy.delay() > 0.1


def test_a_store_that_is_down_looks_down():
    with FaultProxy("http://127.0.0.1:9") as proxy:
        assert fetched(f"{proxy.endpoint}/x")[1] == "ConnectionResetError"
        assert proxy.count(answer="down") == 1


@pytest.mark.parametrize("text", ["explode", "reset,when=5", "reset,at=soon", "call"])
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(ValueError, match=text):
        parse_fault(text)
