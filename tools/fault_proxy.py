"""The network between a reader and its object store, as slow and as broken as you like it.

    reader ──▶ FaultProxy (latency, MB/s a connection, faults) ──▶ S3 endpoint

On a loopback interface an object store has no latency and no faults; those are what reading from one is about:

    python tools/serve_s3.py --port 9000
    python tools/fault_proxy.py http://127.0.0.1:9000 --first-byte 0.03 --jitter 0.01 --rate 85 \\
        --fault reset,after=100000,share=0.01,times=inf --fault answer,status=503,code=SlowDown,skip=50,times=10

Requests pass as they are, with the Host header that the client signed. A thread serves each connection: its calls all
wait for sockets, and blocking relays of large chunks pass on about 1 GB for each second of one core.
"""

import math
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import typer
from faults import Fault, Plan, parse_fault

__all__ = ["Fault", "FaultProxy", "Request"]

_CHUNK = 1 << 20  # bytes relayed at a time


class Request(NamedTuple):
    """What the books are kept by. answer: the status, or the kind of the fault that struck, or "down"."""

    method: str
    path: str
    answer: str


class FaultProxy:
    """A proxy before `upstream` (http://host:port) that runs while its context is entered.

    first_byte, jitter: seconds until an answer begins, constant plus exponential with that mean. rate: bytes a second
    of a body, on each connection. seed: of what is random. port: 0 takes a free one.

    Attributes:
        endpoint: where to reach it.
        requests, sent: requests, and bytes of the bodies that were passed on to the reader, by `Request`.
    """

    def __init__(
        self,
        upstream: str,
        faults: Iterable[Fault] = (),
        *,
        first_byte: float = 0.0,
        jitter: float = 0.0,
        rate: float = math.inf,
        seed: int = 0,
        port: int = 0,
    ) -> None:
        self.upstream, self.first_byte, self.jitter, self.rate = urlsplit(upstream).netloc, first_byte, jitter, rate
        self.plan = Plan(faults, seed)
        self.requests, self.sent = Counter[Request](), Counter[Request]()
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._connections: set[socket.socket] | None = set()
        self._server = _Server(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fault-proxy")
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def inject(self, *faults: Fault) -> None:
        """More faults, from now on."""
        self.plan.add(*faults)

    def count(self, method: str = "GET", path: str = "", answer: str = "") -> int:
        """Requests so far with this method, this in their path, and this answer, if one is given."""
        with self._lock:
            found = [(r, n) for r, n in self.requests.items() if r.method == method and path in r.path]
        return sum(n for request, n in found if answer in ("", request.answer))

    def delay(self) -> float:
        """Seconds until the first byte of an answer."""
        with self._lock:
            return self.first_byte + (self._random.expovariate(1 / self.jitter) if self.jitter else 0.0)

    def book(self, request: Request, *, requests: int = 0, nbytes: int = 0) -> Request:
        with self._lock:
            self.requests[request] += requests
            self.sent[request] += nbytes
        return request

    def opened(self, connection: socket.socket) -> bool:
        """Notes a connection, to be closed at the end; False when that has come."""
        with self._lock:
            if self._connections is not None:
                self._connections.add(connection)
            return self._connections is not None

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            if self._connections is not None:
                self._connections.discard(connection)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._connections or ():
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections = None
        self._server.server_close()  # waits for the threads


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = False  # so that closing waits for them

    def __init__(self, address: tuple[str, int], proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Readers go away; that is theirs to notice."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a reader, and the one to the store that belongs to it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.proxy = self.server.proxy
        self.store: HTTPConnection | None = None
        if not self.proxy.opened(self.connection):
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        self.proxy.closed(self.connection)
        if self.store is not None:
            self.store.close()
        with suppress(OSError):
            super().finish()

    def relay(self) -> None:
        """One request and its answer, with what goes wrong with it."""
        begun, path = time.monotonic(), unquote(urlsplit(self.path).path)
        fault, position = None, 0
        if self.command == "GET":
            fault, position = self.proxy.plan.strike(path, *_range(self.headers.get("Range", "")))
        try:
            answer = self.ask() if fault is None or fault.kind != "answer" else None
        except (OSError, HTTPException):
            self.note(path, "down")
            return self.reset()
        time.sleep(max(0.0, begun + self.proxy.delay() - time.monotonic()))
        note = self.note(path, fault.kind if fault else str(answer.status) if answer else "")
        if answer is None:
            return self.refuse(fault)
        length = self.head(answer, position if fault and fault.kind == "short" else None)
        pace, before = _Pace(self.proxy.rate), min(position, length) if fault else length
        whole = self.pass_on(answer, before, pace, note)
        if whole and fault:
            if fault.then:
                fault.then()
            if fault.kind in ("reset", "cut", "stall"):
                return self.break_off(fault.kind)
            pace = _Pace(fault.rate) if fault.kind == "slow" else pace
            whole = self.pass_on(answer, length - before, pace, note)
        if not whole:  # the store went away in the middle
            return self.reset()
        if answer.length:  # "short" leaves some of it unread
            self.close_connection = True
        answer.close()  # the store's connection is free for the next request
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = relay

    def ask(self) -> HTTPResponse:
        """Passes the request on, as it is, and returns the store's answer, its body still to be read."""
        if self.store is None:
            self.store = HTTPConnection(self.proxy.upstream, timeout=60)
            self.store.connect()
            self.store.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":  # answered already, with "100 Continue"
                self.store.putheader(name, value)
        self.store.endheaders(self.rfile.read(int(self.headers.get("Content-Length", 0))) or None)
        return self.store.getresponse()

    def head(self, answer: HTTPResponse, most: int | None) -> int:
        """Sends the head of the store's answer; returns how long a body follows, `most` bytes if that is given."""
        chunked = answer.read() if answer.length is None else None  # lists, and the like
        length = answer.length or 0 if most is None else min(answer.length or 0, most)
        promised = (
            answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(chunked or b"") or length)
        )
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", promised)
        self.end_headers()
        self.wfile.write(chunked or b"")
        return length

    def pass_on(self, answer: HTTPResponse, nbytes: int, pace: "_Pace", note: Request) -> bool:
        """The next `nbytes` of the body; False where the store ends early."""
        buffer, done = memoryview(bytearray(min(pace.chunk, max(nbytes, 1)))), 0
        try:
            while done < nbytes and (got := answer.readinto(buffer[: nbytes - done])):
                self.connection.sendall(buffer[:got])
                done += got
                pace.wait(got)
        finally:
            self.proxy.book(note, nbytes=done)
        return done == nbytes

    def refuse(self, fault: Fault) -> None:
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(fault.body)))
        self.end_headers()
        self.wfile.write(fault.body)
        if fault.then:
            fault.then()

    def break_off(self, kind: str) -> None:
        if kind == "reset":
            return self.reset()
        self.close_connection = True
        if kind == "stall":
            with suppress(OSError):
                self.connection.recv(1)  # returns when the reader gives up, or the proxy ends
        return None

    def reset(self) -> None:
        """A TCP RST instead of an orderly end. What is under way gets a moment to arrive."""
        time.sleep(0.01)
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def note(self, path: str, answer: str) -> Request:
        return self.proxy.book(Request(self.command, path, answer), requests=1)


class _Pace:
    """Keeps a body at `rate` bytes a second. chunk: bytes to send at a time, so that it is a flow and no bursts."""

    def __init__(self, rate: float) -> None:
        self.rate, self.begun, self.sent = rate, time.monotonic(), 0
        self.chunk = max(1, int(min(_CHUNK, rate / 50)))

    def wait(self, nbytes: int) -> None:
        self.sent += nbytes
        time.sleep(max(0.0, self.begun + self.sent / self.rate - time.monotonic()))


def _range(header: str) -> tuple[int, float]:
    """[start, stop) of a Range header; everything where there is none (or it counts from the end)."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    return (int(first), int(last) + 1 if last else math.inf) if first else (0, math.inf)


def main(
    upstream: Annotated[str, typer.Argument(help="The store's endpoint, http://host:port.")],
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    first_byte: Annotated[float, typer.Option(help="Seconds until an answer begins.")] = 0.0,
    jitter: Annotated[float, typer.Option(help="Mean of the exponential seconds on top.")] = 0.0,
    rate: Annotated[float, typer.Option(help="MB/s on a connection.")] = math.inf,
    fault: Annotated[list[str] | None, typer.Option(help="kind,name=value,…; may be repeated. See faults.py.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is random.")] = 0,
) -> None:
    """Runs the proxy until Ctrl-C, then says what passed."""
    try:
        faults = [parse_fault(text) for text in fault or []]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fault") from error
    slow = {"first_byte": first_byte, "jitter": jitter, "rate": rate * 1e6}
    with FaultProxy(upstream, faults, **slow, seed=seed, port=port) as proxy, suppress(KeyboardInterrupt):
        print(f"export AWS_ENDPOINT_URL={proxy.endpoint}", flush=True)
        threading.Event().wait()
    rows: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for request, n in proxy.requests.items():
        rows[request.method, request.answer] += n
        nbytes[request.method, request.answer] += proxy.sent[request]
    for (method, answer), n in sorted(rows.items()):
        print(f"{method:6} {answer:8} {n:10,} requests {nbytes[method, answer]:18,} bytes")


if __name__ == "__main__":
    typer.run(main)
