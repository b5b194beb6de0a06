"""A worker: measures the points it is given, and keeps what it has compiled for the next ones.

``python -m openhtp.sweeping.worker FD`` serves a driver on the other end of a socket until that closes. Workers of
other engines call ``measure`` themselves.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

import msgspec

from openhtp.core.errors import QnnError
from openhtp.sweeping.engine import WorkerAnswer, WorkerTask, identity
from openhtp.sweeping.measures import Measured, Measurer, find_measure
from openhtp.sweeping.study import PointResult, Study, StudyFiles, StudyPoint

_SERVED: dict[str, Measurer] = {}
"""The measurer of the study that was last asked for, by its fingerprint: a process serves one at a time."""


def measure(
    study: Study, points: Sequence[StudyPoint], shipped: Mapping[str, bytes] | None = None
) -> tuple[list[PointResult], float]:
    """Measure points; returns a row for each, and the seconds it took."""
    begin = time.perf_counter()
    key = study.fingerprint
    if key not in _SERVED:
        _SERVED.clear()
        _SERVED[key] = find_measure(study.measure).make(study, StudyFiles(study, shipped))
    measured = _measured(_SERVED[key], points)
    rows = [_point_result(point, each) for point, each in zip(points, measured, strict=True)]
    return rows, time.perf_counter() - begin


def _measured(measurer: Measurer, points: Sequence[StudyPoint]) -> Sequence[Measured | Exception]:
    try:
        return measurer.run([point.values for point in points])
    except Exception as error:  # a bug: the points that meet it fail with its message
        if len(points) == 1:
            return [error]
        return [_measured(measurer, [point])[0] for point in points]


def _point_result(point: StudyPoint, measured: Measured | Exception) -> PointResult:
    if not isinstance(measured, Exception):
        return PointResult(point, measured)
    message = measured.message if isinstance(measured, QnnError) else str(measured)
    return PointResult(point, None, f"{type(measured).__name__}: {message}")


def serve(connection: Connection) -> None:
    """Report this OpenHTP's version, get the study, and answer tasks."""
    connection.send_bytes(identity().encode())
    study = msgspec.msgpack.decode(connection.recv_bytes(), type=Study)
    tasks = msgspec.msgpack.Decoder(WorkerTask)
    while True:
        task = tasks.decode(connection.recv_bytes())
        rows, seconds = measure(study, task.points)
        connection.send_bytes(msgspec.msgpack.encode(WorkerAnswer(task.number, rows, seconds)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the driver's, which then closes the socket
    with contextlib.suppress(EOFError, OSError):
        serve(Connection(int(sys.argv[1])))
