"""Workers on this machine: processes of our own, one task each. One that ends is replaced."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections import deque
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import cast

import msgspec

from openhtp.core import interpreter
from openhtp.core.threads import finish
from openhtp.sweeping.engine import Closeable, LostTask, NoWorkers, WorkerAnswer, WorkerTask, verify_identity
from openhtp.sweeping.study import Study

_STILLBORN = 3
"""Workers that may end without having answered anything, before the pool gives up."""


class _WorkerProcess:
    """One process, and the task that it is doing."""

    def __init__(self, study: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                interpreter.command("-m", "openhtp.sweeping.worker", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=interpreter.environment(),
            )
        self.connection = Connection(ours.detach())
        self.task: WorkerTask | None = None
        self.known = False
        self._study = study

    def greet(self, theirs: bytes) -> None:
        """A worker first reports its version of OpenHTP."""
        verify_identity(theirs.decode(), f"process {self.process.pid}")
        self.known = True

    def send(self, task: WorkerTask) -> None:
        """Give it a task, and at first the study."""
        with contextlib.suppress(OSError):  # it is gone; waiting for it tells
            if self.task is None and self._study:
                self.connection.send_bytes(self._study)
                self._study = b""
            self.connection.send_bytes(msgspec.msgpack.encode(task))
        self.task = task

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


class LocalPool(Closeable):
    """As many workers as there are cores, or as asked for."""

    def __init__(self, workers: int | None = None) -> None:
        self.slots = workers or len(os.sched_getaffinity(0))
        self._workers: list[_WorkerProcess] = []
        self._study = b""
        self._stillborn = 0
        self._answers = msgspec.msgpack.Decoder(WorkerAnswer)

    @property
    def processes(self) -> list[int]:
        """Numbers of the workers' processes."""
        return [worker.process.pid for worker in self._workers]

    def start(self, study: Study) -> None:
        """Start the processes; they get ready while the driver goes on."""
        self._study = msgspec.msgpack.encode(study)
        for _ in range(self.slots):
            self._workers.append(self._start_worker())

    def submit(self, task: WorkerTask) -> None:
        """Give a task to a worker that has none."""
        next(worker for worker in self._workers if worker.task is None).send(task)

    def wait(self) -> list[WorkerAnswer | LostTask]:
        """Wait for the next answers."""
        answers: deque[WorkerAnswer | LostTask] = deque()
        while not answers:
            ready = wait([worker.connection for worker in self._workers])
            for connection in ready:
                worker = next(each for each in self._workers if each.connection is connection)
                try:
                    data = cast(Connection, connection).recv_bytes()
                except (EOFError, OSError):
                    answers.extend(self._replace(worker))
                    continue
                if not worker.known:
                    worker.greet(data)
                    continue
                self._stillborn = 0
                worker.task = None
                answers.append(self._answers.decode(data))
        return list(answers)

    def _replace(self, worker: _WorkerProcess) -> list[LostTask]:
        task = worker.task
        code = worker.process.wait()
        worker.end()
        if not worker.known:
            self._stillborn += 1
            if self._stillborn >= _STILLBORN:
                raise NoWorkers(f"workers end before they are ready, the last one with exit code {code}")
        self._workers[self._workers.index(worker)] = self._start_worker()
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        return [] if task is None else [LostTask(task.number, f"its worker ended, {cause}")]

    def _start_worker(self) -> _WorkerProcess:
        """Start a worker on a thread that no Ctrl-C reaches, which would leave a process that nobody ends."""
        return finish(partial(_WorkerProcess, self._study), name="openhtp-worker", discard=_WorkerProcess.end)

    def close(self) -> None:
        """End all processes. Again does nothing."""
        finish(self._end_workers, name="openhtp-worker")

    def _end_workers(self) -> None:
        while self._workers:
            self._workers.pop().end()
