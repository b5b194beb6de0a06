"""Run single operations on the vendor's library, to compare ours with.

Processes are kept and used again, one per SoC: one process cannot compile for two architectures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence

from openhtp.abi.writing import Array, Params
from openhtp.core.errors import DeviceLost, InvalidArgument, TimedOut
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor.graph import GraphOptions
from openhtp.vendor.library import find_library
from openhtp.vendor.recipe import GraphRecipe
from openhtp.vendor.soc import parse_soc
from openhtp.vendor.worker import VendorProcess

DEFAULT_SOC = "SM8350"
TIMEOUT_S = 60.0

_processes: dict[int, VendorProcess] = {}
_lock = threading.Lock()


def available() -> bool:
    """Whether there is a library to ask."""
    return find_library() is not None


def run_op(
    call: OpCall,
    params: Params,
    inputs: Mapping[str, Array],
    *,
    soc: int | str | None = None,
    options: GraphOptions | None = None,
    validate: bool = True,
) -> dict[str, Array]:
    """Build a graph of one node, run it once and give its outputs.

    ``inputs`` has data for every input tensor; those of kind STATIC become part of the graph, all others are
    given at execution, whatever kind their specs say. ``soc`` is a model number, a name, or ``"v73"``; v68 by
    default, as in the library. The validator is asked first unless ``validate`` is false; then expect
    crashes of the process (``DeviceLost``) for nodes that are not well formed.
    """
    call, static, given = _one_node_graph(call, inputs)
    return _run(GraphRecipe("oracle", ((call, params),), static, options or GraphOptions(), validate), given, soc)


def run_nodes(
    nodes: Sequence[tuple[OpCall, Params]], inputs: Mapping[str, Array], *, soc: int | str | None = None
) -> dict[str, Array]:
    """Build a graph of these nodes, run it once and give its outputs.

    ``inputs`` has data for every tensor that no node makes; kinds are as the specs say. An output may be read by
    other nodes.
    """
    used = {spec.name: spec for call, _ in nodes for spec in call.inputs if spec is not None}
    static = {name: inputs[name] for name, spec in used.items() if spec.kind is TensorKind.STATIC}
    given = {name: inputs[name] for name, spec in used.items() if spec.kind is TensorKind.APP_WRITE}
    return _run(GraphRecipe("oracle", tuple(nodes), static), given, soc)


def _run(recipe: GraphRecipe, given: Mapping[str, Array], soc: int | str | None) -> dict[str, Array]:
    with _process(soc) as process:
        context = process.create_context()
        try:
            graph = process.build(recipe, context)
            process.finalize(graph)
            return process.execute(graph, given)
        finally:
            process.free(context)


def validate_op(
    call: OpCall, params: Params, data: Mapping[str, Array] | None = None, *, soc: int | str | None = None
) -> None:
    """Raise UnsupportedOp with the library's reason if it cannot do a node."""
    with _process(soc) as process:
        process.validate_op(call, params, data)


@contextlib.contextmanager
def _process(soc: int | str | None) -> Iterator[VendorProcess]:
    """A process to ask; one that gets lost is forgotten, so that the next comparison starts afresh."""
    process = process_for(soc)
    try:
        yield process
    except (DeviceLost, TimedOut):
        _forget(process)
        raise


def process_for(soc: int | str | None = None) -> VendorProcess:
    """The process that simulates a SoC, started when first asked for."""
    model = parse_soc(DEFAULT_SOC if soc is None else soc)
    with _lock:
        if model not in _processes:
            _processes[model] = VendorProcess(soc=model, timeout_s=TIMEOUT_S)
        return _processes[model]


def close() -> None:
    """End all processes."""
    with _lock:
        processes = list(_processes.values())
        _processes.clear()
    for process in processes:
        process.close()


def _forget(process: VendorProcess) -> None:
    with _lock:
        for model in [model for model, held in _processes.items() if held is process]:
            del _processes[model]
    process.close()


def _one_node_graph(
    call: OpCall, inputs: Mapping[str, Array]
) -> tuple[OpCall, dict[str, Array], dict[str, Array]]:
    """The node with inputs and outputs of its own, its static data, and what an execution is given."""

    def as_kind(spec: TensorSpec, kind: TensorKind) -> TensorSpec:
        return dataclasses.replace(spec, kind=kind)

    sources = tuple(
        spec if spec is None or spec.kind is TensorKind.STATIC else as_kind(spec, TensorKind.APP_WRITE)
        for spec in call.inputs
    )
    wanted = {spec.name: spec for spec in sources if spec is not None}
    if set(inputs) != set(wanted):
        raise InvalidArgument(f"{call.op} {call.name!r} got data for {sorted(inputs)}; expected {sorted(wanted)}")
    static = {name: inputs[name] for name, spec in wanted.items() if spec.kind is TensorKind.STATIC}
    given = {name: array for name, array in inputs.items() if name not in static}
    results = tuple(as_kind(spec, TensorKind.APP_READ) for spec in call.outputs)
    return dataclasses.replace(call, inputs=sources, outputs=results), static, given
