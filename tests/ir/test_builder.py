"""Every refusal of the builder: the code, the words, and that nothing was changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from openhtp.core.dtype import DType
from openhtp.core.errors import QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder

U8 = DType.UFIXED_POINT_8
Q = ScaleOffset(0.1, -128)
A = TensorSpec("a", (1, 4, 4, 8), U8, Q, TensorKind.APP_WRITE)
B = dataclasses.replace(A, name="b")
N = dataclasses.replace(A, name="n", kind=TensorKind.NATIVE)
OUT = dataclasses.replace(A, name="out", kind=TensorKind.APP_READ)


def builder_with(*specs: TensorSpec) -> GraphBuilder:
    builder = GraphBuilder("g")
    for spec in specs:
        builder.add_tensor(spec)
    return builder


def add(name: str, *specs: TensorSpec, op: str = "ElementWiseAdd", **params: Any) -> OpCall:
    return OpCall(op, name, specs[:-1], specs[-1:], params)


def test_a_graph_keeps_the_order_of_tensors_and_nodes() -> None:
    builder = builder_with(A, B, N, OUT)
    builder.add_node(add("first", A, B, N))
    builder.add_node(add("second", N, B, OUT))
    graph = builder.finish()
    assert list(graph.tensors) == ["a", "b", "n", "out"]
    assert [call.name for call in graph.nodes] == ["first", "second"]
    assert [spec.name for spec in graph.inputs] == ["a", "b"]
    assert [spec.name for spec in graph.outputs] == ["out"]


STATIC = TensorSpec("w", (2, 3), U8, Q, TensorKind.STATIC)
BAD_TENSORS = [
    (A, None, 7003, "already exists"),
    (dataclasses.replace(A, name=""), None, 7004, "no name"),
    (dataclasses.replace(A, name="x", dtype=DType.UFIXED_POINT_4), None, 7004, "not supported"),
    (dataclasses.replace(A, name="x", shape=(1,) * 9), None, 7004, "rank 9"),
    (dataclasses.replace(A, name="x", shape=(1, 0, 4, 8)), None, 7004, "below 1"),
    (dataclasses.replace(A, name="x", shape=(1 << 30, 1 << 30)), None, 7004, "more than"),
    (dataclasses.replace(A, name="x", dynamic=(True,)), None, 7004, "dynamic flags"),
    (dataclasses.replace(A, name="x", quant=AxisScaleOffset(3, (0.1, 0.2))), None, 7004, "2 scales on axis 3"),
    (dataclasses.replace(A, name="x", dtype=DType.FLOAT_32), None, 7005, "no quantization"),
    (STATIC, None, 7004, "without data"),
    (STATIC, np.zeros((2, 2), np.uint8), 7004, "expected uint8[2, 3]"),
    (STATIC, np.zeros((2, 3), np.float32), 7004, "float32[2, 3] of 24 bytes"),
    (dataclasses.replace(A, name="x"), np.zeros(128, np.uint8), 7004, "only static"),
]


@pytest.mark.parametrize(("spec", "data", "code", "words"), BAD_TENSORS)
def test_a_bad_tensor_is_refused(spec: TensorSpec, data: Any, code: int, words: str) -> None:
    builder = builder_with(A)
    with pytest.raises(QnnError) as caught:
        builder.add_tensor(spec, data)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "graph 'g'" in str(caught.value)
    assert list(builder.tensors) == ["a"]


SMALL = dataclasses.replace(N, name="small", shape=(1, 4, 4, 7))
FLOAT = TensorSpec("f", (1, 4, 4, 8), DType.FLOAT_32, None, TensorKind.NATIVE)
STRANGER = dataclasses.replace(A, name="stranger")
BAD_NODES = [
    (add("n1", A, B, N, op="ElementWiseAd"), 6005, "or ElementWiseAdd"),
    (OpCall("ElementWiseAdd", "n1", (A, B), (N,), {}, "my.package"), 6005, "'my.package' is not registered"),
    (add("n1", A, N), 6005, "1 inputs given; expected 2"),
    (add("n1", A, B, A, N), 6005, "3 inputs given; expected 2"),
    (OpCall("ElementWiseAdd", "n1", (A, None), (N,)), 6005, "mandatory"),
    (add("n1", A, B, SMALL), 6005, "output 0 'small' has shape [1, 4, 4, 7]; expected [1, 4, 4, 8]"),
    (add("n1", A, B, FLOAT), 6005, "types u8 u8 > f32 are not accepted"),
    (add("n1", A, B, N, colour=3), 6005, "unknown parameter 'colour'"),
    (OpCall("Softmax", "n1", (A,), (N,), {"axis": 17}), 6005, "axis is 17"),
    (OpCall("Transpose", "n1", (A,), (N,), {}), 6005, "'perm' is missing"),
    (OpCall("Softmax", "n1", (A,), (N,), {"beta": "hot"}), 6005, "'hot'"),
    (add("n1", STRANGER, B, N), 6005, "'stranger' is not in this graph"),
    (add("n1", dataclasses.replace(A, shape=(1, 1, 1, 8)), B, N), 6005, "differs from the graph's"),
    (add("n1", N, B, OUT), 6007, "produced by no node"),
    (add("n1", N, B, N), 6007, "produced by no node"),
    (add("n1", A, B, B), 6005, "of kind APP_WRITE; expected NATIVE or APP_READ"),
    (add("old", A, B, N), 6005, "'old' is taken"),
    (add("n1", A, B, dataclasses.replace(N, name="made")), 6005, "already produced by node 'old'"),
]


@pytest.mark.parametrize(("call", "code", "words"), BAD_NODES)
def test_a_bad_node_is_refused_and_changes_nothing(call: OpCall, code: int, words: str) -> None:
    made = dataclasses.replace(N, name="made")
    builder = builder_with(A, B, N, OUT, SMALL, FLOAT, made)
    builder.add_node(add("old", A, B, made))
    with pytest.raises(QnnError) as caught:
        builder.add_node(call)
    assert caught.value.code == code, str(caught.value)
    assert words in str(caught.value)
    # Nothing changed: the right call still works, under the same name.
    builder.add_node(add("n1", A, B, N))
    builder.add_node(add("n2", N, B, OUT))
    assert [node.name for node in builder.finish().nodes] == ["old", "n1", "n2"]


def test_an_empty_graph_cannot_be_finished() -> None:
    with pytest.raises(QnnError) as caught:
        builder_with(A).finish()
    assert caught.value.name == "QNN_GRAPH_ERROR_FINALIZE_FAILED"


def test_a_graph_without_outputs_cannot_be_finished() -> None:
    builder = builder_with(A, B, N)
    builder.add_node(add("n1", A, B, N))
    with pytest.raises(QnnError, match="no output") as caught:
        builder.finish()
    assert caught.value.name == "QNN_GRAPH_ERROR_FINALIZE_FAILED"


def test_an_output_that_nobody_produces_is_an_error() -> None:
    builder = builder_with(A, B, N, OUT)
    builder.add_node(add("n1", A, B, N))
    with pytest.raises(QnnError, match="'out'") as caught:
        builder.finish()
    assert caught.value.code == 6020


def test_a_node_is_checked_once_and_anew_when_anything_about_it_differs() -> None:
    builder = builder_with(A, B, N, OUT)
    builder.add_node(add("first", A, B, N))
    builder.add_node(add("second", N, B, OUT))
    graph = builder.finish()
    first, second = graph.nodes
    known = graph.resolved(first)
    assert graph.resolved(dataclasses.replace(first)) is known
    assert graph.resolved(second) is not known
    assert graph.resolved(dataclasses.replace(first, inputs=("b", "a"))).inputs == (B, A)
    with pytest.raises(QnnError):
        graph.resolved(dataclasses.replace(first, params={"nonsense": 1}))
