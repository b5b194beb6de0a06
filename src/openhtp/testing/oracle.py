"""Run single operations on the vendor's library, to compare ours with.

Devices are kept and used again, one for each SoC. A program goes to them in a context binary, as it is: no
compiler of ours folds or drops any of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument
from openhtp.core.latches import Latch
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.threads import OwnThread
from openhtp.ir.graph import QnnNode
from openhtp.options import GRAPH
from openhtp.program.qnn_program import QnnProgram, verify_program
from openhtp.rpc import messages as ms
from openhtp.runtime.instruments.device_queries import load_only
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.device import Device
from openhtp.vendor.backend import parse_soc
from openhtp.vendor.library import find_library

DEFAULT_SOC = "SM8350"
TIMEOUT_S = 60.0

Array = npt.NDArray[Any]

_devices: dict[int, Device] = {}
_lock = threading.Lock()


def available() -> bool:
    """Whether there is a library to ask."""
    return find_library() is not None


def run_op(
    call: OpCall, inputs: Mapping[str, Array], *, soc: int | str | None = None, **options: Any
) -> dict[str, Array]:
    """Build a graph of one node, run it once and give its outputs.

    ``inputs`` has data for every input tensor; those of kind STATIC become part of the graph, all others are
    given at execution, whatever kind their specs say. ``soc`` is a model number, a name, or ``"v73"``; v68 by
    default, as in the library. ``options`` are those of a graph. A call that our own definition of the op refuses
    raises UnsupportedOp or InvalidArgument before the library is asked; a crash of the library raises DeviceLost.
    """
    node, static, feeds = _one_node_graph(call, inputs)
    return _run([node], static, feeds, soc, options)


def run_nodes(
    calls: Sequence[OpCall], inputs: Mapping[str, Array], *, soc: int | str | None = None
) -> dict[str, Array]:
    """Build a graph of these nodes, run it once and give its outputs.

    ``inputs`` has data for every tensor that no node makes; kinds are as the specs say. An output may be read by
    other nodes.
    """
    used = {spec.name: spec for call in calls for spec in call.inputs if spec is not None}
    static = {name: inputs[name] for name, spec in used.items() if spec.kind is TensorKind.STATIC}
    feeds = {name: inputs[name] for name, spec in used.items() if spec.kind is TensorKind.APP_WRITE}
    return _run(calls, static, feeds, soc, {})


def validate_op(call: OpCall, data: Mapping[str, Array] | None = None, *, soc: int | str | None = None) -> None:
    """Raise UnsupportedOp with the library's reason if it cannot do a node.

    Static tensors without an entry in ``data`` are shown as zeros.
    """
    zeros = {
        spec.name: np.zeros(spec.shape, spec.dtype.numpy)
        for spec in call.inputs
        if spec is not None and spec.kind is TensorKind.STATIC
    }
    node, static, _ = _one_node_graph(call, {**zeros, **(data or {})}, complete=False)
    with _watched(device_for(soc)) as device:
        opening = ms.CreateContext(queue_depth=1, priority=int(Priority.NORMAL), prepare_only=True)
        load_only(device, _program([node], static, {}).to_bytes(), opening)


def _run(
    calls: Sequence[OpCall],
    static: Mapping[str, Array],
    feeds: Mapping[str, Array],
    soc: int | str | None,
    options: Mapping[str, Any],
) -> dict[str, Array]:
    binary = _program(calls, static, options).to_bytes()
    with _watched(device_for(soc)) as device, device.create_context_from_binary(binary) as context:
        return context.graph("oracle").execute(feeds or None)


def _program(calls: Sequence[OpCall], static: Mapping[str, Array], options: Mapping[str, Any]) -> QnnProgram:
    """The nodes as a program. Floats are not said to be computed in 16 bits, as in a graph without options."""
    specs = [spec for call in calls for spec in (*call.inputs, *call.outputs) if spec is not None]
    nodes = [
        QnnNode(
            op=call.op,
            name=call.name,
            inputs=tuple(None if spec is None else spec.name for spec in call.inputs),
            outputs=tuple(spec.name for spec in call.outputs),
            params=call.params,
            package=call.package,
        )
        for call in calls
    ]
    tensors = {spec.name: spec for spec in specs}
    chosen = GRAPH.read({"precision": "float32", **options})
    program = QnnProgram("oracle", tensors, dict(static), tuple(nodes), chosen)
    verify_program(program)
    return program


@contextlib.contextmanager
def _watched(device: Device) -> Iterator[Device]:
    """A device whose process is ended if it takes too long: the library has no way to stop a call."""
    answered, pid = Latch(), device.pid

    def watch() -> None:
        if not answered.wait(TIMEOUT_S):
            os.kill(pid, signal.SIGKILL)

    OwnThread(watch, name="openhtp-oracle").start()
    try:
        yield device
    finally:
        answered.unlock()


def device_for(soc: int | str | None = None) -> Device:
    """The device that simulates a SoC, made when first asked for."""
    model = parse_soc(DEFAULT_SOC if soc is None else soc)
    with _lock:
        if model not in _devices:
            _devices[model] = Backend(library="vendor").create_device(soc=model)
        return _devices[model]


def close() -> None:
    """End all devices."""
    with _lock:
        devices = list(_devices.values())
        _devices.clear()
    for device in devices:
        device.backend.free()


def _one_node_graph(
    call: OpCall, inputs: Mapping[str, Array], *, complete: bool = True
) -> tuple[OpCall, dict[str, Array], dict[str, Array]]:
    """The node with inputs and outputs of its own, its static data, and what an execution is given."""

    def as_kind(spec: TensorSpec, kind: TensorKind) -> TensorSpec:
        return dataclasses.replace(spec, kind=kind)

    sources = tuple(
        spec if spec is None or spec.kind is TensorKind.STATIC else as_kind(spec, TensorKind.APP_WRITE)
        for spec in call.inputs
    )
    wanted = {spec.name: spec for spec in sources if spec is not None}
    if complete and set(inputs) != set(wanted):
        raise InvalidArgument(f"{call.op} {call.name!r} got data for {sorted(inputs)}; expected {sorted(wanted)}")
    static = {name: inputs[name] for name, spec in wanted.items() if spec.kind is TensorKind.STATIC}
    feeds = {name: array for name, array in inputs.items() if name not in static}
    results = tuple(as_kind(spec, TensorKind.APP_READ) for spec in call.outputs)
    return dataclasses.replace(call, inputs=sources, outputs=results), static, feeds
