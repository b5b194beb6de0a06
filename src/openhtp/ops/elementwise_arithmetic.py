"""Sum, difference, product and quotient of two tensors, broadcast from the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Port, Sample, vector_work
from openhtp.ops._shapes import broadcast_inputs
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import TypeRow, rows

_TYPES = rows("T T > T : f16 f32 u16 s16 u8 s8 i32")
_SAMPLES = (
    Sample(((1, 5, 7, 3), (1, 5, 7, 3)), ranges={1: (0.5, 3.0)}),
    Sample(((2, 4, 3), (3,)), ranges={1: (0.5, 3.0)}, static=(1,)),
    Sample(((2, 1, 3), (4, 1)), ranges={1: (-3.0, -0.5)}),
)


def arithmetic(
    name: str,
    onnx_op: str,
    compute: Callable[[Array, Array], Array],
    summary: str,
    kind: str,
    *,
    types: tuple[TypeRow, ...] = _TYPES,
    cost: int = 1,
) -> OpDef:
    """An op that applies one ONNX op to two broadcast inputs."""

    def reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (compute(arrays[0], arrays[1]),)

    def lower(node: Node, e: Emitter) -> None:
        operands = [e.value(0), e.value(1)]
        if onnx_op == "Div" and node.input().dtype is DType.INT_32:
            # Integer division traps on 0 and on the smallest number by -1, and would end the whole process.
            exact = e.node("Div", [e.node("Cast", [operand], to="float64") for operand in operands])
            return e.put(0, e.node("Cast", [exact], to="int32"))
        if node.input().dtype is DType.UINT_32:
            # The runtime has no kernel for it; the low 32 bits of the wide result are the same.
            wide = e.node(onnx_op, [e.node("Cast", [operand], to="int64") for operand in operands])
            return e.put(0, e.node("Cast", [wide], to="uint32"))
        return e.put(0, e.node(onnx_op, operands))

    return OpDef(
        name=name,
        summary=summary,
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=types,
        infer=broadcast_inputs,
        reference=reference,
        lower=lower,
        work=vector_work(cost),
        kind=kind,
        layout=Layout.ANY,
        takes_activation=True,
        affine_by_constant=True,
        tile=split_anywhere,
        onnx=(OnnxRule(onnx_op),),
        samples=_SAMPLES,
    )


def _divide(a: Array, b: Array) -> Array:
    # Integers divide towards zero, as the vector units do.
    return np.trunc(a / b).astype(a.dtype) if a.dtype.kind in "iu" else np.asarray(a / b)


OPS = (
    arithmetic("ElementWiseAdd", "Add", np.add, "out = in[0] + in[1]", "add"),
    arithmetic("ElementWiseSubtract", "Sub", np.subtract, "out = in[0] - in[1]", "subtract"),
    arithmetic(
        "ElementWiseMultiply",
        "Mul",
        np.multiply,
        "out = in[0] * in[1]",
        "multiply",
        types=rows("T T > T : f16 f32 u16 s16 u8 s8 i32 n32"),
    ),
    arithmetic(
        "ElementWiseDivide",
        "Div",
        _divide,
        "out = in[0] / in[1]; integers round towards zero",
        "divide",
        types=rows("T T > T : f16 f32 u16 u8 s8 i32"),
        cost=8,
    ),
)
