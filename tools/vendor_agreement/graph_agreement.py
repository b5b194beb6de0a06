"""Random graphs on our engine and on the vendor's library, judged node by node.

Every value between nodes is an output, too. So each node is judged on the inputs that it really had, on either
side, against exact arithmetic on those inputs: what a node before it did wrong is not counted again, however deep
the graph. A second run keeps the values inside, where nodes may be fused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import DeviceLost, QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ops import op_names
from openhtp.testing import oracle
from vendor_agreement.agreement import Agreement, measure_output
from vendor_agreement.differential import NotOffered, draw_case, exact_results, rows_of, run_calls
from vendor_agreement.drawing import real_values
from vendor_agreement.random_graphs import RandomGraph
from vendor_agreement.rows import Row

Array = npt.NDArray[Any]
Results = dict[str, Array]

# Operations (and those of the elementwise families) that jump, and how near to a jump is too near to say.
_JUMPING = re.compile(
    "(ElementWise)?(Ceil|Floor|FloorDiv|Fmod|Mod|Round|Sign|Equal|NotEqual|Greater.*|Less.*)", re.IGNORECASE
)
_SINGLE = 2.0**-22


def offered_rows(soc: str) -> Iterator[Row]:
    """Rows that both sides take, by the vendor's validator; what it takes and cannot compile shows only then."""
    for op in op_names():
        for row in rows_of(op):
            case = draw_case(row, 0)
            if takes(case.call, case.stored, soc):
                yield row


def takes(call: OpCall, stored: Mapping[str, Array], soc: str) -> bool:
    """Whether the vendor's validator accepts a node."""
    given = {spec.name: stored[spec.name] for spec in call.inputs if spec is not None}
    try:
        oracle.validate_op(call, given, soc=soc)
    except QnnError:
        return False
    return True


def run_graph_ours(graph: RandomGraph, engine: OrtEngine, *, inside: bool = False) -> Results:
    """All values of a graph, or with ``inside`` only those that no node reads."""
    return run_calls(_calls(graph, inside), graph.stored, engine)


def run_graph_vendor(graph: RandomGraph, soc: str, *, inside: bool = False) -> Results:
    """The same on the vendor's library. Raises NotOffered with its reason if it does not take the graph."""
    try:
        return oracle.run_nodes(_calls(graph, inside), graph.stored, soc=soc)
    except DeviceLost as error:
        raise NotOffered(f"the library crashed or hung: {error.message}") from error
    except QnnError as error:
        raise NotOffered(error.message) from error


def judge(graph: RandomGraph, ours: Results, theirs: Results) -> list[Agreement]:
    """Compare every output of every node, each side with exact arithmetic on its own inputs."""
    found: list[Agreement] = []
    with np.errstate(all="ignore"):  # the library's results may be anything
        for node in graph.nodes:
            mine, other = (_with_exact(node.call, {**graph.stored, **side}) for side in (ours, theirs))
            outputs = zip(node.call.outputs, mine, other, strict=True)
            found += [measure_output(node.row, node.number, *output) for output in outputs]
    return found


def _with_exact(call: OpCall, values: Mapping[str, Array]) -> list[tuple[Array, Array]]:
    """Results of a node with the exact ones for its inputs.

    Calibrated encodings put values right where a function jumps (a stored 64 that stands for 1.0000000149).
    Whether such a one lies before or behind the jump is beyond single precision, so either is exact.
    """
    results = [values[spec.name] for spec in call.outputs]
    exact = exact_results(call, values)
    operation = str(call.params.get("operation", call.op)).replace("_", "")
    first = call.inputs[0]
    if _JUMPING.fullmatch(operation) and first is not None and (first.quant is not None or first.dtype.is_float):
        for nudge in (1 - _SINGLE, 1 + _SINGLE):
            moved = exact_results(call, values, nudge)
            exact = tuple(map(_nearer, call.outputs, results, exact, moved))
    return list(zip(results, exact, strict=True))


def _nearer(spec: TensorSpec, result: Array, one: Array, other: Array) -> Array:
    real = real_values(spec, result)
    near, far = (np.abs(real.astype(np.float64) - exact.astype(np.float64)) for exact in (other, one))
    nearer: Array = np.where(near < far, other, one)
    return nearer


def same_inside(results: Results, inside: Results) -> tuple[int, int]:
    """How many elements of a graph's own outputs are the same if values are kept inside, and of how many."""
    pairs = [(results[name].reshape(-1), array.reshape(-1)) for name, array in inside.items()]
    same = sum(int(((a == b) | ((a != a) & (b != b))).sum()) for a, b in pairs)
    return same, sum(a.size for a, _ in pairs)


def _calls(graph: RandomGraph, inside: bool) -> Sequence[OpCall]:
    read = {spec.name for node in graph.nodes for spec in node.call.inputs if spec is not None}

    def kept(spec: TensorSpec) -> TensorSpec:
        hidden = inside and spec.kind is TensorKind.APP_READ and spec.name in read
        return replace(spec, kind=TensorKind.NATIVE) if hidden else spec

    return [
        replace(
            node.call,
            inputs=tuple(spec and kept(spec) for spec in node.call.inputs),
            outputs=tuple(map(kept, node.call.outputs)),
        )
        for node in graph.nodes
    ]
