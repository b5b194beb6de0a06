"""Workers on a Ray cluster. Ray places tasks on nodes and reports lost ones; we hand these out again.

The study and its files are put into Ray's object store once, and fetched once by each worker process; OpenHTP
itself has to be installed on the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from openhtp.core.errors import UnsupportedFeature
from openhtp.sweeping.engine import (
    Closeable,
    LostTask,
    NoWorkers,
    WorkerAnswer,
    WorkerTask,
    identity,
    verify_identity,
)
from openhtp.sweeping.study import Study, read_all

_AHEAD = 2
"""Tasks per core: one that runs, and one on its way."""
_STUDIES: dict[str, tuple[Study, Mapping[str, bytes]]] = {}
"""In a worker: the study that it serves, by its fingerprint."""


def _run(wanted: str, fingerprint: str, setup: list[Any], task: bytes) -> tuple[str, bytes]:
    """One task, in a worker process. A worker of another version measures nothing and reports its version."""
    if identity() != wanted:
        return identity(), b""
    from openhtp.sweeping.worker import measure

    if fingerprint not in _STUDIES:
        import ray

        encoded, files = ray.get(setup[0])
        _STUDIES.clear()
        _STUDIES[fingerprint] = (msgspec.msgpack.decode(encoded, type=Study), files)
    study, files = _STUDIES[fingerprint]
    decoded = msgspec.msgpack.decode(task, type=WorkerTask)
    rows, seconds = measure(study, decoded.points, files)
    return wanted, msgspec.msgpack.encode(WorkerAnswer(decoded.number, rows, seconds))


class RayCluster(Closeable):
    """All cores of a cluster, or as many as asked for."""

    def __init__(self, address: str | None, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise UnsupportedFeature("sweeps on Ray need it: pip install 'openhtp[ray]'") from error
        self._ray = ray
        self._address = address
        self._workers = workers
        self.slots = workers or _AHEAD
        self._ours = False
        self._tasks: dict[Any, WorkerTask] = {}
        self._answers = msgspec.msgpack.Decoder(WorkerAnswer)
        self._remote: Any = None
        self._arguments: tuple[Any, ...] = ()

    def start(self, study: Study) -> None:
        """Connect, and put the study where the workers find it."""
        ray = self._ray
        if not ray.is_initialized():
            try:
                ray.init(self._address, logging_level="ERROR", log_to_driver=False)
            except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
                where = self._address or "on this machine"
                raise NoWorkers(f"the Ray cluster {where} cannot be reached: {_in_one_line(error)}") from error
            self._ours = True
        if self._workers is None:
            self.slots = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Wrapped in a list it stays a reference, which a worker follows once and not for every task.
        setup = [ray.put((msgspec.msgpack.encode(study), read_all(study)))]
        self._arguments = (identity(), study.fingerprint, setup)
        self._remote = ray.remote(_run).options(num_cpus=1, max_retries=0)

    def submit(self, task: WorkerTask) -> None:
        """Queue a task; Ray finds a core for it."""
        reference = self._remote.remote(*self._arguments, msgspec.msgpack.encode(task))
        self._tasks[reference] = task

    def wait(self) -> list[WorkerAnswer | LostTask]:
        """Wait for the next answers."""
        ray = self._ray
        references = list(self._tasks)
        ray.wait(references, num_returns=1)
        ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        return [self._answer(reference) for reference in ready]

    def _answer(self, reference: Any) -> WorkerAnswer | LostTask:
        errors = self._ray.exceptions
        task = self._tasks.pop(reference)
        try:
            theirs, data = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise NoWorkers(f"a Ray worker cannot measure: {_in_one_line(error.cause or error)}") from error
        except (errors.RayError, RuntimeError) as error:
            # A module that is missing there comes as a failure to load the function.
            if "import" in str(error) or "ModuleNotFound" in str(error):
                raise NoWorkers(f"OpenHTP is not installed on a node: {_in_one_line(error)}") from error
            return LostTask(task.number, f"its worker was lost, {type(error).__name__}")
        verify_identity(theirs, "on the Ray cluster")
        return self._answers.decode(data)

    def close(self) -> None:
        """Let go of the cluster; tasks that are still queued are cancelled."""
        for reference in self._tasks:
            self._ray.cancel(reference, force=True)
        self._tasks = {}
        if self._ours:
            self._ray.shutdown()
            self._ours = False


def _in_one_line(error: BaseException) -> str:
    """The error's text on one line; a server's answer has its cause at the end, below a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
