"""Whole runs on local workers: every point once, whatever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import openhtp
from openhtp.core.errors import InvalidArgument
from openhtp.sweeping import NoWorkers, WrongWorker, driver, engine, load_results, load_study
from openhtp.sweeping.driver import StudyDriver
from openhtp.sweeping.engine import LostTask, WorkerAnswer
from openhtp.sweeping.pool import LocalPool
from openhtp.sweeping.store import Store
from openhtp.sweeping.worker import measure
from tests.sweeping.studies import estimates, plans
from tests.waiting import wait_until


class Here:
    """An engine without processes; ``fate`` may turn an answer into something else."""

    slots = 2

    def __init__(self, fate=lambda task, answer: answer):
        self.fate = fate
        self.tasks = []
        self.waiting = []

    def start(self, study):
        self.study = study

    def submit(self, task):
        self.tasks.append(task)
        self.waiting.append(task)

    def wait(self):
        task = self.waiting.pop()
        rows, seconds = measure(self.study, task.points)
        return [self.fate(task, WorkerAnswer(task.number, rows, seconds))]

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_all_points_in_order_as_estimate_has_them():
    result = openhtp.sweep(estimates())
    assert [point["number"] for point in result.points] == list(range(27))
    for point in result.points:
        if "vtcm_mb" in point["values"] and point["values"]["vtcm_mb"] == 4:
            alone = openhtp.estimate(
                "zoo:tiny_mlp", point["values"]["soc"], precision=point["values"]["precision"]
            )
            assert point["measured"]["latency_us"] == pytest.approx(alone.total_us, abs=1e-5)
    document = result.to_json()
    assert document["counts"] == {"points": 27, "failed": 0, "feasible": 27}
    assert document["times"] == "modelled"


def test_two_workers_say_what_one_says(tmp_path):
    study = plans(tmp_path)
    assert openhtp.sweep(study, workers=2).to_json() == openhtp.sweep(study, on=Here()).to_json()


def test_a_rerun_measures_only_what_is_missing(tmp_path):
    def broken(task, answer):
        if len(here.tasks) > 4:
            raise KeyboardInterrupt
        return answer

    study = plans(tmp_path)
    here = Here(broken)
    store = tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        openhtp.sweep(study | {"axes": study["axes"] | {"seed": {"from": 0, "to": 99}}}, store=store, on=here)
    before = load_results(store).rows
    assert 0 < len(before) < 200
    again = Here()
    result = openhtp.sweep(
        study | {"axes": study["axes"] | {"seed": {"from": 0, "to": 99}}}, store=store, on=again
    )
    assert len(result.rows) == 200
    asked = [point.number for task in again.tasks for point in task.points]
    assert sorted(asked + [row.point.number for row in before]) == list(range(200))
    finished = Here()
    openhtp.sweep(study | {"axes": study["axes"] | {"seed": {"from": 0, "to": 99}}}, store=store, on=finished)
    assert finished.tasks == []


def test_failures_are_listed_with_their_cause_and_can_be_tried_again(tmp_path):
    study = estimates(axes=estimates()["axes"] | {"soc": ["SM8350", "SM8650"], "vtcm_mb": [1, 16]})
    result = openhtp.sweep(study, store=tmp_path, on=Here())
    assert len(result.rows) == 12
    assert {cause for cause, _, _ in result.causes()} == {
        "InvalidArgument: vtcm_mb is 16; SM8650 has 8",
        "InvalidArgument: vtcm_mb is 16; SM8350 has 4",
        "UnsupportedFeature: SM8350 has no half precision; quantize the model, or say w8a8 or w8a16",
    }
    again = Here()
    openhtp.sweep(study, store=tmp_path, on=again)
    assert again.tasks == []
    openhtp.sweep(study, store=tmp_path, on=again, retry=True)
    assert sum(len(task.points) for task in again.tasks) == len(result.failed) == 7


def test_a_bug_costs_the_points_that_meet_it(monkeypatch):
    from openhtp.sweeping.measures.estimate import Estimates

    setting = Estimates._setting

    def buggy(self, values):
        if values["vtcm_mb"] == 2:
            raise ZeroDivisionError("a bug")
        return setting(self, values)

    monkeypatch.setattr(Estimates, "_setting", buggy)
    result = openhtp.sweep(estimates(), on=Here())
    assert {row.point.values["vtcm_mb"] for row in result.failed} == {2}
    assert {row.error for row in result.failed} == {"ZeroDivisionError: a bug"}
    assert len(result.measured) == 18


def test_a_point_that_kills_workers_is_found_out():
    """The task it is in is tried again, then taken apart; all others are measured."""

    def fate(task, answer):
        deadly = any(point.number == 5 for point in task.points)
        return LostTask(task.number, "its worker ended, signal 11") if deadly else answer

    result = openhtp.sweep(estimates(), on=Here(fate))
    assert [row.point.number for row in result.rows] == list(range(27))
    (failed,) = result.failed
    assert failed.point.number == 5
    assert failed.error == "its worker ended, signal 11; so did 2 before it"


def test_a_killed_worker_costs_time_only(tmp_path):
    pool = LocalPool(2)
    killed = []

    def kill_once(standing):
        if not killed and standing.done:
            killed.extend(pool.processes)
            for process in killed:
                os.kill(process, signal.SIGKILL)

    study = plans(tmp_path)
    study["axes"]["seed"] = {"from": 0, "to": 199}
    result = openhtp.sweep(study, on=pool, progress=kill_once)
    assert killed
    assert [row.point.number for row in result.rows] == list(range(400))
    assert not result.failed


def test_a_killed_driver_leaves_what_was_finished(tmp_path):
    study = plans(tmp_path)
    study["axes"]["seed"] = {"from": 0, "to": 1999}
    script = f"import openhtp; openhtp.sweep({study!r}, store={str(tmp_path / 'store')!r}, workers=1)"
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_until(lambda: (tmp_path / "store" / "sweep.sqlite").exists() and _rows(tmp_path / "store"))
        rows = _rows(tmp_path / "store")
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    found = _rows(tmp_path / "store")
    assert 0 < len(rows) <= len(found) < 4000
    here = Here()
    result = openhtp.sweep(study, store=tmp_path / "store", on=here)
    assert [row.point.number for row in result.rows] == list(range(4000))
    assert sum(len(task.points) for task in here.tasks) == 4000 - len(found)


def _rows(folder):
    """What a reader sees while the driver writes; nothing until there is a study."""
    try:
        return load_results(folder).rows
    except openhtp.sweeping.WrongStore:
        return []


def test_a_worker_with_another_openhtp_is_refused(tmp_path, monkeypatch):
    study = plans(tmp_path)
    monkeypatch.setattr(engine, "identity", lambda: "9.9.9+12345678")
    with pytest.raises(WrongWorker, match=r"this is 9\.9\.9\+12345678: install the same"):
        openhtp.sweep(study, workers=1)


def test_workers_that_do_not_come_up(tmp_path, monkeypatch):
    monkeypatch.setattr("openhtp.core.interpreter.command", lambda *words: [sys.executable, "-c", "exit(3)"])
    with pytest.raises(NoWorkers, match="exit code 3"):
        openhtp.sweep(plans(tmp_path), workers=1)


@pytest.mark.parametrize(("on", "workers"), [("mars", None), ("local", 0)])
def test_nowhere_to_run(on, workers):
    with pytest.raises(InvalidArgument):
        openhtp.sweep(estimates(), on=on, workers=workers)


def test_ray_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(openhtp.UnsupportedFeature, match=r"pip install 'openhtp\[ray\]'"):
        openhtp.sweep(estimates(), on="ray")


def test_tasks_grow_with_the_speed_of_the_workers(tmp_path):
    here = Here()
    study = load_study(estimates(axes=estimates()["axes"] | {"ddr_gbs": {"from": 1, "to": 200}}))
    with Store(None) as store:
        store.claim(study)
        told = []
        StudyDriver(study, store, here, told.append).run()
    sizes = [len(task.points) for task in here.tasks]
    assert max(sizes) > 256
    assert max(sizes) <= driver.LARGEST_TASK
    assert told[-1].done == told[-1].total == 5400
