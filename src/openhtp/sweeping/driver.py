"""Runs a study: proposes points, keeps the workers busy, and puts their answers into the store."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from openhtp.sweeping.engine import LostTask, SweepEngine, WorkerAnswer, WorkerTask
from openhtp.sweeping.measures import find_measure
from openhtp.sweeping.proposing import expected, proposals
from openhtp.sweeping.store import Store
from openhtp.sweeping.study import PointResult, Study, StudyPoint

_TASK_SECONDS = 0.25
"""Aim for the time of a task: long against the way to a worker, short against the loss if the worker ends."""
LARGEST_TASK = 2048
_GROWTH = 4
_DEATHS = 3
"""Workers that may end over a point before it counts as failed."""


class Standing(Struct, frozen=True):
    """How far a run is: ``done`` of ``total`` points, ``failed`` among them; the store had ``found`` before."""

    done: int
    total: int
    failed: int
    found: int


Progress = Callable[[Standing], None]


class StudyDriver:
    """One run of a study."""

    def __init__(self, study: Study, store: Store, engine: SweepEngine, progress: Progress | None = None) -> None:
        self._study = study
        self._store = store
        self._engine = engine
        self._progress = progress
        self._size = find_measure(study.measure).chunk
        self._largest = LARGEST_TASK
        self._numbers = itertools.count()
        self._under_way: dict[int, WorkerTask] = {}
        self._again: deque[list[StudyPoint]] = deque()
        self._deaths: Counter[int] = Counter()
        self._done = store.numbers()
        self._found = len(self._done)
        self._failed = 0
        self._total = expected(study)

    def run(self) -> None:
        """Measure all missing points. The workers are started only if there are any."""
        self._tell()
        started = False
        for batch in proposals(self._study, self._store):
            if isinstance(batch, list):  # the next batch comes only when this one is done: all workers share it
                self._largest = max(1, -(-len(batch) // self._engine.slots))
            missing = (point for point in batch if point.number not in self._done)
            first = next(missing, None)
            if first is None:
                continue
            if not started:
                self._engine.start(self._study)
                started = True
            self._measure(itertools.chain([first], missing))

    def _measure(self, points: Iterator[StudyPoint]) -> None:
        tasks = self._tasks(points)
        self._fill(tasks)
        while self._under_way:
            answers = self._engine.wait()
            rows: list[PointResult] = []
            for answer in answers:
                task = self._under_way.pop(answer.task)
                rows += self._rows_of(task, answer)
            # Workers go on while the disk is written.
            self._fill(tasks)
            if rows:
                self._store.add(rows)
                self._done.update(row.point.number for row in rows)
                self._failed += sum(row.error is not None for row in rows)
                self._tell()

    def _fill(self, tasks: Iterator[WorkerTask]) -> None:
        while len(self._under_way) < self._engine.slots:
            task = WorkerTask(next(self._numbers), self._again.popleft()) if self._again else next(tasks, None)
            if task is None:
                return
            self._under_way[task.number] = task
            self._engine.submit(task)

    def _tasks(self, points: Iterator[StudyPoint]) -> Iterator[WorkerTask]:
        while chunk := list(itertools.islice(points, min(self._size, self._largest))):
            yield WorkerTask(next(self._numbers), chunk)

    def _rows_of(self, task: WorkerTask, answer: WorkerAnswer | LostTask) -> Iterable[PointResult]:
        if isinstance(answer, WorkerAnswer):
            wanted = _TASK_SECONDS * len(task.points) / max(1e-6, answer.seconds)
            self._size = max(1, min(round(wanted), _GROWTH * self._size, LARGEST_TASK))
            return answer.rows
        self._deaths.update(point.number for point in task.points)
        deaths = max(self._deaths[point.number] for point in task.points)
        if deaths == 1:
            self._again.append(task.points)
        elif len(task.points) > 1:
            self._again.extend([point] for point in task.points)
        elif deaths < _DEATHS:
            self._again.append(task.points)
        else:
            return [PointResult(task.points[0], None, f"{answer.cause}; so did {deaths - 1} before it")]
        return ()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(Standing(len(self._done), self._total, self._failed, self._found))
