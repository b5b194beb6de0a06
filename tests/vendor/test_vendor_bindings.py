"""The bindings to the vendor's library, in this process: contexts, binaries, profiles and power."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from vendor_cases import add_case, build, conv_case

from openhtp.core.dtype import DType
from openhtp.core.enumerations import Priority, ProfileLevel
from openhtp.core.errors import (
    BadBinary,
    InvalidArgument,
    InvalidHandle,
    NameClash,
    QnnError,
    UnsupportedOp,
    WrongState,
)
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.hw.power import DcvsVote, VoltageCorner
from openhtp.vendor.backend import LibraryDevice
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import LibraryGraphOptions
from openhtp.vendor.graph import LibraryGraph
from openhtp.vendor.power import PowerVotes

pytestmark = pytest.mark.vendor


@pytest.fixture
def context(opened: LibraryDevice) -> Iterator[LibraryContext]:
    with LibraryContext.create(opened, priority=Priority.HIGH, queue_depth=25) as made:
        yield made


@pytest.fixture
def graph(context: LibraryContext) -> LibraryGraph:
    built = build(context, add_case())
    built.finalize()
    return built


def test_info(opened: LibraryDevice) -> None:
    library, backend = opened.library, opened.backend
    assert library.core_api >= (2, 32, 0)
    assert library.build_id.startswith("v2.")
    assert "Conv2d" in {operation.name for operation in backend.operations()}
    chip = backend.platform()[0]
    assert (chip.soc_model, chip.arch, chip.vtcm_mb) == (43, 73, 8)


def test_capabilities(opened: LibraryDevice) -> None:
    library = opened.library
    assert library.has_capability(311) is True  # execute
    assert library.has_capability(509) is None  # not known to the library
    assert library.has_capability(314) is False  # subgraphs


def test_save_and_restore(opened: LibraryDevice, context: LibraryContext) -> None:
    conv, add = conv_case(), add_case()
    made = {"conv": build(context, conv, "conv"), "add": build(context, add, "add")}
    expected = {}
    for name, case in (("conv", conv), ("add", add)):
        made[name].finalize()
        expected[name] = made[name].execute(case.given)["o"]
    blob = context.get_binary()
    with LibraryContext.from_binary(opened, blob, priority=Priority.LOW, queue_depth=50) as restored:
        assert set(restored.graphs) == {"conv", "add"}
        assert [spec.name for spec in restored.graphs["add"].inputs] == ["a", "b"]
        assert restored.graphs["conv"].outputs[0].shape == conv.exact.shape
        for name, case in (("conv", conv), ("add", add)):
            np.testing.assert_array_equal(restored.graphs[name].execute(case.given)["o"], expected[name])
        with pytest.raises(WrongState, match="cannot be saved again"):
            restored.get_binary()
        with pytest.raises(WrongState, match="restored from a binary"):
            restored.create_graph("new")
    with LibraryContext.from_binary(opened, blob, enable_graphs=["add"]) as only:
        assert list(only.graphs) == ["add"]
    with pytest.raises(InvalidArgument, match="not in the binary"):
        LibraryContext.from_binary(opened, blob, enable_graphs=["zzz"])
    for broken in (b"", b"x", blob[: len(blob) // 2], bytes(4096)):
        with pytest.raises(BadBinary):
            LibraryContext.from_binary(opened, broken)


def test_weights_of_4_bits(context: LibraryContext) -> None:
    case = conv_case(DType.SFIXED_POINT_4)
    built = build(context, case)
    built.finalize()
    assert case.steps_from_exact(built.execute(case.given)) <= 0.8


def test_batch_multiple(graph: LibraryGraph) -> None:
    one, two = add_case(1), add_case(2)
    both = {name: np.concatenate([one.inputs[name], two.inputs[name]]) for name in "ab"}
    parts = [graph.execute(case.inputs)["o"] for case in (one, two)]
    np.testing.assert_array_equal(graph.execute(both)["o"], np.concatenate(parts))
    with pytest.raises(InvalidArgument, match="of shape"):
        graph.execute({"a": both["a"], "b": two.inputs["b"]})


def test_chain(context: LibraryContext) -> None:
    """Two nodes with a tensor of the graph's own between them, in 16-bit floats."""
    kinds = (TensorKind.APP_WRITE, TensorKind.NATIVE, TensorKind.APP_READ)
    x, t, y = (
        TensorSpec(name, (1, 4, 4, 8), DType.FLOAT_16, kind=kind) for name, kind in zip("xty", kinds, strict=True)
    )
    chain = context.create_graph("chain", LibraryGraphOptions(float16=True))
    for spec in (x, t, y):
        chain.add_tensor(spec)
    chain.add_node(OpCall("Relu", "r", (x,), (t,)), {})
    chain.add_node(OpCall("ElementWiseAdd", "a", (t, x), (y,)), {})
    assert ([s.name for s in chain.inputs], [s.name for s in chain.outputs]) == (["x"], ["y"])
    chain.finalize()
    data = np.random.default_rng(6).standard_normal(x.shape).astype(np.float16)
    np.testing.assert_allclose(chain.execute({"x": data})["y"], np.maximum(data, 0) + data, rtol=2**-9, atol=2**-9)


def test_profile(opened: LibraryDevice, context: LibraryContext) -> None:
    options = LibraryGraphOptions(priority=Priority.LOW, vtcm_mb=4, hvx_threads=2, optimization=3, dlbc=False)
    built = build(context, add_case(), options=options)
    with opened.backend.create_profile(ProfileLevel.DETAILED) as profile:
        built.finalize(profile)
        (finalized,) = profile.events()
        assert (finalized.name, finalized.unit) == ("FINALIZE", "us")
        built.execute(add_case().inputs, profile)
        by_name = {event.name: event for event in profile.events()}
    assert by_name["GRAPH_NUMBER_OF_HVX_THREADS"].value == 2
    cycles = by_name["GRAPH_EXECUTE_ACCEL_TIME_CYCLE"]
    assert any(event.identifier.startswith("add0") for event in cycles.walk())
    assert {event.unit for event in cycles.walk()} == {"cycles"}


def test_power_votes(opened: LibraryDevice) -> None:
    corners = (VoltageCorner.TURBO,) * 3
    with PowerVotes(opened.backend) as votes:
        votes.vote(dcvs=DcvsVote(bus=corners, core=corners, sleep_latency_us=40), rpc_latency_us=100)
        votes.vote(rpc_polling_us=10_000)
        with pytest.raises(InvalidArgument, match="RPC polling time") as caught:
            votes.vote(rpc_polling_us=10_001)
        assert caught.value.code == 13001
        with pytest.raises(InvalidArgument, match="no vote"):
            votes.vote()


BAD_INPUTS: list[tuple[Callable[[dict[str, np.ndarray]], object], str]] = [
    (lambda data: data.pop("a"), r"got inputs \['b'\]"),
    (lambda data: data.update(c=data["a"]), "got inputs"),
    (lambda data: data.update(a=data["a"].astype(np.int8)), "of type int8"),
    (lambda data: data.update(a=data["a"][:, :1]), "of shape"),
    (lambda data: data.update(a=data["a"].ravel()), "of shape"),
    (lambda data: data.update(a=data["a"][:0]), "of shape"),
]


@pytest.mark.parametrize(("change", "said"), BAD_INPUTS)
def test_bad_inputs(graph: LibraryGraph, change: Callable[..., object], said: str) -> None:
    data = dict(add_case().inputs)
    change(data)
    with pytest.raises(InvalidArgument, match=said) as caught:
        graph.execute(data)
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_TENSOR"


def test_life_of_a_graph(opened: LibraryDevice) -> None:
    context = LibraryContext.create(opened)
    with pytest.raises(WrongState, match="no graphs to save"):
        context.get_binary()
    built = build(context, add_case())
    with pytest.raises(WrongState) as caught:
        built.execute(add_case().inputs)
    assert caught.value.code == 6023
    with pytest.raises(WrongState, match="not finalized") as caught:
        context.get_binary()
    assert caught.value.code == 5003
    with pytest.raises(NameClash, match="exists already"):
        build(context, add_case())
    built.finalize()
    with pytest.raises(WrongState, match="too late") as caught:
        built.finalize()
    assert caught.value.code == 6024
    context.free()
    for stale in (lambda: built.execute(add_case().inputs), context.get_binary):
        with pytest.raises(InvalidHandle, match="was freed"):
            stale()


def unknown_op() -> OpCall:
    return dataclasses.replace(add_case().call, op="NoSuchOp")


def test_log_lines_tell_what_failed(context: LibraryContext, caplog: pytest.LogCaptureFixture) -> None:
    built = build(context, dataclasses.replace(add_case(), call=unknown_op()), validate=False)
    with (
        caplog.at_level(logging.INFO, "openhtp.vendor.qnn"),
        pytest.raises(UnsupportedOp, match="NoSuchOp") as got,
    ):
        built.finalize()
    assert any("NoSuchOp" in record.getMessage() for record in caplog.records)
    assert (got.value.name, got.value.code) == ("QNN_GRAPH_ERROR_MEM_ALLOC", 1002)


def test_refused_by_the_library(opened: LibraryDevice, context: LibraryContext) -> None:
    case = add_case()
    strange = dataclasses.replace(case, call=dataclasses.replace(case.call, package="no.such"))
    with pytest.raises(QnnError, match="graphAddNode failed for ElementWiseAdd 'add0' in graph 'p'"):
        build(context, strange, "p", validate=False)
    with pytest.raises(UnsupportedOp, match="NoSuchOp") as caught:
        opened.backend.validate_op(unknown_op(), {})
    assert caught.value.name == "QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND"
    with pytest.raises(UnsupportedOp, match="NoSuchOp") as caught:
        build(context, dataclasses.replace(case, call=unknown_op()), "n")
    assert caught.value.code == 4005
    larger = dataclasses.replace(case.call.outputs[0], shape=(1, 4, 4, 9))
    odd = dataclasses.replace(case, call=dataclasses.replace(case.call, outputs=(larger,)))
    for refused in (lambda: opened.backend.validate_op(odd.call, {}), lambda: build(context, odd, "odd")):
        with pytest.raises(UnsupportedOp, match="Expected 8 but got 9") as caught:
            refused()
        assert caught.value.code == 3110


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (LibraryGraphOptions(vtcm_mb=-1), "vtcm_mb is -1"),
        (LibraryGraphOptions(hvx_threads=1 << 20), "hvx_threads"),
    ],
)
def test_bad_options(context: LibraryContext, options: LibraryGraphOptions, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        build(context, add_case(), options=options)


def test_bad_names(opened: LibraryDevice, context: LibraryContext) -> None:
    with pytest.raises(InvalidArgument, match="graph name"):
        build(context, add_case(), "")
    with pytest.raises(InvalidArgument, match="queue_depth is 301"):
        LibraryContext.create(opened, queue_depth=301)


def test_bad_parameters(context: LibraryContext) -> None:
    case = conv_case()
    for index, (name, value, said) in enumerate(
        [
            ("stride", ([-1, 1], DType.UINT_32, "tensor"), "'stride' of 'conv0'"),
            ("group", ([1, 1], DType.UINT_32, "scalar"), "expected one"),
            ("group", (1, DType.UINT_32, "both"), "has form 'both'"),
        ]
    ):
        bad = dataclasses.replace(case, params={**case.params, name: value})
        with pytest.raises(InvalidArgument, match=said):
            build(context, bad, f"bad{index}")


def test_unknown_arch(opened: LibraryDevice) -> None:
    with pytest.raises(InvalidArgument, match="architecture 66 is unknown"):
        opened.backend.create_device(arch=66)
    with pytest.raises(InvalidArgument, match="a SoC decides its architecture"):
        opened.backend.create_device(soc="v73", arch=73)
    with pytest.raises(InvalidArgument, match="SoC 'SM1' is unknown"):
        opened.backend.create_device(soc="SM1")
