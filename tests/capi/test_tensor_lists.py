"""Tensors in the lists of an execution: which count, and what about each of them is looked at."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openhtp.core import telling
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from tests.capi.raw_graph import RawGraph, TensorRoom

INVALID_TENSOR = 6004
A = TensorSpec("a", (1, 8), DType.FLOAT_32, None, TensorKind.APP_WRITE)
B = dataclasses.replace(A, name="b")
BETWEEN = dataclasses.replace(A, name="between", kind=TensorKind.NATIVE)
Y = dataclasses.replace(A, name="y", kind=TensorKind.APP_READ)
STEPS = np.arange(8, dtype=np.float32).reshape(1, 8)


@pytest.fixture
def context(lib_dir: Path) -> Iterator[LibraryContext]:
    backend = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    yield LibraryContext.create(backend.create_device(soc="SM8650"))
    backend.free()


@pytest.fixture
def graph(context: LibraryContext) -> RawGraph:
    """y = relu(a + b)"""
    calls = [OpCall("ElementWiseAdd", "add", (A, B), (BETWEEN,)), OpCall("Relu", "relu", (BETWEEN,), (Y,))]
    return RawGraph(context, (A, B, BETWEEN, Y), calls)


def rooms(graph: RawGraph) -> tuple[TensorRoom, TensorRoom, TensorRoom]:
    return graph.room("a", STEPS - 4), graph.room("b", STEPS), graph.room("y", np.zeros((1, 8), np.float32))


@pytest.mark.parametrize("versions", [(1, 1, 1), (2, 2, 2), (1, 2, 1), (2, 1, 2)], ids=str)
def test_versions_of_tensors_may_be_mixed(graph: RawGraph, versions: tuple[int, ...]) -> None:
    a, b, y = rooms(graph)
    for room, version in zip((a, b, y), versions, strict=True):
        room.struct.version = version
    assert graph.execute([a, b], [y]) == 0
    assert np.array_equal(y.array, np.maximum(2 * STEPS - 4, 0))


def test_tensors_are_known_by_their_number_in_any_order(graph: RawGraph) -> None:
    a, b, y = rooms(graph)
    assert graph.execute([b, a], [y]) == 0
    assert np.array_equal(y.array, np.maximum(2 * STEPS - 4, 0))
    a.struct.id = 9999
    assert graph.execute([a, b], [y]) == INVALID_TENSOR


def test_other_attributes_are_those_of_creation(graph: RawGraph) -> None:
    a, b, y = rooms(graph)
    other = ctypes.create_string_buffer(b"another name")
    a.struct.name, a.struct.data_type = ctypes.addressof(other), int(DType.INT_32)
    b.struct.quant.definition, b.struct.quant.encoding = 1, 0
    b.struct.quant.of.scale_offset.scale = 0.5
    assert graph.execute([a, b], [y]) == 0
    assert graph.execute_async([a, b], [y]) == (0, [0])
    assert np.array_equal(y.array, np.maximum(2 * STEPS - 4, 0))


@pytest.mark.parametrize("side", ["a", "y"])
def test_another_type_than_that_of_creation_is_a_warning_once(
    graph: RawGraph, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr(telling, "told", set())
    a, b, y = rooms(graph)
    assert graph.execute([a, b], [y]) == 0
    unset = 0x7FFFFFFF
    for said in (unset, int(DType.INT_32), int(DType.UFIXED_POINT_8)):
        (a if side == "a" else y).struct.data_type = said
        assert graph.execute([a, b], [y]) == 0
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"tensor {side!r} as QNN_DATATYPE_INT_32; it was created as QNN_DATATYPE_FLOAT_32" in warning


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_tensors_inside_of_the_graph_are_refused(graph: RawGraph, side: str) -> None:
    a, b, y = rooms(graph)
    inside = graph.room("between", np.zeros((1, 8), np.float32))
    inputs, outputs = ([a, b, inside], [y]) if side == "inputs" else ([a, b], [y, inside])
    assert graph.execute(inputs, outputs) == INVALID_TENSOR
    assert graph.execute_async(inputs, outputs) == (INVALID_TENSOR, [])
    assert not y.array.any()
    assert not inside.array.any()


def test_a_graph_without_inputs_is_executed_without_a_list(context: LibraryContext) -> None:
    graph = context.create_graph("constant")
    constant = dataclasses.replace(A, name="c", kind=TensorKind.STATIC)
    graph.add_tensor(constant, STEPS - 4)
    graph.add_tensor(Y)
    graph.add_node(OpCall("Relu", "relu", (constant,), (Y,)), {})
    graph.finalize()
    y = TensorRoom(Y, graph.ends["y"].id, np.zeros((1, 8), np.float32), None)
    code = context.library.ask("graphExecute", graph.handle, 0, 0, ctypes.addressof(y.struct), 1, 0, 0)
    assert code == 0
    assert np.array_equal(y.array, np.maximum(STEPS - 4, 0))
