"""Shape of an op that maps each element to one element by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Port, Sample, vector_work
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import TypeRow


def unary(
    name: str,
    summary: str,
    compute: Callable[[Array], Array],
    emit: Callable[[Emitter, str], str],
    types: tuple[TypeRow, ...],
    *,
    cost: int = 1,
    kind: str = "unary",
    max_rank: int = 5,
    low: float = -4.0,
    high: float = 4.0,
    values_kept: bool = False,
    result_range: tuple[float, float] | None = None,
    onnx: tuple[OnnxRule, ...] = (),
) -> OpDef:
    """An elementwise op without parameters; ``emit`` builds it from the name of the input's values."""

    def reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (compute(arrays[0]),)

    def lower(node: Node, e: Emitter) -> None:
        e.put(0, emit(e, e.value(0)))

    return OpDef(
        name=name,
        summary=summary,
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=types,
        infer=same_as_input,
        reference=reference,
        lower=lower,
        work=vector_work(cost),
        kind=kind,
        layout=Layout.ANY,
        max_rank=max_rank,
        values_kept=values_kept,
        result_range=lambda node: result_range,
        tile=split_anywhere,
        onnx=onnx,
        samples=(Sample(((1, 6, 5, 4),), low=low, high=high),),
    )


def plain(onnx_op: str) -> Callable[[Emitter, str], str]:
    """Emit one ONNX op of the same meaning."""
    return lambda e, x: e.node(onnx_op, [x])
