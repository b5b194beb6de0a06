"""Models that are prepared while they run, and the cache that processes share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import PATIENCE_S

import openhtp as htp
from openhtp import zoo
from openhtp.core.latches import Latch
from openhtp.core.model_store import ModelStore
from openhtp.session import prepared_model

OPTIONS: dict[str, Any] = {"transport": "inprocess"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(zoo.tiny_mlp())
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def feed(model: htp.PreparedModel | htp.InferenceSession) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(3)
    return {item.name: dice.standard_normal(item.shape).astype(np.float32) for item in model.get_inputs()}


def whats(model: htp.PreparedModel) -> list[str]:
    return [event.what for event in model.events]


def test_first_fast_then_best_then_from_the_cache(source: Path, cache: Path) -> None:
    """The flow of the Hexagon NPU runtime driver's example."""
    with htp.PreparedModel(source, cache=cache, soc="SM8650", **OPTIONS) as model:
        fast = model.run(None, feed(model))
        assert model.wait(PATIENCE_S)
        assert model.is_best
        assert whats(model) == ["prepared fast", "prepared well", "saved", "replaced"]
        best = model.run(None, feed(model))
        assert model.cache_path.is_file()
        assert all(event.at_s >= 0 for event in model.events)
    with htp.PreparedModel(source, cache=cache, soc="SM8650", **OPTIONS) as again:
        assert whats(again) == ["loaded from the cache"]
        assert again.is_best
        assert again.wait(0)
        for one, other in ((fast, best), (best, again.run(None, feed(again)))):
            np.testing.assert_allclose(one[0], other[0], atol=1e-3)


def test_levels_are_those_of_the_document(source: Path, cache: Path) -> None:
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as model:
        assert model.wait(PATIENCE_S)
        graph = model._now().session.executable.graph  # type: ignore[union-attr]
        assert graph.options.optimization_level == 3
    with htp.PreparedModel(source, cache=cache, provider_options={"vtcm_mb": "4"}, **OPTIONS) as other:
        assert whats(other)[0] == "prepared fast"  # made otherwise, so it is another entry
        assert other.cache_path != model.cache_path


@pytest.mark.parametrize("damage", [b"", b"nonsense", "half", "flip"])
def test_what_the_cache_cannot_use_is_made_again(source: Path, cache: Path, damage: Any) -> None:
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as model:
        assert model.wait(PATIENCE_S)
        expected = model.run(None, feed(model))
    whole = model.cache_path.read_bytes()
    data = {"half": whole[: len(whole) // 2], "flip": whole[:3000] + b"\0\1\2\3" + whole[3004:]}
    model.cache_path.write_bytes(data[damage] if isinstance(damage, str) else damage)
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as again:
        np.testing.assert_allclose(again.run(None, feed(again))[0], expected[0], atol=1e-3)
        assert again.wait(PATIENCE_S)
        assert again.is_best
        np.testing.assert_allclose(again.run(None, feed(again))[0], expected[0], atol=1e-3)
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as third:
        assert third.is_best


def test_runs_go_on_while_it_is_replaced(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is dropped: those under way end on what they began on, and that is closed with the last of them."""
    begin, closed = threading.Event(), []
    real_form, real_close = prepared_model.PreparedModel._best_form, htp.InferenceSession.close

    def best_form(self: htp.PreparedModel) -> htp.InferenceSession:
        assert begin.wait(PATIENCE_S)
        return real_form(self)

    def close(self: htp.InferenceSession) -> None:
        closed.append(self)
        real_close(self)

    monkeypatch.setattr(prepared_model.PreparedModel, "_best_form", best_form)
    monkeypatch.setattr(htp.InferenceSession, "close", close)
    with htp.PreparedModel(source, cache=cache) as model:
        values, over, results = feed(model), threading.Event(), []

        def work() -> None:
            while not over.is_set():
                results.append(model.run(None, values)[0])

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        first = model._now().session
        queued = [model.run_async(None, values) for _ in range(5)]
        begin.set()
        assert model.wait(PATIENCE_S)
        queued += [model.run_async(None, values) for _ in range(5)]
        over.set()
        for thread in threads:
            thread.join()
        results += [run.result(PATIENCE_S)[0] for run in queued]
        for result in results:
            np.testing.assert_allclose(result, results[0], atol=1e-3)
        assert model._now().session is not first
    assert closed.count(first) == 1
    with pytest.raises(htp.WrongState, match="closed"):
        model.run(None, values)


def test_failing_to_prepare_well_keeps_what_runs(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object) -> None:
        raise htp.OutOfMemory("by order of a test")

    monkeypatch.setattr(prepared_model.PreparedModel, "_best_form", fail)
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as model:
        assert model.wait(PATIENCE_S)
        assert not model.is_best
        assert whats(model) == ["prepared fast", "failed to prepare well"]
        assert model.run(None, feed(model))
    assert "by order of a test" in caplog.text


def test_a_full_disk_costs_only_the_cache(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as model:
        assert model.wait(PATIENCE_S)
        assert model.is_best
        assert "failed to save" in whats(model)
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == []


PROGRAM = """
import sys, openhtp as htp, numpy as np
with htp.PreparedModel(sys.argv[1], cache=sys.argv[2], transport="inprocess") as model:
    print("ready", flush=True)
    model.wait()
    print(",".join(event.what for event in model.events), flush=True)
    model.run(None, {item.name: np.zeros(item.shape, np.float32) for item in model.get_inputs()})
"""


def started(source: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(source), str(cache)], stdout=subprocess.PIPE, text=True
    )


def test_processes_make_it_once(source: Path, cache: Path) -> None:
    programs = [started(source, cache) for _ in range(2)]
    told = [program.communicate(timeout=PATIENCE_S)[0] for program in programs]
    assert all(program.returncode == 0 for program in programs)
    assert sum("saved" in words for words in told) == 1
    assert len([path for path in cache.iterdir() if path.suffix == ".model"]) == 1


def test_killed_while_it_writes_leaves_no_torn_file(source: Path, cache: Path) -> None:
    """What a killed process left is cleared away by the next, and nothing of it is ever loaded."""
    entry = prepared_model.onnx_entry(ModelStore(cache), source)
    ready, wake = os.pipe()
    child = os.fork()
    if child == 0:
        with entry.locked(Latch()):
            os.fsync = lambda fd: (os.write(wake, b"x"), signal.pause())  # type: ignore[assignment]
            entry.write({"model": b"x" * 100_000})
        os._exit(0)
    assert os.read(ready, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not entry.exists()
    assert len(list(cache.glob(".*.tmp"))) == 1
    with entry.locked(Latch()) as mine:
        assert mine
        entry.write({"model": b"whole"})
    assert entry.read() == {"model": b"whole"}
    assert list(cache.glob(".*.tmp")) == []
    os.close(ready)
    os.close(wake)


def test_one_who_waits_for_another_can_be_closed(source: Path, cache: Path) -> None:
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as probe:
        entry = probe._entry
        assert probe.wait(PATIENCE_S)
    entry.path.unlink()
    with entry.locked(Latch()):
        with htp.PreparedModel(source, cache=cache, **OPTIONS) as model:
            assert model.run(None, feed(model))
            assert not model.wait(0)
        assert model.wait(PATIENCE_S)
    assert not entry.exists()


def test_the_child_of_a_fork_does_not_wait(source: Path, cache: Path) -> None:
    with htp.PreparedModel(source, cache=cache, **OPTIONS) as probe:
        entry = probe._entry
        assert probe.wait(PATIENCE_S)
    entry.path.unlink()
    with entry.locked(Latch()), htp.PreparedModel(source, cache=cache, **OPTIONS) as model:
        child = os.fork()
        if child == 0:
            os._exit(5 if model.wait(PATIENCE_S) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


@pytest.mark.parametrize("given", ["file", "readonly"])
def test_bad_places(source: Path, tmp_path: Path, given: str) -> None:
    place = tmp_path / given
    if given == "file":
        place.write_text("x")
    else:
        place = Path("/proc/nowhere")
    with pytest.raises(htp.InvalidArgument, match="cache"):
        htp.PreparedModel(source, cache=place)
    with pytest.raises(htp.QnnError):
        htp.PreparedModel(tmp_path / "missing.onnx", cache=tmp_path / "cache")


def test_other_weights_beside_the_model_are_another_entry(tmp_path: Path, cache: Path) -> None:
    import onnx

    model = onnx.load_from_string(zoo.tiny_mlp())
    path = tmp_path / "big.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="big.data", size_threshold=0)
    first = prepared_model.onnx_entry(ModelStore(cache), path).path
    os.utime(tmp_path / "big.data", (1, 1))
    assert prepared_model.onnx_entry(ModelStore(cache), path).path == first
    weights = bytearray((tmp_path / "big.data").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "big.data").write_bytes(weights)
    os.utime(tmp_path / "big.data", (1, 1))
    assert prepared_model.onnx_entry(ModelStore(cache), path).path != first


def test_a_cache_that_is_no_place(source: Path) -> None:
    with pytest.raises(htp.InvalidArgument, match="cache is 5; expected a folder"):
        htp.PreparedModel(source, cache=5)  # type: ignore[arg-type]


def test_without_a_folder_the_users_cache_is_used(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENHTP_CACHE", str(cache))
    for expected in ("saved", "loaded from the cache"):
        with htp.PreparedModel(source, **OPTIONS) as model:
            assert model.wait(PATIENCE_S)
            assert expected in whats(model)
            assert model.cache_path is not None
            assert model.cache_path.parent == cache
    for place, warned in (("off", False), ("/proc/nowhere", True)):
        monkeypatch.setenv("OPENHTP_CACHE", place)
        with htp.PreparedModel(source, **OPTIONS) as model:
            assert model.wait(PATIENCE_S)
            assert model.is_best
            assert model.cache_path is None
            assert whats(model) == ["prepared fast", "prepared well", "replaced"]
        assert ("no cache" in caplog.text) is warned


def test_a_program_that_ends_meanwhile_says_nothing_of_it(source: Path, cache: Path) -> None:
    """It gave up what is being prepared by ending."""
    ends = (
        "import atexit, sys, threading\n"
        "begun, gone = threading.Event(), threading.Event()\n"
        "def go():\n"  # registered first, so called last: as devices go
        "    gone.set()\n"
        "    model._settled.wait(300)\n"
        "atexit.register(go)\n"
        "import openhtp as htp\n"
        "def prepare(model):\n"
        "    begun.set()\n"
        "    gone.wait(300)\n"
        "    raise RuntimeError('the device has gone')\n"
        "htp.PreparedModel._best_form = prepare\n"
        "model = htp.PreparedModel(sys.argv[1], cache=sys.argv[2])\n"
        "begun.wait(300)\n"
        "print('ends')\n"
    )
    command = [sys.executable, "-c", ends, str(source), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (done.stdout, "stays as it is" in done.stderr) == ("ends\n", False)
