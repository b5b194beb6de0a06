"""Operators written in Python: built, run, saved, priced and profiled, on either host; and all they do wrong."""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.compiler.driver import compile_graph
from openhtp.engine.limited_calls import CallTookTooLong, call_within
from openhtp.ops._packages import find_package
from tests.conftest import relu_graph
from tests.op_packages.own_ops import PACKAGE, same
from tests.waiting import PATIENCE_S

X = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)


@pytest.fixture(params=["thread", "process"])
def device(request: pytest.FixtureRequest, backend: htp.Backend) -> htp.Device:
    backend.register_op_package(PACKAGE)
    return backend.create_device(host=request.param)


@pytest.fixture
def near(backend: htp.Backend) -> htp.Device:
    """A device on a thread, for what does not depend on the host."""
    backend.register_op_package(PACKAGE)
    return backend.create_device(host="thread")


def own_graph(
    context: htp.Context, op: str, name: str = "g", priority: str = "normal", package: str = "tests.ops"
) -> htp.Graph:
    """A finalized float graph of one operator of a package."""
    graph = context.create_graph(name, priority=priority)
    graph.add_tensor("x", X.shape, "float32", kind="app_write")
    graph.add_tensor("y", X.shape, "float32", kind="app_read")
    graph.add_node(op, name=f"the {op}", inputs=["x"], outputs=["y"], package=package)
    graph.finalize()
    return graph


def swish(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    return x / (1 + np.exp(-beta * x))


def mixed_graph(context: htp.Context, name: str = "g") -> htp.Graph:
    """neg, own swish, own relu (which negates, too), abs: own operators between the HTP's own."""
    graph = context.create_graph(name)
    graph.add_tensor("x", X.shape, "float32", kind="app_write")
    for tensor in ("a", "b", "c"):
        graph.add_tensor(tensor, X.shape, "float32")
    graph.add_tensor("y", X.shape, "float32", kind="app_read")
    graph.add_node("ElementWiseNeg", inputs=["x"], outputs=["a"])
    graph.add_node("Swish", name="sw", inputs=["a"], outputs=["b"], params={"beta": 2.0}, package="tests.ops")
    graph.add_node("Relu", name="own relu", inputs=["b"], outputs=["c"], package="tests.ops")
    graph.add_node("ElementWiseAbs", name="abs", inputs=["c"], outputs=["y"])
    graph.finalize()
    return graph


def test_operators_of_a_package_run_between_others(device: htp.Device) -> None:
    graph = mixed_graph(device.create_context())
    expected = np.maximum(swish(-X, 2.0), 0)
    np.testing.assert_allclose(graph.execute({"x": X})["y"], expected, atol=4e-3)  # half precision
    pending = [graph.execute_async({"x": X}) for _ in range(4)]
    for execution in pending:
        np.testing.assert_allclose(execution.result(PATIENCE_S)["y"], expected, atol=4e-3)


def test_a_binary_names_package_and_version(device: htp.Device) -> None:
    context = device.create_context()
    expected = mixed_graph(context).execute({"x": X})["y"]
    blob = context.get_binary()
    restored = device.create_context_from_binary(blob)
    np.testing.assert_array_equal(restored.graph("g").execute({"x": X})["y"], expected)
    assert device.validate_binary(blob).graphs[0].name == "g"
    with htp.Backend() as other:
        elsewhere = other.create_device(host="thread")
        for call in (elsewhere.create_context_from_binary, elsewhere.validate_binary):
            with pytest.raises(htp.BadBinary, match=r"'tests.ops' 1.2.0, which is not registered") as caught:
                call(blob)
            assert caught.value.name == "QNN_CONTEXT_ERROR_BINARY_CONFIGURATION"


def test_a_binary_of_another_version_is_refused(near: htp.Device) -> None:
    context = near.create_context()
    own_graph(context, "Swish")
    blob = context.get_binary()
    near.backend.free()
    with htp.Backend() as other:
        other.register_op_package(htp.OpPackage("tests.ops", "1.3.0", PACKAGE.operators))
        with pytest.raises(htp.BadBinary, match=r"version 1.2.0 of op package 'tests.ops', and 1.3.0") as caught:
            other.create_device(host="thread").create_context_from_binary(blob)
    assert caught.value.name == "QNN_CONTEXT_ERROR_BINARY_VERSION"


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("Raises", "tests.ops::Raises raised ValueError: no such luck"),
        ("Hangs", "tests.ops::Hangs took longer than 0.2 s"),
        ("Exits", "tests.ops::Exits raised SystemExit"),
        ("WrongShape", r"tests.ops::WrongShape gives result 0 in shape \[1, 8\]; expected \[4, 8\]"),
        ("WrongCount", "tests.ops::WrongCount gives 2 results; expected 1"),
        ("WrongType", "tests.ops::WrongType gives result 0 as complex64"),
        ("Words", "tests.ops::Words gives 'words'"),
    ],
)
def test_what_a_function_does_wrong_is_its_execution_s_failure(near: htp.Device, op: str, words: str) -> None:
    context = near.create_context()
    wrong, right = own_graph(context, op, "wrong"), relu_graph(context, "right", (4, 8))
    for _ in range(2):
        with pytest.raises(htp.ExecutionError, match=words):
            wrong.execute({"x": X})
        np.testing.assert_allclose(right.execute({"x": X})["y"], np.maximum(X, 0), atol=4e-3)


def test_the_device_answers_while_a_function_hangs(backend: htp.Backend) -> None:
    """It holds the NPU, as an operator that does not yield would; requests of others are answered."""
    slow = htp.OpPackage("slow.ops", "1", [htp.Operator("Waits", same, wait_for_event, time_limit_s=PATIENCE_S)])
    backend.register_op_package(slow)
    device = backend.create_device(host="thread", npu="shared")
    graph = device.create_context().create_graph("g")
    graph.add_tensor("x", X.shape, "float32", kind="app_write")
    graph.add_tensor("y", X.shape, "float32", kind="app_read")
    graph.add_node("Waits", inputs=["x"], outputs=["y"], package="slow.ops")
    graph.finalize()
    _began.clear()
    _may_end.clear()
    execution = graph.execute_async({"x": X})
    assert _began.wait(PATIENCE_S)
    other = device.create_context()  # a request and its answer
    right = relu_graph(other, "right", (4, 8)).execute_async({"x": X})
    assert not right.done()
    _may_end.set()
    np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], X.astype("f2").astype("f4"))
    np.testing.assert_allclose(right.result(PATIENCE_S)["y"], np.maximum(X, 0), atol=4e-3)


_began, _may_end = threading.Event(), threading.Event()


def wait_for_event(node: Any, arrays: Any) -> Any:
    _began.set()
    _may_end.wait(PATIENCE_S)
    return arrays[0]


def test_pieces_are_steps_of_their_own(near: htp.Device) -> None:
    graph = own_graph(near.create_context(), "Rows")
    profile = near.backend.create_profile("detailed")
    result = graph.execute({"x": X}, profile=profile)["y"]
    np.testing.assert_array_equal(result, np.ones_like(X))  # each call was given one row
    steps = next(event for event in profile.events() if event.name == "Steps on the device")
    assert len(steps.events) == 4


def test_quantized_and_stored_numbers(near: htp.Device) -> None:
    code = htp.ScaleOffset(0.05, -128)
    graph = near.create_context().create_graph("g")
    graph.add_tensor("x", (4, 8), "ufixed8", quant=code, kind="app_write")
    graph.add_tensor("t", (4, 8), "ufixed8", quant=code)
    graph.add_tensor("y", (4, 8), "ufixed8", quant=code, kind="app_read")
    graph.add_node("Flip", inputs=["x"], outputs=["t"], package="tests.ops")
    graph.add_node("Swish", inputs=["t"], outputs=["y"], package="tests.ops")
    graph.finalize()
    stored = np.arange(0, 256, 8, dtype=np.uint8).reshape(4, 8)
    real = 0.05 * ((255.0 - stored) - 128)
    expected = np.clip(np.rint(swish(real) / 0.05) + 128, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(graph.execute({"x": stored})["y"], expected)


def test_several_outputs_and_integers(near: htp.Device) -> None:
    graph = near.create_context().create_graph("g")
    graph.add_tensor("x", (4, 8), "float32", kind="app_write")
    graph.add_tensor("sum", (4,), "float32", kind="app_read")
    graph.add_tensor("place", (4,), "int32", kind="app_read")
    graph.add_node("SumAndPlace", inputs=["x"], outputs=["sum", "place"], package="tests.ops")
    graph.finalize()
    results = graph.execute({"x": X})
    np.testing.assert_allclose(results["sum"], X.sum(-1), rtol=2e-3)
    np.testing.assert_array_equal(results["place"], np.full(4, 7))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"op": "Nobody"}, r"'tests.ops' 1.2.0 has no operator 'Nobody'; expected Swish or"),
        ({"op": "Swish", "params": {"beta": -1.0}}, "tests.ops::Swish .*: beta is above 0"),
        ({"op": "Swish", "params": {"gamma": 1.0}}, "unknown parameter 'gamma'; expected beta"),
        ({"op": "Swish", "package": "other.ops"}, "op package 'other.ops' is not registered with this backend"),
        ({"op": "Flip"}, "types f32 > f32 are not accepted; expected u8 > u8"),
        ({"op": "BadRule"}, "tests.ops::BadRule: infer raised ZeroDivisionError"),
    ],
)
def test_wrong_nodes_are_refused_in_words(near: htp.Device, node: dict[str, Any], words: str) -> None:
    graph = near.create_context().create_graph("g")
    graph.add_tensor("x", X.shape, "float32", kind="app_write")
    graph.add_tensor("y", X.shape, "float32", kind="app_read")
    with pytest.raises((htp.UnsupportedOp, htp.InvalidArgument), match=words):
        graph.add_node(**{"inputs": ["x"], "outputs": ["y"], "package": "tests.ops", **node})
    graph.add_node("Swish", inputs=["x"], outputs=["y"], package="tests.ops")  # nothing was changed
    graph.finalize()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: htp.OpPackage("qti.aisw", "1", PACKAGE.operators), "is the HTP's own"),
        (lambda: htp.OpPackage("a b", "1", PACKAGE.operators), "expected a word"),
        (lambda: htp.OpPackage("a", "one", PACKAGE.operators), "expected up to three numbers"),
        (lambda: htp.OpPackage("a", "1", []), "expected Operators"),
        (lambda: htp.OpPackage("a", "1", PACKAGE.operators * 2), "two operators of one name"),
        (lambda: htp.OpPackage("a", "1", [htp.Operator("X", same)]), "expected one of them"),
        (lambda: htp.OpPackage("a", "1", [htp.Operator("X", same, same, outputs=0)]), "outputs is 0"),
        (
            lambda: htp.OpPackage("a", "1", [htp.Operator("X", same, same, params={"p": "x"})]),
            "parameter 'p' is 'x'",
        ),
        (lambda: htp.OpPackage("a", "1", [htp.Operator("X", same, same, types=("q9 > u8",))]), "expected rows"),
        (lambda: htp.OpPackage("a", "1", [htp.Operator("X", same, same, time_limit_s=0)]), "time_limit_s is 0"),
    ],
)
def test_packages_that_make_no_sense(make: Any, words: str) -> None:
    with pytest.raises(htp.UsageError, match=words):
        make()


def test_one_name_is_one_package(backend: htp.Backend) -> None:
    assert backend.register_op_package(PACKAGE) is PACKAGE
    with pytest.raises(htp.NameClash, match="registered already") as caught:
        backend.register_op_package(PACKAGE)
    assert caught.value.name == "QNN_BACKEND_ERROR_OP_PACKAGE_DUPLICATE"
    with htp.Backend() as other:
        other.register_op_package(PACKAGE)
        with pytest.raises(htp.NameClash, match=r"another package of that name, 1\.2\.0, is in use"):
            htp.Backend().register_op_package(htp.OpPackage("tests.ops", "2", PACKAGE.operators))
    assert find_package("tests.ops") is PACKAGE
    backend.free()
    assert find_package("tests.ops") is None
    with htp.Backend() as fresh:  # a name is free again with its last backend
        fresh.register_op_package(htp.OpPackage("tests.ops", "2", PACKAGE.operators))


def test_a_package_by_reference(backend: htp.Backend) -> None:
    assert backend.register_op_package("tests.op_packages.own_ops:PACKAGE") is PACKAGE
    assert PACKAGE.reference == "tests.op_packages.own_ops:PACKAGE"
    for reference, words in (
        ("tests.op_packages.own_ops:nobody", "cannot be imported: AttributeError"),
        ("no.such.module:P", "cannot be imported: ModuleNotFoundError"),
        ("tests.op_packages.own_ops:X", "cannot be imported"),
        ("tests.op_packages.own_ops:np.pi", "is a float; expected an openhtp.OpPackage"),
        ("os.system('true')", "expected module:attribute"),
    ):
        with pytest.raises(htp.InvalidArgument, match=words):
            backend.register_op_package(reference)
    with pytest.raises(htp.InvalidArgument, match=r"expected an openhtp\.OpPackage"):
        backend.register_op_package(7)  # type: ignore[arg-type]


def test_a_closure_does_not_reach_another_process(backend: htp.Backend) -> None:
    offset = 1.0
    operator = htp.Operator("Shift", same, lambda node, arrays: arrays[0] + offset)
    backend.register_op_package(htp.OpPackage("here.ops", "1", [operator]))
    for host in ("thread", "process"):
        graph = backend.create_device(host=host).create_context().create_graph("g")
        graph.add_tensor("x", X.shape, "float32", kind="app_write")
        graph.add_tensor("y", X.shape, "float32", kind="app_read")
        graph.add_node("Shift", inputs=["x"], outputs=["y"], package="here.ops")
        if host == "thread":
            graph.finalize()
            np.testing.assert_allclose(graph.execute({"x": X})["y"], X + 1, atol=4e-3)
        else:
            with pytest.raises(htp.UnsupportedFeature, match=r"Put it into a module, or .* host='thread'"):
                graph.finalize()


def test_a_named_device_loads_no_code_that_a_client_names(backend: htp.Backend) -> None:
    backend.register_op_package(PACKAGE)
    device = backend.create_device(name="shared-by-several")
    graph = device.create_context().create_graph("g")
    graph.add_tensor("x", X.shape, "float32", kind="app_write")
    graph.add_tensor("y", X.shape, "float32", kind="app_read")
    graph.add_node("Swish", inputs=["x"], outputs=["y"], package="tests.ops")
    with pytest.raises(htp.UnsupportedFeature, match="serves several clients and loads no code") as caught:
        graph.finalize()
    assert caught.value.name == "QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND"
    assert "openhtp device start --op-package tests.op_packages.own_ops:PACKAGE" in str(caught.value)


def test_estimates_have_the_operator_s_own_work(near: htp.Device) -> None:
    def priced(package: htp.OpPackage) -> Any:
        with htp.Backend() as backend:
            backend.register_op_package(package)
            graph = backend.create_device(host="thread").create_context().create_graph("g")
            graph.add_tensor("x", X.shape, "float32", kind="app_write")
            graph.add_tensor("y", X.shape, "float32", kind="app_read")
            graph.add_node("Swish", name="sw", inputs=["x"], outputs=["y"], package=package.name)
            program = compile_graph(graph.draft.finish(), "SM8650").source  # type: ignore[union-attr]
            return htp.estimate(program, "SM8650")

    swish_op = PACKAGE.operators[0]
    light = priced(htp.OpPackage("light.ops", "1", [swish_op]))
    assert light.ops[0].op == "light.ops::Swish"
    assert any("Swish" in note for note in light.notes)  # which says that no published network has it
    heavy = {
        "HVX": lambda node: htp.Work.on(node, vector_ops=2_000_000_000),
        "HMX": lambda node: htp.Work.on(node, macs=200_000_000_000),
        "memory": lambda node: htp.Work(bytes_read=1_000_000_000),
    }
    for unit, work in heavy.items():
        operator = htp.Operator("Swish", same, swish_op.compute, work=work)
        slow = priced(htp.OpPackage("heavy.ops", "1", [operator]))
        assert slow.total_us > 100 * light.total_us
        assert slow.ops[0].bound.value == unit


def test_profiles_have_the_operator_s_own_name(near: htp.Device) -> None:
    graph = mixed_graph(near.create_context())
    profile = near.backend.create_profile("detailed")
    graph.execute({"x": X}, profile=profile)
    cycles = next(event for event in profile.events() if event.name == "Accelerator (execute) time (cycles)")
    names = " ".join(event.name for event in cycles.events)
    assert all(name in names for name in ("sw", "own relu", "abs"))


def test_updated_data_reaches_the_operator(backend: htp.Backend) -> None:
    def added(node: Any, arrays: Any) -> Any:
        return arrays[0] + arrays[1]

    backend.register_op_package(htp.OpPackage("two.ops", "1", [htp.Operator("Add", same, added, inputs=2)]))
    graph = backend.create_device(host="thread").create_context().create_graph("g")
    graph.add_tensor("x", X.shape, "float32", kind="app_write")
    graph.add_tensor("w", X.shape, "float32", data=np.full(X.shape, 2, "f4"))
    graph.add_tensor("y", X.shape, "float32", kind="app_read")
    graph.add_node("Add", inputs=["x", "w"], outputs=["y"], package="two.ops")
    graph.finalize()
    np.testing.assert_allclose(graph.execute({"x": X})["y"], X + 2, atol=8e-3)


def test_dynamic_shapes_are_refused(near: htp.Device) -> None:
    graph = near.create_context().create_graph("g")
    graph.add_tensor("x", (4, 8), "float32", kind="app_write", dynamic=[True, False])
    graph.add_tensor("y", (4, 8), "float32", kind="app_read", dynamic=[True, False])
    with pytest.raises(htp.UnsupportedOp, match="take fixed shapes only"):
        graph.add_node("Swish", inputs=["x"], outputs=["y"], package="tests.ops")


def test_an_abandoned_call_ends_and_its_thread_with_it() -> None:
    ended = threading.Event()

    def spin() -> None:
        try:
            while True:
                pass
        finally:
            ended.set()

    with pytest.raises(CallTookTooLong):
        call_within(0.05, spin)
    assert ended.wait(PATIENCE_S)
    assert call_within(PATIENCE_S, functools.partial(int, "7")) == 7


def test_work_on_what_is_no_node_is_refused() -> None:
    with pytest.raises(htp.QnnError, match="node is an int; expected the node"):
        htp.Work.on(3, vector_ops=1)  # type: ignore[arg-type]


def test_urgent_work_comes_between_the_pieces(near: htp.Device) -> None:
    """Without pieces, it would have to wait for the whole operator."""
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def long_piece(node: Any, arrays: Any) -> Any:
        order.append("piece")
        begun.set()
        go_on.wait(PATIENCE_S)
        return arrays[0]

    def at_once(node: Any, arrays: Any) -> Any:
        order.append("urgent")
        return arrays[0]

    operators = [
        htp.Operator("Long", same, long_piece, split_axis=0, pieces=4, time_limit_s=PATIENCE_S),
        htp.Operator("Short", same, at_once),
    ]
    near.backend.register_op_package(htp.OpPackage("long.ops", "1", operators))
    context = near.create_context()
    long = own_graph(context, "Long", "long", priority="low", package="long.ops")
    urgent = own_graph(context, "Short", "urgent", priority="high", package="long.ops")
    slow = long.execute_async({"x": X})
    assert begun.wait(PATIENCE_S)
    quick = urgent.execute_async({"x": X})
    near.info()  # answered after the execution was taken in
    go_on.set()
    slow.result(PATIENCE_S)
    quick.result(PATIENCE_S)
    assert order == ["piece", "urgent", "piece", "piece", "piece"]


def test_a_restarted_device_gets_its_packages_again(backend: htp.Backend) -> None:
    backend.register_op_package(PACKAGE)
    device = backend.create_device(host="process")
    graph = own_graph(device.create_context(), "Swish")
    os.kill(device.pid, signal.SIGKILL)
    with pytest.raises(htp.QnnError):
        graph.execute({"x": X})
    fresh = own_graph(device.create_context(), "Swish")
    np.testing.assert_allclose(fresh.execute({"x": X})["y"], swish(X), atol=4e-3)


def test_the_child_of_a_fork_registers_packages_of_its_own(backend: htp.Backend) -> None:
    backend.register_op_package(PACKAGE)
    child = os.fork()
    if not child:  # pragma: no cover
        code = 1
        try:
            other = htp.OpPackage("tests.ops", "9", PACKAGE.operators)
            code = 0 if find_package("tests.ops") is None and htp.Backend().register_op_package(other) else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert find_package("tests.ops") is PACKAGE
