"""The vendor's library in its child process: contexts, binaries, profiles and power."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from vendor_cases import ADD_SHAPE, add_case, add_recipe, conv_case

from openhtp.core.dtype import DType
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import (
    BadBinary,
    FormatError,
    InvalidArgument,
    InvalidHandle,
    NameClash,
    QnnError,
    UnsupportedFeature,
    UnsupportedOp,
    WrongState,
)
from openhtp.core.opcall import OpCall
from openhtp.core.priority import Priority
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.hw.power import DcvsVote, VoltageCorner
from openhtp.rpc.shm import SharedBuffer
from openhtp.vendor.graph import GraphOptions
from openhtp.vendor.recipe import GraphRecipe
from openhtp.vendor.worker import ContextRef, GraphRef, MemoryRef, VendorProcess

pytestmark = pytest.mark.vendor


@pytest.fixture
def context(process: VendorProcess) -> Iterator[ContextRef]:
    made = process.create_context(priority=Priority.HIGH, queue_depth=25)
    yield made
    process.free(made)


@pytest.fixture
def graph(process: VendorProcess, context: ContextRef) -> GraphRef:
    built = process.build(add_recipe(), context)
    process.finalize(built)
    return built


def test_info(process: VendorProcess) -> None:
    info = process.info
    assert info.core_api >= (2, 32, 0)
    assert info.build_id.startswith("v2.")
    assert "Conv2d" in info.operations
    device = info.devices[0]
    assert (device.soc_model, device.arch, device.vtcm_mb) == (43, 73, 8)


def test_capabilities(process: VendorProcess) -> None:
    assert process.has_capability(311) is True  # execute
    assert process.has_capability(509) is None  # not known to the library
    assert process.has_capability(314) is False  # subgraphs


def test_save_and_restore(process: VendorProcess, context: ContextRef) -> None:
    conv, add = conv_case(), add_case()
    static = {name: conv.inputs[name] for name in ("w", "b")}
    first = process.build(GraphRecipe("conv", ((conv.call, conv.params),), static), context)
    second = process.build(add_recipe("add"), context)
    for built in (first, second):
        process.finalize(built)
    expected = {
        "conv": process.execute(first, {"x": conv.inputs["x"]})["o"],
        "add": process.execute(second, add.inputs)["o"],
    }
    blob = process.get_binary(context)
    restored = process.from_binary(blob, priority=Priority.LOW, queue_depth=50)
    assert set(restored.graphs) == {"conv", "add"}
    assert [spec.name for spec in restored.graphs["add"].inputs] == ["a", "b"]
    assert restored.graphs["conv"].outputs[0].shape == conv.exact.shape
    np.testing.assert_array_equal(
        process.execute(restored.graphs["conv"], {"x": conv.inputs["x"]})["o"], expected["conv"]
    )
    np.testing.assert_array_equal(process.execute(restored.graphs["add"], add.inputs)["o"], expected["add"])
    with pytest.raises(WrongState, match="cannot be saved again"):
        process.get_binary(restored)
    with pytest.raises(WrongState, match="restored from a binary"):
        process.build(add_recipe("new"), restored)
    process.free(restored)
    only = process.from_binary(blob, enable_graphs=["add"])
    assert list(only.graphs) == ["add"]
    process.free(only)
    with pytest.raises(InvalidArgument, match="not in the binary"):
        process.from_binary(blob, enable_graphs=["zzz"])
    for broken in (b"", b"x", blob[: len(blob) // 2], bytes(4096)):
        with pytest.raises(BadBinary):
            process.from_binary(broken)


def test_batch_multiple(process: VendorProcess, graph: GraphRef) -> None:
    one, two = add_case(1), add_case(2)
    both = {name: np.concatenate([one.inputs[name], two.inputs[name]]) for name in "ab"}
    result = process.execute(graph, both)["o"]
    parts = [process.execute(graph, case.inputs)["o"] for case in (one, two)]
    np.testing.assert_array_equal(result, np.concatenate(parts))
    with pytest.raises(InvalidArgument, match="of shape"):
        process.execute(graph, {"a": both["a"], "b": two.inputs["b"]})


def test_shared_memory(process: VendorProcess, graph: GraphRef) -> None:
    case = add_case()
    buffer = SharedBuffer.create(4096)
    memory = process.attach(buffer)
    places = {"a": (memory, 0), "b": (memory, 1024), "o": (memory, 2051)}
    for name in "ab":
        buffer.array(places[name][1], ADD_SHAPE, np.uint8)[...] = case.inputs[name]
    assert process.execute_shared(graph, places) == ()
    result = buffer.array(2051, ADD_SHAPE, np.uint8)
    assert case.steps_from_exact({"o": result}) <= 0.51
    assert not buffer.array(2051 + result.nbytes, (4096 - 2051 - result.nbytes,), np.uint8).any()
    for wrong, said in (
        ({"o": (memory, 4090)}, "does not fit"),
        ({"o": (memory, -1)}, "does not fit"),
        ({"o": (MemoryRef(999, memory.generation), 0)}, "memory 999 was detached"),
        ({"o": (MemoryRef(memory.id, 77), 0)}, "earlier vendor process"),
    ):
        with pytest.raises(QnnError, match=said):
            process.execute_shared(graph, {**places, **wrong})
    with pytest.raises(InvalidArgument, match="'b' has no place"):
        process.execute_shared(graph, {"a": places["a"], "o": places["o"]})
    process.detach(memory)
    with pytest.raises(InvalidHandle, match="was detached"):
        process.detach(memory)
    buffer.close()


def test_large_tensors(process: VendorProcess, context: ContextRef) -> None:
    """More than the first piece of shared memory holds."""
    case = add_case(shape=(1, 128, 128, 32))
    built = process.build(GraphRecipe("large", ((case.call, {}),)), context)
    process.finalize(built)
    assert case.steps_from_exact(process.execute(built, case.inputs)) <= 0.51


def test_chain(process: VendorProcess, context: ContextRef) -> None:
    """Two nodes with a tensor of the graph's own between them, in 16-bit floats."""
    kinds = (TensorKind.APP_WRITE, TensorKind.NATIVE, TensorKind.APP_READ)
    x, t, y = (
        TensorSpec(name, (1, 4, 4, 8), DType.FLOAT_16, kind=kind) for name, kind in zip("xty", kinds, strict=True)
    )
    nodes = ((OpCall("Relu", "r", (x,), (t,)), {}), (OpCall("ElementWiseAdd", "a", (t, x), (y,)), {}))
    built = process.build(GraphRecipe("chain", nodes, options=GraphOptions(float16=True)), context)
    assert ([s.name for s in built.inputs], [s.name for s in built.outputs]) == (["x"], ["y"])
    process.finalize(built)
    data = np.random.default_rng(6).standard_normal(x.shape).astype(np.float16)
    result = process.execute(built, {"x": data})["y"]
    np.testing.assert_allclose(result, np.maximum(data, 0) + data, rtol=2**-9, atol=2**-9)


def test_profile(process: VendorProcess, context: ContextRef) -> None:
    options = GraphOptions(priority=Priority.LOW, vtcm_mb=4, hvx_threads=2, optimization=3, dlbc=False)
    built = process.build(add_recipe(options=options), context)
    (finalized,) = process.finalize(built, profile=ProfileLevel.DETAILED)
    assert (finalized.name, finalized.unit) == ("FINALIZE", "us")
    _, events = process.execute_profiled(built, add_case().inputs, ProfileLevel.DETAILED)
    by_name = {event.name: event for event in events}
    assert by_name["GRAPH_NUMBER_OF_HVX_THREADS"].value == 2
    cycles = by_name["GRAPH_EXECUTE_ACCEL_TIME_CYCLE"]
    assert any(event.identifier.startswith("add0") for event in cycles.walk())
    assert {event.unit for event in cycles.walk()} == {"cycles"}


def test_power_votes(process: VendorProcess) -> None:
    corners = (VoltageCorner.TURBO,) * 3
    process.vote(dcvs=DcvsVote(bus=corners, core=corners, sleep_latency_us=40), rpc_latency_us=100)
    process.vote(rpc_polling_us=9999)
    with pytest.raises(InvalidArgument, match="RPC polling time") as caught:
        process.vote(rpc_polling_us=10_000)
    assert caught.value.code == 13001
    with pytest.raises(InvalidArgument, match="no vote"):
        process.vote()


def test_many_threads(process: VendorProcess, graph: GraphRef) -> None:
    cases = [add_case(seed) for seed in range(4)]
    errors: list[float] = []

    def work(index: int) -> None:
        case = cases[index]
        errors.extend(case.steps_from_exact(process.execute(graph, case.inputs)) for _ in range(5))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 20
    assert max(errors) <= 0.51


BAD_INPUTS: list[tuple[Callable[[dict[str, np.ndarray]], object], str]] = [
    (lambda data: data.pop("a"), r"got inputs \['b'\]"),
    (lambda data: data.update(c=data["a"]), "got inputs"),
    (lambda data: data.update(a=data["a"].astype(np.int8)), "of type int8"),
    (lambda data: data.update(a=data["a"][:, :1]), "of shape"),
    (lambda data: data.update(a=data["a"].ravel()), "of shape"),
    (lambda data: data.update(a=data["a"][:0]), "of shape"),
]


@pytest.mark.parametrize(("change", "said"), BAD_INPUTS)
def test_bad_inputs(process: VendorProcess, graph: GraphRef, change: Callable[..., object], said: str) -> None:
    data = dict(add_case().inputs)
    change(data)
    with pytest.raises(InvalidArgument, match=said) as caught:
        process.execute(graph, data)
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_TENSOR"


def test_life_of_a_graph(process: VendorProcess) -> None:
    context = process.create_context()
    with pytest.raises(WrongState, match="no graphs to save"):
        process.get_binary(context)
    built = process.build(add_recipe(), context)
    with pytest.raises(WrongState) as caught:
        process.execute(built, add_case().inputs)
    assert caught.value.code == 6023
    with pytest.raises(WrongState, match="not finalized") as caught:
        process.get_binary(context)
    assert caught.value.code == 5003
    with pytest.raises(NameClash, match="exists already"):
        process.build(add_recipe(), context)
    process.finalize(built)
    with pytest.raises(WrongState, match="too late") as caught:
        process.finalize(built)
    assert caught.value.code == 6024
    process.free(context)
    for stale in (lambda: process.execute(built, add_case().inputs), lambda: process.get_binary(context)):
        with pytest.raises(InvalidHandle, match="was freed"):
            stale()


def test_log_lines_reach_the_client(
    process: VendorProcess, context: ContextRef, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = dataclasses.replace(add_case().call, op="NoSuchOp")
    built = process.build(GraphRecipe("n", ((nothing, {}),), validate=False), context)
    with caplog.at_level(logging.INFO, "openhtp.vendor.qnn"), pytest.raises(UnsupportedOp):
        process.finalize(built)
    assert any("NoSuchOp" in record.getMessage() for record in caplog.records)


def test_refused_by_the_library(process: VendorProcess, context: ContextRef) -> None:
    strange = dataclasses.replace(add_case().call, package="no.such")
    with pytest.raises(QnnError, match="graphAddNode failed for ElementWiseAdd 'add0' in graph 'p'"):
        process.build(GraphRecipe("p", ((strange, {}),), validate=False), context)
    nothing = dataclasses.replace(add_case().call, op="NoSuchOp")
    built = process.build(GraphRecipe("n", ((nothing, {}),), validate=False), context)
    with pytest.raises(UnsupportedOp, match="NoSuchOp"):
        process.finalize(built)
    larger = dataclasses.replace(add_case().call.outputs[0], shape=(1, 4, 4, 9))
    odd = dataclasses.replace(add_case().call, outputs=(larger,))
    for refused in (
        lambda: process.validate_op(odd, {}),
        lambda: process.build(GraphRecipe("odd", ((odd, {}),)), context),
    ):
        with pytest.raises(UnsupportedOp) as caught:
            refused()
        assert caught.value.code == 3110


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (GraphOptions(vtcm_mb=-1), "vtcm_mb is -1"),
        (GraphOptions(hvx_threads=1 << 20), "hvx_threads"),
    ],
)
def test_bad_options(process: VendorProcess, context: ContextRef, options: GraphOptions, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        process.build(add_recipe(options=options), context)


def test_bad_names(process: VendorProcess, context: ContextRef) -> None:
    with pytest.raises(InvalidArgument, match="graph name"):
        process.build(add_recipe(""), context)
    with pytest.raises(InvalidArgument, match="queue_depth is 301"):
        process.create_context(queue_depth=301)


def test_bad_parameters(process: VendorProcess, context: ContextRef) -> None:
    case = conv_case()
    static = {name: case.inputs[name] for name in ("w", "b")}
    for index, (name, value, said) in enumerate(
        [
            ("stride", ([-1, 1], DType.UINT_32, "tensor"), "'stride' of 'conv0'"),
            ("group", ([1, 1], DType.UINT_32, "scalar"), "expected one"),
            ("group", (1, DType.UINT_32, "both"), "has form 'both'"),
        ]
    ):
        recipe = GraphRecipe(f"bad{index}", ((case.call, {**case.params, name: value}),), static)
        with pytest.raises(InvalidArgument, match=said):
            process.build(recipe, context)


def test_library_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="cannot be read"):
        VendorProcess(tmp_path / "libQnnHtp.so")
    file = tmp_path / "other.so"
    file.write_bytes(b"text")
    with pytest.raises(FormatError, match="not a shared library"):
        VendorProcess(file)


def test_unknown_arch() -> None:
    with pytest.raises(InvalidArgument, match="architecture 66 is unknown"):
        VendorProcess(arch=66)
    with pytest.raises(InvalidArgument, match="a SoC decides its architecture"):
        VendorProcess(soc="v73", arch=73)


def test_arch() -> None:
    with VendorProcess(arch=79, timeout_s=60) as process:
        built = process.build(add_recipe(), process.create_context())
        process.finalize(built)
        assert add_case().steps_from_exact(process.execute(built, add_case().inputs)) <= 0.51


def test_unknown_soc() -> None:
    with pytest.raises(InvalidArgument, match="SoC 'SM1' is unknown"):
        VendorProcess(soc="SM1")
