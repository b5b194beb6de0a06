"""Sessions by the runtime's C interface: the same results, weights where they lie, and forms that are shared."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

import openhtp.onnx
from openhtp import zoo
from openhtp.compiler.driver import compile_graph
from openhtp.core import interpreter
from openhtp.core.errors import ExecutionError
from openhtp.core.shared_library import OUTDATED
from openhtp.engine import native
from openhtp.engine.cutting import prepare
from openhtp.engine.lowering import Lowered, lower_program
from openhtp.engine.native import Native, NativeSession, NativeWatch, SessionRefused, SharedForms
from openhtp.engine.onnx_graph import external_tensor, model_bytes, parse_model
from openhtp.engine.opened import End, PackagedSession
from openhtp.engine.ort import OrtEngine, OrtRun
from openhtp.engine.protocol import NOT_IN_A_ROW, RowWatch
from openhtp.engine.sessions import SegmentModel, optimised
from openhtp.hw.catalog import find_soc
from openhtp.program.htp_program import HtpProgram

SOC = find_soc("SM8650")
Array = npt.NDArray[np.float32]


def product(rows: int, weights: Array, extra: Array | None = None) -> SegmentModel:
    """``y = x @ w``, and ``+ b`` where there is one: weights of which a form is made, and some that are read."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y" if extra is None else "p"])]
    constants = {"w": weights}
    if extra is not None:
        nodes.append(helper.make_node("Add", ["p", "b"], ["y"]))
        constants["b"] = extra
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, weights.shape[0]))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, weights.shape[1]))],
        [external_tensor(name, array) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return SegmentModel(model_bytes(model), constants, ("x",), ("y",))


def computed(part: SegmentModel, session: NativeSession | PackagedSession, x: Array) -> Array:
    y = np.zeros((len(x), part.constants["w"].shape[1]), np.float32)
    OrtRun([session.bind({"x": x}, {"y": y})], (x, y)).step(0)
    return y


def network(name: str, *, quantized: bool) -> HtpProgram:
    model = zoo.MODELS[name]()
    return compile_graph(openhtp.onnx.load(zoo.quantized(model) if quantized else model), SOC)


def results(program: HtpProgram) -> dict[str, npt.NDArray[np.generic]]:
    rng = np.random.default_rng(0)
    arrays = {
        spec.name: rng.integers(0, 200, spec.shape).astype(spec.dtype.numpy)
        for spec in (*program.inputs, *program.outputs)
    }
    loaded = OrtEngine().load(program)
    run = loaded.bind(arrays)
    for step in range(loaded.steps):
        run.step(step)
    return {spec.name: arrays[spec.name] for spec in program.outputs}


@pytest.mark.parametrize("quantized", [True, False])
def test_results_are_those_of_the_package(side: Native, quantized: bool, request: pytest.FixtureRequest) -> None:
    program = network("small_cnn", quantized=quantized)
    outputs = results(program)
    request.getfixturevalue("package_only")
    for name, values in results(program).items():
        np.testing.assert_array_equal(outputs[name], values)


def test_ends_are_told_as_the_package_tells_them(side: Native) -> None:
    part = product(3, np.ones((8, 5), np.float32))
    for session in (part.open(1).session, part._packaged(1)):
        assert session.inputs() == [End("x", np.dtype("float32"), (3, 8))]
        assert session.outputs() == [End("y", np.dtype("float32"), (3, 5))]


def test_free_sizes_have_their_names(side: Native) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "free",
        [value("x", TensorProto.FLOAT16, ("rows", 4))],
        [value("y", TensorProto.FLOAT16, ("rows", 4))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = SegmentModel(model_bytes(model), {}, ("x",), ("y",)).open(1).session
    assert session.inputs() == [End("x", np.dtype("float16"), ("rows", 4))]


def test_a_session_fits_values_of_its_types_and_sizes(side: Native) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "free",
        [value("x", TensorProto.FLOAT, ("rows", 4))],
        [value("y", TensorProto.FLOAT, ("rows", 4))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    part = SegmentModel(model_bytes(model), {}, ("x",), ("y",))
    floats = np.dtype(np.float32)
    for session in (part.open(1).session, part._packaged(1)):
        assert session.fits({"x": (floats, (3, 4))}, {"y": (floats, (3, 4))})
        assert session.fits({"x": (floats, ("n", 4))}, {"y": (floats, (12345, 4))})
        for other in ((floats, (3, 5)), (floats, (3,)), (floats, (3, 4, 1)), (np.dtype(np.uint8), (3, 4))):
            assert not session.fits({"x": other}, {"y": (floats, (3, 4))})
            assert not session.fits({"x": (floats, (3, 4))}, {"y": other})
        assert not session.fits({"z": (floats, (3, 4))}, {"y": (floats, (3, 4))})
        assert not session.fits({"x": (floats, (3, 4)), "z": (floats, (3, 4))}, {"y": (floats, (3, 4))})
        assert not session.fits({}, {"y": (floats, (3, 4))})


def test_what_the_session_reads_is_kept_and_nothing_else(side: Native) -> None:
    rng = np.random.default_rng(1)
    weights, extra = rng.random((64, 48), np.float32), rng.random((2, 48), np.float32)
    x = rng.random((2, 64), np.float32)
    part = product(2, weights, extra)
    session = part.open(1).session
    assert isinstance(session, NativeSession)
    assert session.reads == {"b"}
    packed, read = weakref.ref(weights), weakref.ref(extra)
    expected = x @ weights + extra
    del part, weights, extra
    gc.collect()
    assert packed() is None
    assert read() is not None
    assert_close = np.testing.assert_allclose
    assert_close(computed(product(2, np.zeros((64, 48), np.float32)), session, x), expected, rtol=1e-4)
    del session
    gc.collect()
    assert read() is None


def test_data_that_does_not_last_is_copied_where_it_is_read(side: Native) -> None:
    weights, extra = np.eye(8, dtype=np.float32), np.ones((2, 8), np.float32)
    part = product(2, weights, extra)
    session = part.open(1, lasting=False).session
    extra[:] = 99  # whoever lent it uses it for something else
    x = np.zeros((2, 8), np.float32)
    assert isinstance(session, NativeSession)
    np.testing.assert_array_equal(computed(part, session, x), np.ones((2, 8)))


def test_memory_that_cannot_be_written_can_be_lent(side: Native) -> None:
    weights = np.frombuffer(np.eye(8, dtype=np.float32).tobytes(), np.float32).reshape(8, 8)
    assert not weights.flags.writeable
    part = product(1, weights)
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    np.testing.assert_array_equal(computed(part, part._native(side, 1, None, lasting=True), x), x)


def test_shared_forms_compute_the_same_and_outlive_who_made_them(side: Native) -> None:
    rng = np.random.default_rng(2)
    weights = rng.random((96, 80), np.float32)
    forms = SharedForms(side)
    few, many = product(1, weights), product(40, weights)
    first = few._native(side, 1, forms, lasting=True)
    second = many._native(side, 1, forms, lasting=True)
    del first, forms
    gc.collect()
    x = rng.random((40, 96), np.float32)
    alone = many._native(side, 1, None, lasting=True)
    np.testing.assert_array_equal(computed(many, second, x), computed(many, alone, x))


def test_equal_weights_of_sessions_of_other_sizes_take_memory_once(sessions_folder: Path) -> None:
    words = f"""
import numpy as np
from pathlib import Path
from openhtp.engine import native
native.FOLDER = Path({str(sessions_folder)!r})
from openhtp.core.machine import give_back_freed
from tests.engine.test_native_sessions import product
side = native.native()
def resident():
    give_back_freed()
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
def grown(forms):
    kept, before = [], resident()
    for rows in (1, 2, 3):
        weights = np.random.default_rng(3).random((2048, 2048), np.float32)
        kept.append(product(rows, weights)._native(side, 1, forms, lasting=True))
        del weights
    return resident() - before, kept
product(1, np.ones((64, 64), np.float32)).open(1)
shared, a = grown(native.SharedForms(side))
alone, b = grown(None)
print(round(alone), round(shared))
"""
    completed = subprocess.run(
        interpreter.command("-c", words),
        env=interpreter.environment() | {"PYTHONPATH": f"{Path(__file__).parents[2]}:{_src()}"},
        capture_output=True,
        text=True,
        check=True,
    )
    alone, shared = map(int, completed.stdout.split())
    assert alone > 44  # three times 16 MB, less what the heap had left over
    assert shared < 24


def _src() -> Path:
    return Path(native.__file__).parents[2]


def test_refusals_are_in_the_words_of_the_runtime(side: Native) -> None:
    part = product(1, np.eye(8, dtype=np.float32))
    with pytest.raises(SessionRefused, match=r"[Pp]rotobuf"):
        SegmentModel(b"nothing of the kind", {}, (), ()).open(1)
    session = part.open(1).session
    with pytest.raises(SessionRefused, match="nowhere"):
        session.bind({"nowhere": np.zeros(1, np.float32)}, {})
    wrong = session.bind({"x": np.zeros((3, 7), np.float32)}, {"y": np.zeros((1, 8), np.float32)})
    with pytest.raises(ExecutionError, match="step 0 failed"):
        OrtRun([wrong], ()).step(0)


def test_kernels_that_share_nothing_are_no_obstacle(side: Native) -> None:
    program = network("small_cnn", quantized=True)
    forms = SharedForms(side)
    staged = prepare(program, lower_program(program), 1, whole=True)
    assert staged is not None
    assert any(part.apart for part in staged.parts)
    for part in staged.parts:
        assert part.open(1, forms).session.outputs()


@pytest.mark.parametrize("way", ["side", "package_only"])
def test_harmful_optimisations_are_off_either_way(way: str, request: pytest.FixtureRequest) -> None:
    """A product and a sum would become a Gemm; that is what one of them does."""
    request.getfixturevalue(way)
    part = product(2, np.ones((64, 48), np.float32), np.ones((48,), np.float32))
    model = parse_model(part.model)
    lowered = Lowered(model, dict(part.constants), {}, {}, {})
    found, _ = optimised(lowered, 1)
    assert [node.op_type for node in found.graph.node] == ["MatMul", "Add"]


def test_without_the_compiled_part_the_package_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    native.native.cache_clear()
    assert native.native() is None
    (tmp_path / native.LIBRARY).write_bytes(b"no library")
    native.native.cache_clear()
    assert native.native() is None
    native.native.cache_clear()
    assert isinstance(product(1, np.eye(4, dtype=np.float32)).open(1).session, PackagedSession | NativeSession)
    monkeypatch.undo()
    native.native.cache_clear()  # what others of this process find


def test_names_of_any_length_are_read() -> None:
    side = native.native()
    if side is None:
        pytest.skip("the C side was not compiled")
    names = [f"{'long' * 100}{number}" for number in range(3)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("rows", 2)) for name in names]
    results = [helper.make_tensor_value_info(f"{name} made", TensorProto.FLOAT, ("rows", 2)) for name in names]
    nodes = [helper.make_node("Identity", [name], [f"{name} made"]) for name in names]
    graph = helper.make_graph(nodes, "long", ends, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = (
        SegmentModel(model_bytes(model), {}, tuple(names), tuple(one.name for one in results)).open(1).session
    )
    assert session.inputs() == [End(name, np.dtype(np.float32), ("rows", 2)) for name in names]
    assert session.outputs() == [End(f"{name} made", np.dtype(np.float32), ("rows", 2)) for name in names]


NEVER = 1 << 62


class Chain:
    """Three sessions, each reading what the one before it writes."""

    def __init__(self, last: int = 8) -> None:
        weights = np.diag(np.arange(1, 9)).astype(np.float32)
        self.values = [np.zeros((1, size), np.float32) for size in (8, 8, 8, last)]
        self.values[0][:] = 1
        session = product(1, weights).open(1).session
        ends = zip(self.values, self.values[1:], strict=False)
        self.run = OrtRun([session.bind({"x": x}, {"y": y}) for x, y in ends], (self.values,))

    def computed(self) -> list[bool]:
        """Which values were written."""
        return [bool(value.any()) for value in self.values[1:]]


@pytest.fixture
def news() -> Iterator[int]:
    """A descriptor that is readable."""
    fd = os.eventfd(1)
    yield fd
    os.close(fd)


def test_a_row_computes_what_its_steps_compute(side: Native, news: int) -> None:
    os.eventfd_read(news)
    chain, began_ns = Chain(), time.monotonic_ns()
    done = chain.run.row(1, 3, RowWatch(0, 0, NEVER, news))
    assert chain.computed() == [False, False, False]  # they had only zeros to read
    assert (done.steps, began_ns <= done.began_ns <= done.ended_ns <= time.monotonic_ns()) == (2, True)
    assert chain.run.row(0, 3, RowWatch(0, 0, NEVER, news)).steps == 3
    np.testing.assert_array_equal(chain.values[3][0], np.arange(1, 9, dtype=np.float32) ** 3)


def test_no_step_of_a_row_begins_after_news_or_its_time(side: Native, news: int) -> None:
    now = time.monotonic_ns()
    for watch, steps in (
        (RowWatch(0, 0, NEVER, news), 1),
        (RowWatch(now, NEVER, NEVER, news), 3),  # nobody looks yet
        (RowWatch(now, NEVER, now, news), 1),
    ):
        chain = Chain()
        assert chain.run.row(0, 3, watch).steps == steps
        assert chain.computed() == [step < steps for step in range(3)]


def test_a_step_that_fails_in_a_row_does_not_count(side: Native, news: int) -> None:
    chain, watch = Chain(last=7), RowWatch(0, NEVER, NEVER, news)
    assert chain.run.row(0, 3, watch).steps == 2
    assert chain.run.row(2, 3, watch).steps == 0
    with pytest.raises(ExecutionError, match="step 2 failed"):
        chain.run.step(2)


def test_sessions_of_the_package_are_computed_one_by_one(package_only: None, news: int) -> None:
    chain = Chain()
    assert chain.run.row(0, 3, RowWatch(0, 0, NEVER, news)) is NOT_IN_A_ROW
    assert chain.computed() == [False, False, False]


@pytest.mark.usefixtures("side")
def test_a_library_of_other_sources_is_not_used_and_a_warning_says_what_to_do(
    sessions_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert native.absence() == ""
    sources = tmp_path / "native"
    shutil.copytree(Path(native.__file__).parent / "native", sources)
    monkeypatch.setattr(native, "SOURCES", sources)
    native.native.cache_clear()
    assert native.native() is not None
    with (sources / "sessions.c").open("a") as file:
        file.write("/* pulled */")
    native.native.cache_clear()
    assert native.native() is None
    (warning,) = caplog.messages
    assert "compiled from other C sources than those that are here. What to do: compile it again" in warning
    assert native.absence() == OUTDATED
    shutil.rmtree(sources)  # as in an app that was frozen without them
    native.native.cache_clear()
    assert native.native() is not None


class Turns(ctypes.Structure):
    """What callers and the computing thread have in common."""

    _fields_ = (("claimed", ctypes.c_int64), ("queueing", ctypes.c_int32))


_kept: list[Turns] = []


def turns_of(queueing: int) -> Turns:
    """So many callers that queue something. The C side remembers where they are counted for good."""
    _kept.append(Turns(queueing=queueing))
    return _kept[-1]


def test_a_thread_that_looks_claims_the_next_turn_until_it_computes(side: Native, news: int) -> None:
    turns = turns_of(0)
    watch = NativeWatch(side, news, ctypes.addressof(turns))
    began_ns = time.monotonic_ns()
    waited_ns, was_taken = watch.wait(None, NEVER)
    assert not was_taken
    assert 0 <= waited_ns <= time.monotonic_ns() - began_ns
    assert began_ns <= turns.claimed <= time.monotonic_ns()
    Chain().run.step(0)
    assert turns.claimed == 0


def test_a_thread_that_sleeps_claims_nothing_and_waits_for_nobody(side: Native, news: int) -> None:
    turns = turns_of(1)
    watch = NativeWatch(side, news, ctypes.addressof(turns))
    watch.wait(None, 0)
    assert turns.claimed == 0


def test_callers_that_do_not_finish_are_not_waited_for(side: Native, news: int) -> None:
    turns = turns_of(1)
    NativeWatch(side, news, ctypes.addressof(turns)).wait(None, NEVER)
    assert turns.claimed


def test_a_watch_ends_without_news(side: Native, news: int) -> None:
    os.eventfd_read(news)
    for patience_ns in (0, 1000, NEVER):
        waited_ns, _ = NativeWatch(side, news, 0).wait(1_000_000, patience_ns)
        assert waited_ns >= 1_000_000
    assert NativeWatch(side, news, 0).wait(0, NEVER)[0] >= 0
