"""Our library called as a QNN client calls it: by the other side of the same description."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from openhtp.abi.structs import pointer_list, struct
from openhtp.core import telling
from openhtp.core.dtype import DType
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import CUSTOM, HtpContextOption
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.program.binary import pack_graphs, read_binary
from openhtp.testing import inject
from openhtp.vendor.backend import LibraryBackend, LibraryDevice
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import LibraryGraphOptions, params_of
from openhtp.vendor.graph import LibraryGraph
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary

SHAPE = (1, 4, 4, 8)
NARROW, WIDE = ScaleOffset(0.02, -128), ScaleOffset(0.04, -128)


def tensor(name: str, kind: TensorKind, quant: ScaleOffset = NARROW) -> TensorSpec:
    return TensorSpec(name, SHAPE, DType.UFIXED_POINT_8, quant, kind)


A, B = tensor("a", TensorKind.APP_WRITE), tensor("b", TensorKind.APP_WRITE)
O = tensor("o", TensorKind.APP_READ, WIDE)  # noqa: E741
FLOATS = (("x", TensorKind.APP_WRITE), ("y", TensorKind.APP_READ))
ADD = OpCall("ElementWiseAdd", "add", (A, B), (O,))


@pytest.fixture
def backend(lib_dir: Path) -> Iterator[LibraryBackend]:
    made = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    yield made
    made.free()


@pytest.fixture
def device(backend: LibraryBackend) -> LibraryDevice:
    return backend.create_device(soc="SM8650")


def build(context: LibraryContext, name: str = "g", options: LibraryGraphOptions | None = None) -> LibraryGraph:
    graph = context.create_graph(name, options)
    for spec in (A, B, O):
        graph.add_tensor(spec)
    graph.add_node(ADD, params_of(ADD))
    graph.finalize()
    return graph


def values(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.integers(0, 256, SHAPE, np.uint8) for name in "ab"}


def expected(given: dict[str, np.ndarray]) -> np.ndarray:
    real = NARROW.dequantize(given["a"]) + NARROW.dequantize(given["b"])
    return WIDE.quantize(real, 0, 255).astype(np.uint8)


def test_a_graph_is_built_and_run(device: LibraryDevice) -> None:
    graph = build(LibraryContext.create(device))
    for seed in range(3):
        inputs = values(seed)
        out = graph.execute(inputs)["o"]
        assert np.abs(out.astype(int) - expected(inputs).astype(int)).max() <= 1


def test_injected_faults_are_codes_that_a_client_can_recover_from(device: LibraryDevice) -> None:
    graph, given = build(LibraryContext.create(device)), values()
    with inject("ssr@graphExecute:2, oom@contextCreate:1") as plan:
        wanted = graph.execute(given)["o"]
        with pytest.raises(QnnError) as lost:
            graph.execute(given)
        assert lost.value.name == "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION"
        with pytest.raises(QnnError) as no_memory:
            LibraryContext.create(device)
        assert no_memory.value.code == 1002
        assert np.array_equal(build(LibraryContext.create(device)).execute(given)["o"], wanted)
    assert [met.fault.kind.value for met in plan.met] == ["ssr", "oom"]


def test_a_context_is_saved_and_restored_with_its_tensor_ids(device: LibraryDevice) -> None:
    context = LibraryContext.create(device)
    inputs = values()
    first = build(context, "first").execute(inputs)["o"]
    build(context, "second", LibraryGraphOptions(vtcm_mb=4, hvx_threads=2, float16=True, optimization=3))
    blob = context.get_binary()
    context.free()
    restored = LibraryContext.from_binary(device, blob)
    assert list(restored.graphs) == ["first", "second"]
    for graph in restored.graphs.values():
        assert np.array_equal(graph.execute(inputs)["o"], first)


def test_metadata_tells_the_spill_fill_buffer(device: LibraryDevice, lib_dir: Path) -> None:
    context = LibraryContext.create(device)
    build(context)
    binary = read_binary(context.get_binary())
    packed = dataclasses.replace(binary.packed("g"), spill_fill_bytes=12345)
    blob = b"".join(pack_graphs([packed], binary.info))
    system = SystemLibrary(lib_dir / "libQnnSystem.so")
    handle, place = ctypes.c_void_p(), ctypes.c_void_p()
    data = ctypes.create_string_buffer(blob, len(blob))
    system.call("systemContextCreate", ctypes.addressof(handle))
    system.call("systemContextGetMetaData", handle, ctypes.addressof(data), len(blob), ctypes.addressof(place))
    info = struct("BinaryInfoV3").from_address(place.value)
    graph = struct("GraphInfo").from_address(info.graphs)
    assert struct("GraphBlobInfo").from_address(graph.blob).spill_fill == 12345
    system.call("systemContextFree", handle)


def test_one_configuration_serves_contexts_that_are_made_and_restored(device: LibraryDevice) -> None:
    context = LibraryContext.create(device, weight_sharing=True)
    build(context)
    blob = context.get_binary()
    context.free()
    custom = struct("HtpContextConfig")(option=HtpContextOption.WEIGHT_SHARING)
    custom.of.flag = 1
    config = struct("Config")(option=CUSTOM)
    config.of.custom = ctypes.addressof(custom)
    handle, data = ctypes.c_void_p(), ctypes.create_string_buffer(blob, len(blob))
    device.library.call(
        "contextCreateFromBinary",
        device.backend.handle,
        device.handle,
        pointer_list([config]),
        ctypes.addressof(data),
        len(blob),
        ctypes.addressof(handle),
        None,
    )
    device.library.call("contextFree", handle, None)


def test_updateable_data_are_taken_out_and_put_in(device: LibraryDevice) -> None:
    context = LibraryContext.create(device)
    graph = context.create_graph("g")
    constant = TensorSpec("b", SHAPE, DType.UFIXED_POINT_8, NARROW, TensorKind.UPDATEABLE_STATIC)
    call = OpCall("ElementWiseAdd", "add", (A, constant), (O,))
    inputs = values()
    graph.add_tensor(A)
    graph.add_tensor(constant, inputs["b"])
    graph.add_tensor(O)
    graph.add_node(call, params_of(call))
    graph.finalize()
    first = graph.execute({"a": inputs["a"]})["o"]
    library, size, written = device.library, ctypes.c_uint64(), ctypes.c_uint64()
    library.call("contextGetBinarySectionSize", context.handle, graph.handle, 1, ctypes.addressof(size))
    data = ctypes.create_string_buffer(size.value)
    buffer = struct("ContextBuffer")(version=1)
    buffer.buffer.data, buffer.buffer.size = ctypes.addressof(data), size.value
    place = ctypes.addressof(buffer)
    library.call(
        "contextGetBinarySection", context.handle, graph.handle, 1, place, ctypes.addressof(written), None, None
    )
    library.call("contextApplyBinarySection", context.handle, graph.handle, 1, place, None, None)
    assert np.array_equal(graph.execute({"a": inputs["a"]})["o"], first)
    assert library.ask("contextApplyBinarySection", context.handle, graph.handle, 7, place, None, None) == 5000
    data.raw = bytes(size.value)
    assert library.ask("contextApplyBinarySection", context.handle, graph.handle, 1, place, None, None) != 0


def test_the_same_structures_may_point_elsewhere_in_the_next_call(device: LibraryDevice) -> None:
    graph = build(LibraryContext.create(device))
    inputs = [values(seed) for seed in range(3)]
    places = {name: np.empty(SHAPE, np.uint8) for name in "ab"}
    for turn in range(9):
        source = inputs[turn % 3]
        if turn % 2:  # the same memory with other data, and other memory
            for name, array in source.items():
                places[name][...] = array
            source = places
        out = graph.execute(source)["o"]
        assert np.abs(out.astype(int) - expected(source).astype(int)).max() <= 1


def test_a_batch_is_a_multiple_of_the_graph_s(device: LibraryDevice) -> None:
    graph = build(LibraryContext.create(device))
    inputs = {name: np.concatenate([array, array[:, ::-1]]) for name, array in values().items()}
    out = graph.execute(inputs)["o"]
    assert out.shape == (2, *SHAPE[1:])
    assert np.abs(out.astype(int) - expected(inputs).astype(int)).max() <= 1


def test_profiles_have_events(backend: LibraryBackend, device: LibraryDevice) -> None:
    profile = backend.create_profile(ProfileLevel.DETAILED)
    graph = build(LibraryContext.create(device))
    graph.execute(values(), profile)
    types = {event.type for top in profile.events() for event in top.walk()}
    assert {400, 3004} <= types


def test_an_operation_is_validated_before_there_is_a_graph(backend: LibraryBackend) -> None:
    backend.validate_op(ADD, params_of(ADD))
    with pytest.raises(QnnError) as refused:
        backend.validate_op(OpCall("NoSuchOp", "x", (A,), (O,)), {})
    assert refused.value.code == 3110


def test_products_of_16_bits_are_of_later_chips(backend: LibraryBackend) -> None:
    quant = ScaleOffset(0.01)
    a = TensorSpec("a", (1, 4, 8), DType.UFIXED_POINT_16, quant)
    w = TensorSpec("w", (1, 8, 4), DType.SFIXED_POINT_16, quant)
    o = TensorSpec("o", (1, 4, 4), DType.UFIXED_POINT_16, quant)
    call = OpCall("MatMul", "m", (a, w), (o,))
    later = backend.create_device(soc="SM8550")
    backend.validate_op(call, params_of(call))
    early = backend.create_device(soc="SM8350")
    with pytest.raises(QnnError) as refused:
        backend.validate_op(call, params_of(call))
    assert refused.value.code == 3110
    early.free()
    later.free()


def test_what_is_freed_with_its_parent_is_no_handle_any_more(device: LibraryDevice) -> None:
    context = LibraryContext.create(device)
    graph = build(context)
    handle = graph.handle
    context.free()
    library = device.library
    assert library.ask("graphExecute", handle, None, 0, None, 0, None, None) == 6001
    assert library.ask("contextFree", 12345, None) == 5002


def test_backends_of_several_clients_of_one_process_do_not_share_their_end(lib_dir: Path) -> None:
    library = load(lib_dir / "libQnnHtp.so")
    first, second = LibraryBackend(library), LibraryBackend(library)
    device, other = first.create_device(), second.create_device()
    context = LibraryContext.create(device)
    graph = build(context)
    left = LibraryContext.create(other)
    library.call("backendFree", second.handle)
    assert library.ask("contextFree", left.handle, None) == 5002  # it went with its backend
    graph.execute(values())
    library.call("deviceFree", other.handle)
    graph.execute(values())
    for handle in (context, device, first):
        handle.free()
    library.call("logFree", second.log)


def test_a_device_with_contexts_is_not_freed(device: LibraryDevice) -> None:
    context = LibraryContext.create(device)
    assert device.library.ask("deviceFree", device.handle) == 14003
    context.free()


def test_the_build_id_and_versions_are_those_that_clients_ask_for(lib_dir: Path) -> None:
    library = load(lib_dir / "libQnnHtp.so")
    assert library.build_id.startswith("v2.51.")
    assert library.core_api[:2] == (2, 40)
    assert library.htp_api[:2] == (5, 51)


@pytest.mark.parametrize(("option", "arch"), [("soc", None), (None, 75), (None, 68)])
def test_devices_by_soc_and_by_architecture(backend: LibraryBackend, option: str | None, arch: int | None) -> None:
    device = backend.create_device(soc="SM8550" if option else None, arch=arch)
    LibraryContext.create(device).free()
    device.free()


def test_a_node_that_nothing_can_compute_is_an_error_only_if_its_result_is_used(device: LibraryDevice) -> None:
    integers = TensorSpec("n", SHAPE, DType.UINT_8, None, TensorKind.NATIVE)
    twice = OpCall("Dequantize", "odd", (A,), (integers,))
    used = OpCall("ElementWiseAdd", "use", (integers, integers), (O,))
    graph = LibraryContext.create(device).create_graph("g")
    for spec in (A, B, O, integers):
        graph.add_tensor(spec)
    graph.add_node(twice, {}, validate=False)
    with pytest.raises(QnnError) as refused:
        graph.add_node(used, {}, validate=False)
    assert refused.value.name == "QNN_GRAPH_ERROR_INVALID_OP_CONFIG"
    graph.add_node(ADD, params_of(ADD))
    graph.finalize()
    inputs = values()
    assert np.abs(graph.execute(inputs)["o"].astype(int) - expected(inputs).astype(int)).max() <= 1


@pytest.mark.parametrize(("soc", "exact"), [("SM8650", False), ("SM8350", True), (None, True)])
def test_floats_are_halved_on_chips_that_are_named_and_halve_them(
    backend: LibraryBackend, soc: str | None, exact: bool
) -> None:
    x, y = (TensorSpec(name, (1, 8), DType.FLOAT_32, None, kind) for name, kind in FLOATS)
    call = OpCall("Relu", "r", (x,), (y,))
    graph = LibraryContext.create(backend.create_device(soc=soc)).create_graph("g")
    for spec in (x, y):
        graph.add_tensor(spec)
    graph.add_node(call, params_of(call))
    graph.finalize()
    data = np.linspace(0.1, 0.9, 8, dtype=np.float32).reshape(1, 8)
    assert np.array_equal(graph.execute({"x": data})["y"], data) is exact


def test_c5_floats_of_32_bits_are_told_of_where_no_chip_is_named(
    backend: LibraryBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telling, "told", set())
    x, y = (TensorSpec(name, (1, 8), DType.FLOAT_32, None, kind) for name, kind in FLOATS)
    call = OpCall("Relu", "r", (x,), (y,))
    for soc, told in (("SM8650", 0), (None, 1), (None, 1)):
        graph = LibraryContext.create(backend.create_device(soc=soc)).create_graph("g")
        for spec in (x, y):
            graph.add_tensor(spec)
        graph.add_node(call, params_of(call))
        graph.finalize()
        assert sum("computes floats in 32 bits" in record.message for record in caplog.records) == told


def test_two_nodes_may_have_one_name(device: LibraryDevice) -> None:
    between = tensor("between", TensorKind.NATIVE)
    graph = LibraryContext.create(device).create_graph("g")
    for spec in (A, B, O, between):
        graph.add_tensor(spec)
    for call in (OpCall("Relu", "add", (A,), (between,)), OpCall("ElementWiseAdd", "add", (between, B), (O,))):
        graph.add_node(call, params_of(call))
    graph.finalize()
    inputs = {"a": np.full(SHAPE, 100, np.uint8), "b": np.full(SHAPE, 140, np.uint8)}
    assert (graph.execute(inputs)["o"] == 134).all()


def test_slopes_are_held_to_the_order_of_axes_in_graphs_only(
    backend: LibraryBackend, device: LibraryDevice
) -> None:
    first, last = (2, 5, 1, 3), (2, 1, 3, 5)
    for shape, fits in ((first, False), (last, True)):
        x, y = (
            TensorSpec(name, shape, DType.UFIXED_POINT_8, NARROW, kind)
            for name, kind in (("x", TensorKind.APP_WRITE), ("y", TensorKind.APP_READ))
        )
        slopes = TensorSpec("s", (5,), DType.UFIXED_POINT_8, NARROW, TensorKind.STATIC)
        call = OpCall("Prelu", "p", (x, slopes), (y,))
        backend.validate_op(call, {})
        graph = LibraryContext.create(device).create_graph("g")
        graph.add_tensor(x)
        graph.add_tensor(slopes, np.full(5, 130, np.uint8))
        graph.add_tensor(y)
        with nullcontext() if fits else pytest.raises(QnnError):
            graph.add_node(call, {}, validate=False)
