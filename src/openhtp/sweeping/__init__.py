"""Sweeps: one question, thousands of estimates, plans, quantizations or live runs; here, or on a Ray cluster.

>>> import openhtp
>>> result = openhtp.sweep({"measure": "estimate", "axes": {"model": "zoo:tiny_mlp", "soc": ["SM8550", "SM8650"]}})
>>> [point["measured"]["latency_us"] > 0 for point in result.points]
[True, True]

Knows studies, stores and workers; ``cost``, ``planning`` and ``session`` measure points. Must
not know how anything is printed. Start at ``driver.py``; ``study.py`` is the data, ``parsing.py`` the file,
``measures/`` what can be measured, ``engine.py`` where.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openhtp.core import tidying
from openhtp.core.checks import path_of, shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.core.renamed import renamed_names
from openhtp.sweeping.driver import Progress, Standing, StudyDriver
from openhtp.sweeping.engine import NoWorkers, SweepEngine, WrongWorker
from openhtp.sweeping.parsing import load_study
from openhtp.sweeping.results import SweepResult, load_results
from openhtp.sweeping.store import Store, StoreError, WrongStore
from openhtp.sweeping.study import BadStudy, Study

__all__ = [
    "BadStudy",
    "NoWorkers",
    "Progress",
    "Standing",
    "StoreError",
    "Study",
    "SweepEngine",
    "SweepResult",
    "WrongStore",
    "WrongWorker",
    "load_results",
    "load_study",
    "sweep",
]

_MOST_WORKERS = 65_536


def sweep(
    study: Study | Mapping[str, Any] | str | Path,
    *,
    store: str | Path | None = None,
    on: str | SweepEngine = "local",
    workers: int | None = None,
    retry: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Measure all points of a study that are not in the store yet.

    Args:
        study: a file, the same as a mapping, or a ``Study``.
        store: folder that keeps every finished point; a run that was broken off goes on from there. Left out,
            points are kept in memory only.
        on: ``local`` for processes on this machine, ``ray`` for the Ray cluster of this machine (one is started if
            there is none), ``ray://host:port`` for another.
        workers: how many at once; by default as many as there are cores.
        retry: measure points that failed before once more.
        progress: called after every batch with how far the run is.

    Raises:
        BadStudy: the study is wrong; the message names the place.
        WrongStore: the store is of another study, or of another OpenHTP.
        StoreError: the store cannot be written; what was finished before is kept.
        NoWorkers: no worker comes up, or the cluster cannot be reached.
        WrongWorker: a worker has another OpenHTP.
        InvalidArgument: an argument is of another kind.
    """
    folder = None if store is None else path_of(store)
    if store is not None and folder is None:
        raise InvalidArgument(f"store is {shown(store)}; expected the path of a folder, or None")
    if progress is not None and not callable(progress):
        raise InvalidArgument(f"progress is {shown(progress)}; expected a function of a Standing, or None")
    engine = _engine(on, workers)
    loaded = load_study(study)
    with Store(folder) as points:
        points.claim(loaded)
        if retry:
            points.forget_failed()
        tidying.start()
        try:
            with engine:
                StudyDriver(loaded, points, engine, progress).run()
        except BaseException:  # perhaps a Ctrl-C that came before the workers were ended
            tidying.post((engine.close, ()))
            raise
        return SweepResult.of(points)


def _engine(on: str | SweepEngine, workers: int | None) -> SweepEngine:
    count = None if workers is None else whole_number(workers)
    if workers is not None and (count is None or not 1 <= count <= _MOST_WORKERS):
        raise InvalidArgument(f"workers is {shown(workers)}; expected a number from 1 to {_MOST_WORKERS}, or None")
    if isinstance(on, SweepEngine):
        return on
    if not isinstance(on, str) or not (on in ("local", "ray") or on.startswith("ray://")):
        raise InvalidArgument(f"on is {shown(on)}; expected local, ray or ray://host:port, or a SweepEngine")
    if on == "local":
        from openhtp.sweeping.pool import LocalPool

        return LocalPool(count)
    from openhtp.sweeping.on_ray import RayCluster

    return RayCluster(None if on == "ray" else on, count)


__getattr__ = renamed_names(__name__, {"Engine": "SweepEngine"})
