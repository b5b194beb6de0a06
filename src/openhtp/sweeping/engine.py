"""Where points are measured: workers behind one protocol. ``pool.py`` has them here, ``on_ray.py`` anywhere.

Results of two different versions of OpenHTP are not mixed, so each worker reports its ``identity``.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from msgspec import Struct

from openhtp.core.errors import ResourceError, UsageError
from openhtp.core.version import VERSION
from openhtp.sweeping.study import PointResult, Study, StudyPoint


class WorkerTask(Struct, frozen=True, array_like=True):
    """Some points for one worker."""

    number: int
    points: list[StudyPoint]


class WorkerAnswer(Struct, frozen=True, array_like=True, tag="answer"):
    """The results of a task, and how long the worker took."""

    task: int
    rows: list[PointResult]
    seconds: float


class LostTask(Struct, frozen=True, array_like=True, tag="lost"):
    """The worker ended before the task did."""

    task: int
    cause: str


class NoWorkers(ResourceError):
    """Workers do not come up, or cannot be reached."""


class WrongWorker(UsageError):
    """A worker has another OpenHTP than the driver."""


class Closeable:
    """Closed at the end of a ``with`` block, however that ends."""

    def close(self) -> None:
        """Let go of everything; again does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class SweepEngine(Protocol):
    """Runs tasks of one study. ``slots`` is how many tasks it takes before the caller has to wait for one."""

    slots: int

    def start(self, study: Study) -> None:
        """Bring up the workers."""

    def submit(self, task: WorkerTask) -> None:
        """Give a task to a worker."""

    def wait(self) -> list[WorkerAnswer | LostTask]:
        """Wait until some tasks have ended, in any order."""

    def close(self) -> None:
        """End the workers, whatever they are doing."""

    def __enter__(self) -> SweepEngine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def verify_identity(theirs: str, where: str) -> None:
    """Refuse a worker whose results might differ."""
    if theirs != identity():
        raise WrongWorker(
            f"the worker {where} has OpenHTP {theirs}, this is {identity()}: install the same there."
            " What is finished is kept"
        )


_SUFFIXES = (".py", ".toml")


@functools.cache
def identity() -> str:
    """``0.4.0+3fa9c1d2``: equal where the code is equal."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return f"{VERSION}+{digest.hexdigest()[:8]}"
