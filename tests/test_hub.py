"""hf:// against a server that answers as the hub does: the hub's own client is at work, only the host is ours."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import textwrap
import threading

import pytest

DATA = os.urandom(3_000_000)
FILE = {"type": "file", "oid": "a" * 40, "size": len(DATA), "path": "data/x.tar"}
FOLDER = {"type": "directory", "oid": "c" * 40, "path": "data"}


class Hub(http.server.BaseHTTPRequestHandler):
    failures = 0  # ranges to refuse at first

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            return self.send([FILE if "/data?" in self.path else FOLDER])
        if self.path.startswith("/api/"):
            return self.send({"id": "me/set", "sha": "b" * 40, "siblings": []})
        if self.command == "GET" and Hub.failures:
            Hub.failures -= 1
            return self.send({}, status=503)
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        body = DATA[int(first) : int(last or len(DATA)) + 1]
        extent = f"bytes {first}-{int(first) + len(body) - 1}/{len(DATA)}"
        return self.send(body, status=206, headers={"ETag": '"x"', "Content-Range": extent})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send([FILE if "x.tar" in asked else FOLDER])

    def send(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("failures", [0, 2])
def test_shards_of_the_hub(failures: int) -> None:
    Hub.failures = failures
    code = """
        import hashlib
        from wdspack.storage import Access, list_files, open_shard, read_ranges
        (url,) = list_files("hf://datasets/me/set/data/*.tar")
        access = Access()
        with open_shard(url, access=access) as stream:
            print(url, hashlib.sha256(stream.read(10**7)).hexdigest(), access.counts["bytes"])
        with open_shard(url, start=2_000_000) as stream:
            print(stream.read(10**7)[:8].hex(), read_ranges(url, [(5, 8)])[0].hex())
    """
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60,
            env={**os.environ, **hub},
        )  # fmt: skip
        server.shutdown()
    assert done.stdout.split() == [
        "hf://datasets/me/set/data/x.tar", hashlib.sha256(DATA).hexdigest(), str(len(DATA)),
        DATA[2_000_000:2_000_008].hex(), DATA[5:13].hex(),
    ], done.stderr  # fmt: skip
