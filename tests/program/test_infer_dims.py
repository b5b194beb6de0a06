"""Output sizes of programs with dynamic dimensions."""

from __future__ import annotations

import pytest

from openhtp.compiler.driver import portable_program
from openhtp.core.dtype import DType
from openhtp.core.errors import QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.program.qnn_program import QnnProgram


def program() -> QnnProgram:
    f32 = DType.FLOAT_32
    x = TensorSpec("x", (8, 16, 4), f32, kind=TensorKind.APP_WRITE, dynamic=(False, True, False))
    r = TensorSpec("r", (8, 16, 4), f32, dynamic=(False, True, False))
    y = TensorSpec("y", (8, 64), f32, kind=TensorKind.APP_READ, dynamic=(False, True))
    builder = GraphBuilder("dyn")
    for spec in (x, r, y):
        builder.add_tensor(spec)
    builder.add_node(OpCall("Tanh", "tanh", (x,), (r,)))
    builder.add_node(OpCall("Reshape", "flat", (r,), (y,)))
    return portable_program(builder.finish())


def test_smaller_inputs_give_smaller_outputs() -> None:
    assert program().infer_dims({"x": (8, 5, 4)}) == {"y": (8, 20)}
    assert program().infer_dims({}) == {"y": (8, 64)}


@pytest.mark.parametrize("shape", [(8, 17, 4), (8, 0, 4), (7, 16, 4), (8, 16)])
def test_sizes_outside_the_declared_ones_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(QnnError, match=r"expected \[8, 1..16, 4\]") as caught:
        program().infer_dims({"x": shape})
    assert caught.value.name == "QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE"


def test_only_inputs_have_sizes_to_give() -> None:
    with pytest.raises(QnnError, match="'y' is not an input"):
        program().infer_dims({"y": (8, 64)})
