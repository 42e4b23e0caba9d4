"""Starts a real S3 server on this machine to try streaming on, and runs it until Ctrl-C.

    python tools/serve_s3.py --folder s3 --upload wdspack-demo/shards

prints what to export in another terminal; `wdspack inspect 's3://wdspack/*.tar'` works there. What is uploaded stays in
the folder: the same command without --upload serves it again.
"""

import signal
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from wdspack.errors import ConfigError
from wdspack.serve import HOST, KEY, SECRET, Kind, S3Server


def main(
    bucket: Annotated[str, typer.Option(help="Its bucket, made where it is not there.")] = "wdspack",
    folder: Annotated[Path | None, typer.Option(help="Where objects are kept; a temporary one by default.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    upload: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="Put its files in, first.")] = None,
    prefix: Annotated[str, typer.Option(help="Of the names of uploaded files, such as train/.")] = "",
    server: Annotated[Kind, typer.Option(help="Which one.")] = "juicefs",
    listen: Annotated[str, typer.Option(help="0.0.0.0 serves other hosts, too.")] = HOST,
    key: Annotated[str, typer.Option(envvar="WDSPACK_S3_KEY", help="Of its only user.")] = KEY,
    secret: Annotated[str, typer.Option(envvar="WDSPACK_S3_SECRET", help="8 characters or more.")] = SECRET,
) -> None:
    """Starts an S3 server, prints the environment that finds it, and runs until Ctrl-C."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with ExitStack() as closing, suppress(KeyboardInterrupt):
        if folder is None:
            folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="wdspack-s3-")))
        try:
            running = closing.enter_context(
                S3Server(folder, bucket=bucket, port=port, key=key, secret=secret, kind=server, listen=listen)
            )
        except (ConfigError, OSError) as error:
            raise SystemExit(f"error: {error}") from None
        if upload is not None:
            urls = running.upload(upload, prefix)
            print(f"# {len(urls)} files in s3://{bucket}/{prefix}")
        for name, value in running.environment().items():
            if value != secret or secret == SECRET:  # one of the user's own stays out of logs
                print(f"export {name}={value}")
        print(f"# serving s3://{bucket} from {folder}; Ctrl-C ends it", flush=True)
        ended.wait()


if __name__ == "__main__":
    typer.run(main)
