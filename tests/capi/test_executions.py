"""Executions through the C library: lists, sizes, elements and handles, right and wrong."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openhtp.abi.numbers import MemoryKind
from openhtp.abi.structs import pointer_list, struct
from openhtp.abi.writing import tensor_struct
from openhtp.capi import handles
from openhtp.capi.device import DeviceHeld
from openhtp.core.dtype import DType
from openhtp.core.enumerations import MemType
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import SignalOption
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import DataFormat, TensorKind, TensorSpec
from openhtp.runtime.calls.bound_call import CopiedCall
from openhtp.testing import hold, release
from openhtp.vendor.backend import LibraryBackend, LibraryDevice
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from tests.capi.raw_graph import NOTIFY, RawGraph, TensorRoom, filled
from tests.waiting import PATIENCE_S, wait_until

INVALID_ARGUMENT, INVALID_TENSOR, NOT_FINALIZED = 6000, 6004, 6023
UNSUPPORTED_FEATURE, UNSUPPORTED_TENSOR = 1000, 7005
TIMED_OUT, DYNAMIC_SHAPE, SPARSITY = 6033, 6036, 6037
INVALID_PARAM, UNSUPPORTED_PARAM = 7004, 7005
ROWS = (False, True, False)
X = TensorSpec("x", (1, 6, 8), DType.FLOAT_32, None, TensorKind.APP_WRITE)
Y = dataclasses.replace(X, name="y", kind=TensorKind.APP_READ)
VARYING = (dataclasses.replace(X, dynamic=ROWS), dataclasses.replace(Y, dynamic=ROWS))
SPARSE = dataclasses.replace(X, sparse_elements=2)
UNTOUCHED = -7.0
pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def device(lib_dir: Path) -> Iterator[LibraryDevice]:
    backend = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    yield backend.create_device(soc="SM8650")
    backend.free()


@pytest.fixture
def context(device: LibraryDevice) -> LibraryContext:
    return LibraryContext.create(device)


LEAST_URGENT = 19  # of the system's levels


def relu(context: LibraryContext, x: TensorSpec = X, y: TensorSpec = Y) -> RawGraph:
    return RawGraph(context, (x, y), [OpCall("Relu", "relu", (x,), (y,))])


def whole_numbers(rows: int) -> np.ndarray:
    return np.arange(8 * rows, dtype=np.float32).reshape(1, rows, 8) - 4


def rooms(graph: RawGraph, rows: int = 6, room: int = 6) -> tuple[TensorRoom, TensorRoom]:
    """An input of so many rows, and an output with room for so many."""
    return graph.room("x", whole_numbers(rows)), graph.room("y", np.full((1, room, 8), UNTOUCHED, np.float32))


@pytest.mark.parametrize("entry", ["graphExecute", "graphExecuteAsync"])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [("list", "null"), ("list", "no address"), ("list", "empty"), ("null", "list"), ("no address", "list")],
)
@pytest.mark.parametrize("known", [False, True])
def test_a4_lists_that_are_null_or_empty_are_refused(
    context: LibraryContext, entry: str, inputs: str, outputs: str, known: bool
) -> None:
    graph = relu(context)
    x, y = rooms(graph)
    if known:
        assert graph.execute([x], [y]) == 0
        y.array[...] = UNTOUCHED
    given: list[int] = []
    for room, how in ((x, inputs), (y, outputs)):
        place = ctypes.addressof(room.struct)
        given += {"list": (place, 1), "null": (0, 0), "no address": (0, 1), "empty": (place, 0)}[how]
    more = (0, 0) if entry == "graphExecute" else (0, 0, 0, 0)
    assert graph.ask(entry, *given, *more) == INVALID_ARGUMENT
    assert (y.array == UNTOUCHED).all()


@pytest.mark.parametrize("queued", [False, True])
def test_structures_that_have_not_come_often_are_copied_to_what_is_ready(
    context: LibraryContext, way: str, queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = relu(context)
    x, y = rooms(graph)
    tried: list[int] = []
    for name in ("run", "run_async"):
        usual = getattr(CopiedCall, name)
        monkeypatch.setattr(CopiedCall, name, lambda *given, usual=usual: tried.append(number) or usual(*given))
    for number in range(4):
        x.array[...] = whole_numbers(6) - number
        code = graph.execute_async([x], [y])[0] if queued else graph.execute([x], [y])
        assert code == 0
        assert (y.array == np.maximum(x.array, 0)).all()
    assert tried == ([0, 1] if way == "copied" else [])


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_tensors_may_come_in_any_order_and_lie_over_each_other(
    context: LibraryContext, queued: bool, number: int
) -> None:
    a, b = (dataclasses.replace(X, name=name) for name in "ab")
    graph = RawGraph(context, (a, b, Y), [OpCall("ElementWiseSubtract", "s", (a, b), (Y,))])
    data = [whole_numbers(6), np.full((1, 6, 8), 3, np.float32)]
    given = [graph.room(name, array) for name, array in zip("ab", data, strict=True)]
    y = graph.room("y", data[number])  # an input is written over
    listed = given[::-1]
    code = graph.execute_async(listed, [y])[0] if queued else graph.execute(listed, [y])
    assert code == 0
    assert (y.array == whole_numbers(6) - 3).all()


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("where", ["input", "output", "read-only output"])
def test_data_in_memory_that_is_not_there_are_refused_by_the_call(
    context: LibraryContext, queued: bool, where: str
) -> None:
    graph = relu(context)
    x, y = rooms(graph)
    rights = mmap.PROT_READ if where == "read-only output" else 0
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as page:
        place = ctypes.addressof(ctypes.c_char.from_buffer(page))
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(place), mmap.PAGESIZE, rights)
        (x if where == "input" else y).struct.buffer.data = place
        code, statuses = graph.execute_async([x], [y]) if queued else (graph.execute([x], [y]), [])
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(place), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    assert code == (INVALID_ARGUMENT if rights else INVALID_TENSOR)
    assert not statuses
    assert (y.array == UNTOUCHED).all()


def test_a4_inputs_with_a_count_of_zero_are_refused(context: LibraryContext) -> None:
    graph = relu(context)
    x, y = rooms(graph)
    assert (
        graph.ask("graphExecute", ctypes.addressof(x.struct), 0, ctypes.addressof(y.struct), 1, 0, 0)
        == INVALID_ARGUMENT
    )


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("known", [False, True])
def test_a_tensor_of_another_version_is_refused(context: LibraryContext, side: str, known: bool) -> None:
    graph = relu(context)
    x, y = rooms(graph)
    if known:
        assert graph.execute([x], [y]) == 0
        y.array[...] = UNTOUCHED
    (x if side == "input" else y).struct.version = 7
    assert graph.execute([x], [y]) == INVALID_TENSOR
    assert (y.array == UNTOUCHED).all()


def test_a4_what_is_not_finalized_says_so_and_is_looked_at_anew_afterwards(context: LibraryContext) -> None:
    graph = RawGraph(context, (X,), [], finalize=False)
    assert graph.ask("graphExecute", 0, 0, 0, 0, 0, 0) == NOT_FINALIZED
    graph.add_tensor(Y)
    graph.library_graph.add_node(OpCall("Relu", "relu", (X,), (Y,)), {}, validate=False)
    graph.library_graph.finalize()
    x, y = rooms(graph)
    assert graph.execute([x], [y]) == 0


@pytest.mark.parametrize("queued", [False, True])
def test_a5_sizes_follow_the_call_and_are_told(context: LibraryContext, queued: bool) -> None:
    graph = relu(context, *VARYING)
    for rows in (2, 6, 1, 5, 2):
        x, y = rooms(graph, rows)
        if queued:
            assert graph.execute_async([x], [y]) == (0, [0])
        else:
            assert graph.execute([x], [y]) == 0
        assert y.shape == (1, rows, 8)
        flat = y.array.reshape(-1)
        assert np.array_equal(flat[: rows * 8], np.maximum(whole_numbers(rows), 0).reshape(-1))
        assert (flat[rows * 8 :] == UNTOUCHED).all()


def test_a5_a_client_may_change_dimensions_in_place(context: LibraryContext) -> None:
    graph = relu(context, *VARYING)
    x, y = rooms(graph)
    for rows in (6, 2, 2, 6, 3, 6, 6):
        x.dims[1] = rows
        y.array[...] = UNTOUCHED
        assert graph.execute([x], [y]) == 0
        assert y.shape == (1, rows, 8)  # also where the call before left a smaller size
        assert np.count_nonzero(y.array != UNTOUCHED) == rows * 8


@pytest.mark.parametrize(
    ("dims", "code"),
    [
        ((1, 7, 8), DYNAMIC_SHAPE),
        ((1, 0, 8), DYNAMIC_SHAPE),
        ((1, 0xFFFFFFFF, 8), DYNAMIC_SHAPE),
        ((1, 6, 7), INVALID_TENSOR),
        ((2, 6, 8), INVALID_TENSOR),
        ((1, 48), DYNAMIC_SHAPE),
    ],
    ids=str,
)
def test_a5_sizes_that_a_tensor_cannot_have_change_nothing(
    context: LibraryContext, dims: tuple[int, ...], code: int
) -> None:
    graph = relu(context, *VARYING)
    x, y = rooms(graph)
    y.dims[1] = 99
    wrong = graph.room("x", x.array, dims)
    assert graph.execute([wrong], [y]) == code
    assert graph.execute_async([wrong], [y]) == (code, [])
    assert y.shape == (1, 99, 8)
    assert (y.array == UNTOUCHED).all()
    assert graph.execute([x], [y]) == 0


@pytest.mark.parametrize("side", ["x", "y"])
def test_a5_a_varying_tensor_needs_its_dimensions(context: LibraryContext, side: str) -> None:
    graph = relu(context, *VARYING)
    x, y = rooms(graph)
    {"x": x, "y": y}[side].struct.dims = None
    assert graph.execute([x], [y]) == DYNAMIC_SHAPE
    assert (y.array == UNTOUCHED).all()


def test_a5_dimensions_that_cannot_be_written_are_refused_before_anything_is(context: LibraryContext) -> None:
    graph = relu(context, *VARYING)
    x, y = rooms(graph)
    y.struct.dims = 64
    assert graph.execute([x], [y]) == INVALID_ARGUMENT
    assert graph.execute_async([x], [y]) == (INVALID_ARGUMENT, [])
    assert (y.array == UNTOUCHED).all()


def test_a5_other_dimensions_stay_as_they_are(context: LibraryContext) -> None:
    graph = relu(context)
    x, y = rooms(graph)
    assert graph.execute([graph.room("x", x.array, (1, 5, 8))], [y]) == INVALID_TENSOR
    assert graph.execute([x], [graph.room("y", y.array, (1, 5, 8))]) == INVALID_TENSOR


def registered(context: LibraryContext, room: TensorRoom) -> np.ndarray:
    """Have a tensor lie in memory that is shared with the device, in its full size."""
    descriptor = os.memfd_create("client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4 * 48)
    array = np.frombuffer(mmap.mmap(descriptor, 4 * 48), np.float32)
    dims = (ctypes.c_uint32 * 3)(1, 6, 8)
    said = struct("MemoryDescriptor")(
        num_dims=3, dims=ctypes.addressof(dims), data_type=int(DType.FLOAT_32), mem_type=MemType.ION
    )
    said.of.fd = descriptor
    handle = ctypes.c_uint64()
    context.library.call("memRegister", context.handle, ctypes.addressof(said), 1, ctypes.addressof(handle))
    os.close(descriptor)
    room.struct.mem_type, room.struct.buffer.data = MemoryKind.HANDLE, handle.value
    return array


def test_a5_sizes_follow_the_call_in_registered_memory(context: LibraryContext) -> None:
    graph = relu(context, *VARYING)
    x, y = rooms(graph)
    source, result = registered(context, x), registered(context, y)
    for rows in (2, 6, 3, 3):
        x.dims[1] = rows
        source[...], result[...] = -1, UNTOUCHED
        source[: rows * 8] = np.arange(rows * 8)
        assert graph.execute([x], [y]) == 0
        assert y.shape == (1, rows, 8)
        assert np.array_equal(result[: rows * 8], source[: rows * 8])
        assert (result[rows * 8 :] == UNTOUCHED).all()


def test_a5_an_optional_input_may_be_left_out_and_all_outputs_may_not(context: LibraryContext) -> None:
    x = dataclasses.replace(X, kind=TensorKind.OPTIONAL_APP_WRITE)
    graph = relu(context, x, dataclasses.replace(Y, kind=TensorKind.OPTIONAL_APP_READ))
    y = rooms(graph)[1]
    assert graph.ask("graphExecute", 0, 0, ctypes.addressof(y.struct), 1, 0, 0) == 0
    assert (y.array == 0).all()
    assert graph.ask("graphExecute", 0, 0, 0, 0, 0, 0) == INVALID_ARGUMENT


@pytest.mark.parametrize("kind", [TensorKind.APP_READWRITE, TensorKind.OPTIONAL_APP_READWRITE])
def test_a9_a_tensor_that_is_input_and_output_is_refused_in_words(
    context: LibraryContext, kind: TensorKind, caplog: pytest.LogCaptureFixture
) -> None:
    both = dataclasses.replace(X, name="state", kind=kind)
    graph = RawGraph(context, (X, Y), [OpCall("Relu", "relu", (X,), (Y,))], finalize=False)
    kept: list[Any] = []
    tensor = tensor_struct(both, None, kept)
    assert graph.ask("tensorCreateGraphTensor", ctypes.addressof(tensor)) == UNSUPPORTED_TENSOR
    assert "use one that is written and one that is read" in caplog.text
    graph.library_graph.finalize()  # without it, nothing is amiss
    x, y = rooms(graph)
    assert graph.execute([x], [y]) == 0
    assert not graph.library.has_capability(519)


def test_a_graph_that_is_not_supported_is_an_error_in_the_log(
    context: LibraryContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients ask whether nodes are supported; whoever finalizes a graph wants it."""
    byte = dataclasses.replace(X, dtype=DType.UFIXED_POINT_8, shape=(256, 256), quant=ScaleOffset(0.1, -128))
    cache = dataclasses.replace(byte, data_format=DataFormat.HMX_WEIGHT_LAYOUT)
    y = dataclasses.replace(byte, name="y", kind=TensorKind.APP_READ)
    graph = RawGraph(context, (cache, y), [OpCall("Relu", "relu", (cache,), (y,))], finalize=False)
    with caplog.at_level(logging.ERROR, "openhtp.capi"):
        assert graph.ask("graphFinalize", 0, 0) == 1000
    assert "graphFinalize" in caplog.text


def test_a9_what_is_written_may_lie_where_the_input_is(context: LibraryContext) -> None:
    state = dataclasses.replace(X, name="state")
    updated = dataclasses.replace(Y, name="updated")
    graph = RawGraph(context, (X, state, updated), [OpCall("ElementWiseAdd", "add", (state, X), (updated,))])
    step, place = np.ones(X.shape, np.float32), np.zeros(X.shape, np.float32)
    inputs, outputs = [graph.room("x", step), graph.room("state", place)], [graph.room("updated", place)]
    for turn in range(1, 6):
        assert graph.execute(inputs, outputs) == 0
        assert (place == turn).all()
    for turn in range(6, 9):
        assert graph.execute_async(inputs, outputs) == (0, [0])
        assert (place == turn).all()


@pytest.mark.parametrize("queued", [False, True])
def test_a8_a_result_that_is_larger_than_its_room_fills_it(context: LibraryContext, queued: bool) -> None:
    graph = relu(context, *VARYING)
    x, y = rooms(graph, rows=5, room=4)
    for _ in range(3):
        y.array[...] = UNTOUCHED
        if queued:
            assert graph.execute_async([x], [y]) == (0, [DYNAMIC_SHAPE])
        else:
            assert graph.execute([x], [y]) == DYNAMIC_SHAPE
        assert y.shape == (1, 5, 8)
        assert np.array_equal(y.array, np.maximum(whole_numbers(5), 0)[:, :4])
    few, fits = rooms(graph, rows=4, room=4)
    assert graph.execute([few], [fits]) == 0


@pytest.mark.parametrize("queued", [False, True])
def test_a6_more_elements_than_a_sparse_tensor_has_are_refused(context: LibraryContext, queued: bool) -> None:
    graph = relu(context, SPARSE, Y)
    for places, code in (((1, 2), 0), (range(8), SPARSITY), ((5,), 0), ((0, 3, 7), SPARSITY)):
        x = graph.room("x", filled((1, 6, 8), {(0, 1, place): 3.0 for place in places}))
        y = graph.room("y", np.full((1, 6, 8), UNTOUCHED, np.float32))
        if queued:
            assert graph.execute_async([x], [y]) == (code, [] if code else [0])
        else:
            assert graph.execute([x], [y]) == code
        assert np.array_equal(y.array, x.array) is not bool(code)


def test_a6_the_number_of_elements_is_looked_at_in_every_execution(context: LibraryContext) -> None:
    graph = relu(context, SPARSE, Y)
    x, y = graph.room("x", filled((1, 6, 8), {(0, 0, 0): 1.0})), rooms(graph)[1]
    for count in (1, 2, 3, 2, 8, 1):
        x.array[...] = 0
        x.array.reshape(-1)[:count] = 1
        assert graph.execute([x], [y]) == (SPARSITY if count > 2 else 0)


def test_a6_the_number_that_a_client_gives_is_held_to_the_bound(context: LibraryContext) -> None:
    graph = relu(context, SPARSE, Y)
    x, y = graph.room("x", filled((1, 6, 8))), rooms(graph)[1]
    for count, code in ((8, SPARSITY), (2, 0)):
        x.struct.sparse.elements = count
        assert graph.execute([x], [y]) == code


@pytest.mark.parametrize(
    ("data_format", "elements", "code"), [(1, 2, 0), (0, 2, 0), (1, 0, INVALID_PARAM), (2, 2, UNSUPPORTED_PARAM)]
)
def test_a6_the_sparse_data_format_needs_a_number_of_elements(
    context: LibraryContext, data_format: int, elements: int, code: int
) -> None:
    graph, keep = context.create_graph("sparse"), []
    made: Any = tensor_struct(SPARSE, None, keep)
    made.data_format, made.sparse.elements = data_format, elements
    assert context.library.ask("tensorCreateGraphTensor", graph.handle, ctypes.addressof(made)) == code


@pytest.mark.parametrize("handle", ["profile", "signal"])
@pytest.mark.parametrize("number", [4660, "graph"])
def test_a8_a_handle_of_another_kind_is_an_invalid_argument(
    context: LibraryContext, handle: str, number: int | str
) -> None:
    graph = relu(context)
    x, y = rooms(graph)
    wrong = {handle: graph.handle if number == "graph" else number}
    assert graph.execute([x], [y], **wrong) == INVALID_ARGUMENT  # type: ignore[arg-type]
    assert graph.execute_async([x], [y], **wrong) == (INVALID_ARGUMENT, [])  # type: ignore[arg-type]
    assert (y.array == UNTOUCHED).all()


def timeout_signal(backend: LibraryBackend, microseconds: int) -> int:
    config = struct("Config")(option=SignalOption.TIMEOUT)
    config.of.number64 = microseconds
    handle = ctypes.c_uint64()
    listing = pointer_list([config])
    backend.library.call("signalCreate", backend.handle, listing, ctypes.addressof(handle))
    return handle.value


def queue(graph: RawGraph, rooms: tuple[TensorRoom, TensorRoom], notify: Any, signal: int = 0) -> int:
    x, y = (ctypes.addressof(room.struct) for room in rooms)
    told = ctypes.cast(notify, ctypes.c_void_p).value
    return graph.ask("graphExecuteAsync", x, 1, y, 1, 0, signal, told, 0)


def test_one_graph_executed_both_ways_is_refused_in_words(
    context: LibraryContext, caplog: pytest.LogCaptureFixture
) -> None:
    graph = relu(context)
    both, over = rooms(graph), threading.Event()
    notify = NOTIFY(lambda param, status: over.set())
    npu = handles.of_kind(DeviceHeld)[-1].device()
    hold(npu)
    try:
        assert queue(graph, both, notify) == 0
        assert graph.execute([both[0]], [both[1]]) == UNSUPPORTED_FEATURE
    finally:
        release(npu)
    assert over.wait(PATIENCE_S)
    said = [record for record in caplog.records if "executing one graph both ways" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.ERROR]


def test_a8_a_timeout_lasts_until_the_callback_is_called(device: LibraryDevice, context: LibraryContext) -> None:
    graph = relu(context)
    go_on, over = threading.Event(), threading.Event()
    statuses: list[int] = []

    def slow(_: int, status: int) -> None:
        assert go_on.wait(PATIENCE_S)
        statuses.append(status)

    def quick(_: int, status: int) -> None:
        statuses.append(status)
        if len(statuses) == 3:
            over.set()

    callbacks = [NOTIFY(slow), NOTIFY(quick)]
    first, second, third = (rooms(graph) for _ in range(3))
    assert queue(graph, first, callbacks[0]) == 0
    assert queue(graph, second, callbacks[1], timeout_signal(device.backend, 200_000)) == 0
    passed = time.monotonic() + 0.3
    assert queue(graph, third, callbacks[1], timeout_signal(device.backend, 3_600_000_000)) == 0
    wait_until(lambda: time.monotonic() > passed)
    go_on.set()
    assert over.wait(PATIENCE_S)
    assert statuses == [0, TIMED_OUT, 0]


def test_a8_callbacks_are_no_more_urgent_than_the_thread_that_called(context: LibraryContext) -> None:
    graph = relu(context)
    found: list[int] = []
    over = threading.Event()

    def notify(_: int, status: int) -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, 0))  # of this thread
        over.set()

    callback, lent = NOTIFY(notify), rooms(graph)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    for more in (0, 4, 2, 7):
        wanted = min(usual + more, LEAST_URGENT)

        def call(nice: int = wanted) -> None:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            assert queue(graph, lent, callback) == 0
            assert over.wait(PATIENCE_S)

        over.clear()
        caller = threading.Thread(target=call)
        caller.start()
        caller.join(PATIENCE_S)
        assert found[-1] >= wanted
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual
