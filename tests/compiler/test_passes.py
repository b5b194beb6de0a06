"""Compiler passes on small graphs."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.compiler.driver import CompileOptions, compile_graph, portable_program
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.precision import FloatPrecision
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.options import GRAPH
from openhtp.program.htp_program import Clamp, HtpProgram

U8, F32 = DType.UFIXED_POINT_8, DType.FLOAT_32
SHAPE = (1, 4, 4, 8)


def spec(name: str, kind: TensorKind = TensorKind.NATIVE, quant: ScaleOffset | None = None) -> TensorSpec:
    return TensorSpec(name, SHAPE, U8 if quant else F32, quant, kind)


def chain(between: ScaleOffset | None, out: ScaleOffset | None, *, read_twice: bool = False) -> HtpProgram:
    """a + b -> t, relu(t) -> y, optionally with t read by a second node."""
    q = ScaleOffset(0.1, -128) if out else None
    a, b = spec("a", TensorKind.APP_WRITE, q), spec("b", TensorKind.APP_WRITE, q)
    t, y = spec("t", quant=between), spec("y", TensorKind.APP_READ, out)
    builder = GraphBuilder("g")
    for each in (a, b, t, y):
        builder.add_tensor(each)
    builder.add_node(OpCall("ElementWiseAdd", "add", (a, b), (t,)))
    builder.add_node(OpCall("Relu", "relu", (t,), (y,)))
    if read_twice:
        z = spec("z", TensorKind.APP_READ, out)
        builder.add_tensor(z)
        builder.add_node(OpCall("Tanh", "tanh", (t,), (z,)))
    return compile_graph(builder.finish(), "SM8650")


@pytest.mark.parametrize(
    ("between", "out", "fused"),
    [
        (None, None, True),
        (ScaleOffset(0.2, -128), ScaleOffset(0.05, 0), True),
        # The intermediate saturates at 12.7 and the result goes to 25.5: fusing would change values.
        (ScaleOffset(0.1, -128), ScaleOffset(0.1, 0), False),
    ],
)
def test_a_clamp_is_fused_when_the_intermediate_loses_nothing(
    between: ScaleOffset | None, out: ScaleOffset | None, fused: bool
) -> None:
    program = chain(between, out)
    assert [node.op for node in program.source.nodes] == ["ElementWiseAdd", "Relu"]
    assert len(program.kernels) == (1 if fused else 2)
    if fused:
        (node,) = program.nodes
        assert node.clamp == Clamp(0.0, float("inf"))
        assert node.sources == ("add", "relu")
        assert node.outputs == ("y",)
        assert "t" not in {buffer.tensor for buffer in program.buffers}


def test_a_clamp_is_not_fused_when_someone_else_reads_the_intermediate() -> None:
    assert [node.name for node in chain(None, None, read_twice=True).nodes] == ["add", "relu", "tanh"]


def test_fused_work_has_no_bytes_for_the_intermediate() -> None:
    (fused,), (add, relu, _) = chain(None, None).nodes, chain(None, None, read_twice=True).nodes
    assert fused.work.bytes_written == 4 * 128
    assert fused.work.vector_ops == add.work.vector_ops + relu.work.vector_ops


def constant_graph() -> GraphBuilder:
    w = TensorSpec("w", (8,), F32, None, TensorKind.STATIC)
    folded = TensorSpec("folded", (8,), F32)
    dead = TensorSpec("dead", SHAPE, F32)
    x, y = spec("x", TensorKind.APP_WRITE), spec("y", TensorKind.APP_READ)
    builder = GraphBuilder("g")
    builder.add_tensor(w, np.arange(8, dtype=np.float32))
    for each in (folded, dead, x, y):
        builder.add_tensor(each)
    builder.add_node(OpCall("ElementWiseExp", "exp", (w,), (folded,)))
    builder.add_node(OpCall("Tanh", "unused", (x,), (dead,)))
    builder.add_node(OpCall("ElementWiseMultiply", "mul", (x, folded), (y,)))
    return builder


def test_constants_are_folded_and_dead_nodes_dropped() -> None:
    program = portable_program(constant_graph().finish())
    assert [node.name for node in program.nodes] == ["mul"]
    assert program.tensors["folded"].kind is TensorKind.STATIC
    assert set(program.tensors) == {"folded", "x", "y"}
    # Rounded to half precision, as the op's result would have been.
    expected = np.exp(np.arange(8.0)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(program.statics["folded"], expected)


def test_constants_of_a_float32_graph_are_folded_in_float32() -> None:
    options = GRAPH.read({"precision": FloatPrecision.FLOAT32})
    program = portable_program(constant_graph().finish(), CompileOptions(graph=options))
    np.testing.assert_array_equal(program.statics["folded"], np.exp(np.arange(8.0)).astype(np.float32))


def test_folding_can_be_left_out() -> None:
    program = portable_program(constant_graph().finish(), CompileOptions(fold=False))
    assert [node.name for node in program.nodes] == ["exp", "mul"]


def test_every_node_says_how_much_it_does() -> None:
    (node,) = compile_graph(constant_graph().finish(), "SM8650").nodes
    assert (node.work.macs, node.work.vector_ops) == (0, 128)
    assert (node.work.bytes_read, node.work.bytes_written) == (4 * 128 + 4 * 8, 4 * 128)
