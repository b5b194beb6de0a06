"""RandomUniformLike: numbers between two bounds, new ones in every execution."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.tensor import TensorKind
from openhtp.ops._node import Array, Emitter, Node, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, rows, vector_work
from openhtp.ops._shapes import refuse

_HALF = {"low": 0.5, "high": 0.5}


def _infer(node: Node) -> Shapes:
    shape, sizes = node.outputs[0].shape, node.static(0)
    if sizes is not None and tuple(map(int, sizes.ravel())) != shape:
        refuse(node, f"in[0] has the sizes {sizes.ravel().tolist()}; expected those of the output, {list(shape)}")
    return (shape,)


def _numbers(node: Node, seed: int) -> Array:
    random = np.random.default_rng(seed)
    return random.uniform(node.params["low"], node.params["high"], node.outputs[0].shape)


def _seed(node: Node) -> int | None:
    """The bits of the number in[1], if there is one."""
    seed = node.static(1) if node.has(1) else None
    return None if seed is None else int(seed.astype(np.float32).view(np.uint32).ravel()[0])


def _lower(node: Node, e: Emitter) -> None:
    low, high = (float(node.params[name]) for name in ("low", "high"))
    seed = _seed(node)
    if seed is not None:
        return e.put(0, e.const(_numbers(node, seed).astype(np.float32)))
    # Scaled by hand: the runtime refuses bounds that are equal.
    spread = e.node("RandomUniform", [], shape=list(node.outputs[0].shape))
    scaled = e.node("Mul", [spread, e.floats(high - low)])
    return e.put(0, e.node("Add", [scaled, e.floats(low)]))


OPS = (
    OpDef(
        name="RandomUniformLike",
        summary="numbers from low up to high, in the shape that in[0] names; without a seed, new ones each time",
        inputs=(Port("in[0]"), Port("in[1]", optional=True)),
        types=rows("n32 f32 > u8"),
        infer=_infer,
        reference=lambda node, arrays: (_numbers(node, _seed(node) or 0),),
        lower=_lower,
        work=vector_work(4),
        params=(Param("low", DType.FLOAT_32, default=0.0), Param("high", DType.FLOAT_32, default=1.0)),
        constraints=(
            Constraint("low is at most high", lambda node: bool(node.params["low"] <= node.params["high"])),
            Constraint("in[0] has one axis", lambda node: node.input().rank == 1),
            Constraint(
                "the seed in[1] is a static tensor of one number",
                lambda node: (
                    not node.has(1) or (node.input(1).kind is TensorKind.STATIC and node.input(1).elements == 1)
                ),
            ),
        ),
        random=True,
        bound_to_shape=True,
        samples=(
            Sample(((3,), None), _HALF, static=(0,), outputs=((2, 2, 2),), ranges={0: (2.0, 2.0)}),
            Sample(((1,), None), _HALF, static=(0,), outputs=((3,),), ranges={0: (3.0, 3.0)}),
            Sample(((2,), (1,)), {"high": 9.0}, static=(0, 1), outputs=((3, 3),), ranges={0: (3.0, 3.0)}),
        ),
    ),
)
