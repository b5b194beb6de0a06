"""IsNan and IsInf: which elements are no number, or no finite one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows

_TYPES = rows("f16|f32 > b")
_SAMPLES = (Sample(((1, 6, 5, 4),)),)


def _nan_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (arrays[0] != arrays[0],)


def _nan_lower(node: Node, e: Emitter) -> None:
    e.put_stored(0, e.node("IsNaN", [e.value(0)]))


def _inf_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    above = (arrays[0] == np.inf) & bool(node.params["detect_positive"])
    below = (arrays[0] == -np.inf) & bool(node.params["detect_negative"])
    return (above | below,)


def _inf_lower(node: Node, e: Emitter) -> None:
    above, below = (int(node.params[f"detect_{sign}"]) for sign in ("positive", "negative"))
    e.put_stored(0, e.node("IsInf", [e.value(0)], detect_positive=above, detect_negative=below))


OPS = (
    OpDef(
        name="IsNan",
        summary="true where in[0] is not a number",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=_TYPES,
        infer=same_as_input,
        reference=_nan_reference,
        lower=_nan_lower,
        work=vector_work(1),
        layout=Layout.ANY,
        tile=split_anywhere,
        onnx=(OnnxRule("IsNaN"),),
        samples=_SAMPLES,
    ),
    OpDef(
        name="IsInf",
        summary="true where in[0] is infinite, of the signs that are asked for",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=_TYPES,
        infer=same_as_input,
        reference=_inf_reference,
        lower=_inf_lower,
        work=vector_work(1),
        params=(
            Param("detect_negative", DType.BOOL_8, default=True),
            Param("detect_positive", DType.BOOL_8, default=True),
        ),
        layout=Layout.ANY,
        tile=split_anywhere,
        onnx=(
            OnnxRule("IsInf", attrs={"detect_negative": "detect_negative", "detect_positive": "detect_positive"}),
        ),
        samples=_SAMPLES,
    ),
)
