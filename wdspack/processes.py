"""Decoding in processes of their own, which draw into memory that they share with the consumer's.

    sender's thread ─▶ requests (one socket) ─▶ whichever process is free ─▶ answers (one socket) ─▶ who waits
        images, pickled ─▶ memory: rows of the batch │ images of its jobs ◀─ drawn here

Through the sockets goes only where things are. A request brings the memory's file descriptor along, so that memory can
be made at any time. Linux only: memory without a name, and sockets that keep messages apart.
"""

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil, prod
from mmap import mmap
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wdspack.buffers import Buffers, Shared
from wdspack.decoders import CLOSED, Decoders, Job, Renderer, Wait
from wdspack.errors import SampleError, WdspackError
from wdspack.orphans import end_with_parent


@dataclass(slots=True)
class _Request:
    """Some jobs that one process does in a row. errors: one a job, when they are done."""

    errors: list[Exception | None] | None = None


class _Message(NamedTuple):
    """What a process is told; the memory's descriptor comes with it.

    number: the request's. memory, alive: of `Shared`; what is no longer alive can be unmapped. jobs: for each, where
    its rows start and stop and where its pickled images do, in bytes.
    """

    number: int
    memory: int
    alive: tuple[int, ...]
    jobs: tuple[tuple[int, int, int, int], ...]


class Processes(Decoders):
    """Processes that end with the one that started them, however that ends.

    keep: memories to keep beside those in use. context: "fork", "spawn", "forkserver" or None, as in multiprocessing.
    """

    supported = sys.platform == "linux"

    def __init__(self, count: int, renderer: Renderer, *, keep: int = 1, context: str | None = None) -> None:
        super().__init__(renderer)
        self._alive: weakref.WeakSet[Shared] = weakref.WeakSet()
        self._stopped, self._keep = False, keep
        self._buffers, self._open, self._number = Buffers(self._shared, keep=keep), dict[int, _Request](), 0
        (self._requests, their_requests), (self._answers, their_answers) = _pair(), _pair()
        self._answers.settimeout(_LOOK)
        method = multiprocessing.get_context(context)
        given = their_requests, their_answers, renderer
        # The stubs do not know that every context has it.
        make: Any = method.Process  # type: ignore[attr-defined]
        self._processes = [make(target=_serve, args=given, name="wdspack-decoder", daemon=True) for _ in range(count)]
        try:
            for process in self._processes:
                process.start()
            self._sentinels = [process.sentinel for process in self._processes]
        except BaseException:
            self.stop()
            self.close()
            raise
        finally:
            their_requests.close()
            their_answers.close()

    def draw(self, rows: int, jobs: Sequence[Job]) -> tuple[torch.Tensor, list[Wait]]:
        if not self._stopped and wait(self._sentinels, timeout=0):
            raise self._ended()
        shape, dtype = self.renderer.shape(rows), self.renderer.dtype
        row, end = prod(shape[1:]) * dtype.itemsize, prod(shape) * dtype.itemsize
        pickled = [pickle.dumps(job.images, protocol=pickle.HIGHEST_PROTOCOL) for job in jobs]
        pixels, memory = self._buffers.lend(shape, dtype, extra=sum(map(len, pickled)))
        places = []
        for job, data in zip(jobs, pickled, strict=True):
            memory.content[end : end + len(data)] = np.frombuffer(data, np.uint8)
            places.append((job.start * row, job.stop * row, end, end + len(data)))
            end += len(data)
        waits: list[Wait] = []
        alive = tuple(memory.number for memory in self._alive)
        each = min(_JOBS, max(1, ceil(len(jobs) / min(_REQUESTS, 2 * len(self._processes)))))
        for first in range(0, len(jobs), each):
            request, some = _Request(), tuple(places[first : first + each])
            self._number += 1
            self._open[self._number] = request
            message = pickle.dumps(tuple(_Message(self._number, memory.number, alive, some)))
            try:
                socket.send_fds(self._requests, [message], [memory.fd])
            except OSError as error:
                raise self._ended() from error
            waits += [partial(self._wait, request, job) for job in range(len(some))]
        return pixels, waits

    def drawn(self, pixels: torch.Tensor) -> torch.Tensor:
        """A consumer that keeps its batches would run out of file descriptors."""
        return pixels.clone() if len(self._alive) > _KEPT + 2 * self._keep else pixels

    def stop(self) -> None:
        self._stopped = True
        for end in (self._requests, self._answers):
            with suppress(OSError):  # closed before
                end.shutdown(socket.SHUT_RDWR)  # wakes who waits there
        for process in self._processes:
            if process.pid is not None:
                process.terminate()
        for process in self._processes:
            if process.pid is not None:
                process.join()

    def close(self) -> None:
        self._buffers.close()
        for end in (self._requests, self._answers, *self._processes):
            with suppress(ValueError):  # a process that somebody else has waited for counts as running for ever
                end.close()

    def _shared(self, size: int) -> Shared:
        memory = Shared(size)
        self._alive.add(memory)
        return memory

    def _wait(self, request: _Request, job: int) -> None:
        while request.errors is None:
            try:
                answer = self._answers.recv(_LONGEST)
            except TimeoutError:
                if not wait(self._sentinels, timeout=0):
                    continue
                answer = b""
            except OSError:
                answer = b""
            if not answer:
                raise self._ended()
            number, errors = pickle.loads(answer)
            self._open.pop(number).errors = errors
        if (error := request.errors[job]) is not None:
            raise error

    def _ended(self) -> WdspackError:
        if self._stopped:
            return WdspackError(CLOSED)
        code, gone = None, wait(self._sentinels, timeout=_LOOK)
        for process in self._processes:
            if process.sentinel in gone:
                process.join()  # it may have closed its files, by which it was noticed, and not ended yet
                code = process.exitcode
        return WdspackError(
            f"a process that decodes images ended with exit code {code}"
            + (" (killed; by the system where memory ran out)" if code == -signal.SIGKILL else "")
            + "; iterate again to go on from the last batch delivered"
        )


_LOOK = 1.0  # seconds between two looks at whether all processes live
_KEPT = 32  # memories, beside those of the batches that are being drawn; each takes two file descriptors
_REQUESTS = 64  # of one batch: so many fit into a socket, should nobody take them out
_JOBS = 100  # of a request, at most: their errors have to fit into one message
_LONGEST = 1 << 18  # bytes of a message, for the system


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _serve(requests: socket.socket, answers: socket.socket, renderer: Renderer) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the consumer decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    gc.freeze()
    end_with_parent()
    mapped = dict[int, npt.NDArray[np.uint8]]()
    while True:
        try:
            data, (fd,), *_ = socket.recv_fds(requests, _LONGEST, 1)
        except (OSError, ValueError):  # no descriptor: the end
            return
        message = _Message(*pickle.loads(data))
        if message.memory not in mapped:
            mapped[message.memory] = np.frombuffer(mmap(fd, 0), np.uint8)
        os.close(fd)
        for gone in mapped.keys() - message.alive:
            del mapped[gone]
        memory = mapped[message.memory]
        errors = [_attempt(renderer, memory, *job) for job in message.jobs]
        del memory
        try:
            answers.send(pickle.dumps((message.number, errors)))
        except OSError:  # nobody waits any more
            return


def _attempt(
    renderer: Renderer, memory: npt.NDArray[np.uint8], start: int, stop: int, data: int, end: int
) -> Exception | None:
    out = memory[start:stop].view(np.float32 if renderer.normalize else np.uint8).reshape(renderer.shape(-1))
    try:
        renderer.draw(pickle.loads(memory[data:end].data), out)
    except SampleError as error:
        return error
    except Exception as error:  # which may not survive being pickled
        return WdspackError(f"decoding failed: {type(error).__name__}: {error}")
    return None
