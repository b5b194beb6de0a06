"""HadamardTransform: sums and differences of the last axis, as rotations of language models use them."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results
from openhtp.ops._opdef import Constraint, OpDef, Param, Sample, Work, rows
from openhtp.ops._shapes import same_as_input

_LONGEST = 1 << 14


def _matrix(size: int) -> Array:
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _reference(node: Node, arrays: Arrays) -> Results:
    values = np.array(arrays[0], np.float64)
    size, width = values.shape[-1], 1
    flat = values.reshape(-1, size)
    while width < size:
        pairs = flat.reshape(-1, size // (2 * width), 2, width)
        flat = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2)
        width *= 2
    return (flat.reshape(values.shape) / np.sqrt(size) * node.params["scale"],)


def _lower(node: Node, e: Emitter) -> None:
    size = node.shape()[-1]
    matrix = e.const((_matrix(size) * (node.params["scale"] / np.sqrt(size))).astype(np.float32))
    e.put(0, e.node("MatMul", [e.value(0), matrix]))


def _work(node: Node) -> Work:
    rounds = max(1, node.shape()[-1].bit_length() - 1)
    return Work.on(node, vector_ops=rounds * node.outputs[0].elements)


def _is_power(node: Node) -> bool:
    size = node.shape()[-1] if node.shape() else 0
    return 1 <= size <= _LONGEST and size & (size - 1) == 0


OPS = (
    OpDef(
        name="HadamardTransform",
        summary="in[0] times the orthonormal Hadamard matrix of its last axis, times scale",
        types=rows("T > T : f16 f32 u16 u8"),
        infer=same_as_input,
        reference=_reference,
        lower=_lower,
        work=_work,
        params=(Param("scale", DType.FLOAT_32, default=1.0),),
        constraints=(Constraint(f"the last axis is a power of two, at most {_LONGEST}", _is_power),),
        max_rank=5,
        samples=(
            Sample(((1, 3, 8),), {"scale": 1.0}, low=-2.0, high=2.0),
            Sample(((2, 16),), {"scale": 0.5}, low=-2.0, high=2.0),
        ),
    ),
)
