"""A whole model on a device: imported and compiled, or started from a context that was saved."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.checks import shown
from openhtp.core.errors import BadModel, InvalidArgument, WrongState
from openhtp.frontend.model import OnnxModel, ValueType
from openhtp.frontend.onnx_import import Imported, import_typed
from openhtp.frontend.onnx_reader import read_model
from openhtp.frontend.partitioning import AssignedNode
from openhtp.ir.graph import Graph as IrGraph
from openhtp.ops import op_of
from openhtp.options import ContextOrigin
from openhtp.records.calls import DEFAULT_FOLDER
from openhtp.runtime.calls.execution import Outputs
from openhtp.runtime.instruments.saving_calls import start_saving, stop_saving
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile
from openhtp.session.context_cache import (
    SHARE,
    ContextModel,
    context_bytes,
    read_cache_request,
    read_context_model,
    write_cache,
    write_context_model,
)
from openhtp.session.executable import (
    Array,
    AssignedPart,
    Executable,
    ModelMetadata,
    Results,
    RunCall,
    array_for,
    check_feed,
    check_fits,
    checked_names,
    node_args,
)
from openhtp.session.hosts import Stay, host_kind
from openhtp.session.options import QNN, SessionRequest
from openhtp.session.pending import Carrier, PendingRun
from openhtp.session.power import SessionPower
from openhtp.session.profiling import PartRun
from openhtp.session.values import OrtValue, move_to

log = logging.getLogger(__name__)


class HtpExecutable(Executable):
    """A graph on a device, and how its edges look in ONNX: ``input_types`` and ``output_types``."""

    def __init__(
        self,
        request: SessionRequest,
        stay: Stay,
        context: Context,
        graph: Graph,
        model: OnnxModel,
        input_types: Mapping[str, ValueType],
        output_types: Mapping[str, ValueType],
        power: SessionPower,
    ) -> None:
        if {port.name for port in graph.inputs} != set(input_types) or {
            port.name for port in graph.outputs
        } != set(output_types):
            raise BadModel(f"graph {graph.name!r} has other inputs or outputs than the model says")
        self.stay: Stay = stay
        self.context, self.graph, self.model = context, graph, model
        self.device = context.device
        self.input_types, self.output_types = input_types, output_types
        self.inputs, self.outputs = node_args(input_types), node_args(output_types)
        self.graphs: Sequence[Graph | None] = (graph,)
        self.metadata = ModelMetadata(
            graph_name=model.name,
            producer_name=model.producer,
            domain=model.domain,
            description=model.description,
            graph_description="",
            version=model.version,
            custom_metadata_map=dict(model.metadata),
        )
        # Only an HTP computes floats in half precision.
        self.half_precision = request.options.backend == "htp"
        self._power = power
        self._queues_runs = stay.kind.transport == "rpc"
        self._stored = {
            port.name: (port.spec.dtype.numpy, port.spec.shape) for port in (*graph.inputs, *graph.outputs)
        }
        # Inputs that the graph stores as the model has them.
        self._fed_as_stored = {
            name: self._stored[name]
            for name, kind in input_types.items()
            if self._stored[name] == (kind.dtype, tuple(kind.shape))
        }

    @property
    def assigned(self) -> list[AssignedPart]:
        """All nodes, together."""
        return [AssignedPart(QNN, tuple(AssignedNode(node.name, node.op_type) for node in self.model.nodes))]

    @property
    def value_context(self) -> Context | None:
        """The context in whose memory values may lie, until it is closed."""
        return None if self.is_closed else self.context

    def room_for(self, output: str) -> OrtValue:
        """A value for an output in that memory."""
        kind = self.output_types[output]
        value = OrtValue(np.empty(kind.shape, kind.dtype), movable=True)
        move_to(value, self.value_context)
        return value

    def new_profile(self, level: str, max_events: int | None = None) -> Profile:
        """A profile for one run; None keeps all its events."""
        return self.device.backend.create_profile(level, max_events=max_events)

    def checked(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
    ) -> tuple[list[str], dict[str, Array]]:
        """The names of the outputs that are asked for, and the inputs as the graph stores them."""
        if self.is_closed:
            raise WrongState("the session was closed")
        names = checked_names(output_names, list(self.output_types))
        check_feed(feeds, list(self.input_types))
        return names, self.stored(feeds)

    def stored(self, feeds: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Inputs as the graph stores them. Inputs of another form, or that the model lacks, are refused."""
        stored: dict[str, Array] = {}
        for name, value in feeds.items():
            # Most values are arrays that need no change.
            dtype, shape = self._fed_as_stored.get(name, (None, None))
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape and dtype is not None:
                stored[name] = value
            else:
                stored[name] = self._stored_input(name, value)
        return stored

    def run(self, call: RunCall) -> Results:
        """Run once and wait; the graph writes straight into targets of the type in which it stores the output."""
        in_place = self.in_place(call.targets) if call.targets else None
        if call.run_options is None:
            outputs = self.execute(call.feeds, in_place, call.profile)  # no votes of its own
        else:
            with self._power.during(call.run_options):
                outputs = self.execute(call.feeds, in_place, call.profile)
        if in_place is None:
            return self.collected(call.names, outputs)
        return [
            call.targets[name] if name in in_place else self.collected((name,), outputs)[0] for name in call.names
        ]

    def queue(self, call: RunCall, carrier: Carrier) -> PendingRun:
        """Put a run into the graph's queue.

        Its votes stand from now on, and the votes it leaves from its end on.
        """
        after = self._power.before(call.run_options)
        collect = functools.partial(self.collected, call.names)
        pending = carrier.queue(self.graph, call.feeds, collect, call.profile)
        noted = call.noted
        if noted is not None:
            pending.add_done_callback(lambda _: noted())
        if after is not None:
            pending.add_done_callback(lambda _: after())
        return pending

    def execute(self, feeds: Outputs, outputs: Outputs | None = None, profile: Profile | None = None) -> Outputs:
        """Run the graph on inputs as it stores them."""
        if self._queues_runs:
            # Queued, so that it may come between queued runs: a graph takes one kind of run at a time.
            return self.graph.execute_async(feeds or None, outputs, profile=profile).result()
        return self.graph.execute(feeds or None, outputs, profile=profile)

    def run_part(
        self, outputs: Sequence[str], feeds: Mapping[str, Any], run_options: Any, part: PartRun | None
    ) -> Results:
        """Run once as a part of a model, which has voted as a whole."""
        if part is None:
            return self.collected(outputs, self.execute(self.stored(feeds)))
        with part.timed():
            return self.collected(outputs, self.execute(self.stored(feeds), None, part.profile))

    def collected(self, names: Sequence[str], outputs: Outputs) -> Results:
        """The graph's outputs as the model declares them."""
        results = []
        for name in names:
            kind, array = self.output_types[name], outputs[name]
            if array.shape != kind.shape or array.dtype != kind.dtype:
                array = array.reshape(kind.shape).astype(kind.dtype)
            results.append(array)
        return results

    def in_place(self, targets: Mapping[str, Array]) -> dict[str, Array]:
        """The targets that the graph itself may write, as it writes them; refuses those that do not fit."""
        writable = {}
        for name, target in targets.items():
            check_fits(name, target, self.output_types[name])
            dtype, shape = self._stored[name]
            if target.dtype == dtype and target.flags.c_contiguous:
                writable[name] = target if target.shape == shape else target.reshape(shape)
        return writable

    def context_model(self, binary: bytes | str) -> bytes:
        """An ONNX file from which a session can start; ``binary`` is the context's, or the name of its file."""
        return write_context_model(
            self.graph.name, self.input_types, self.output_types, binary, self.model.metadata
        )

    def __str__(self) -> str:
        return f"{self.model.name!r} on {self.device.soc}, {'closed' if self.is_closed else 'ready'}"

    def _stored_input(self, name: str, value: npt.ArrayLike) -> Array:
        kind = self.input_types.get(name) if isinstance(name, str) else None
        if kind is None:
            raise InvalidArgument(
                f"no input is called {shown(name)}; the model has {', '.join(self.input_types)}",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )
        array = array_for(name, value, kind.dtype)
        if array.dtype != kind.dtype or array.shape != kind.shape:
            raise InvalidArgument(
                f"input {name!r} is {array.dtype}{list(array.shape)}; expected {kind.dtype}{list(kind.shape)}",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )
        dtype, shape = self._stored[name]
        if array.dtype != dtype or array.shape != shape:
            return np.ascontiguousarray(array, dtype).reshape(shape)
        return array


def load_on_htp(request: SessionRequest, power: SessionPower) -> HtpExecutable:
    """Read the model and put it on a device. A saver records all calls until the model is unloaded."""
    if not request.options["qnn_saver_path"]:
        return _load(request, power)
    start_saving(DEFAULT_FOLDER)
    try:
        executable = _load(request, power)
    except BaseException:
        tidying.post((stop_saving, ()))
        tidying.flush()
        raise
    executable.stay.claim.saves.append(True)
    return executable


def _load(request: SessionRequest, power: SessionPower) -> HtpExecutable:
    model = read_model(request.source, request.dims, request.freeze, ask=request.free_dimensions)
    path = request.source if isinstance(request.source, Path) else None
    saved = read_context_model(model)
    if saved is not None:
        stay = Stay(host_kind(request))
        try:
            context = restore_context(request, stay, saved, path)
            return restore(request, stay, context, saved.graph, model, power)
        except BaseException:
            stay.end()
            raise
    cache_request = read_cache_request(request.entries, path)
    imported = import_typed(model)
    _warn_about_floats(request, imported.graph)
    stay = Stay(host_kind(request))
    try:
        context = begin_context(request, stay)
        executable = compose(request, stay, context, model, imported, power)
    except BaseException:
        stay.end()
        raise
    if cache_request is not None:
        write_cache(cache_request, context.get_binary(), executable.context_model)
    return executable


def begin_context(request: SessionRequest, stay: Stay) -> Context:
    """An empty context on the device of a stay, and freed with it."""
    context = stay.claim.context = stay.begin().create_context(**request.context_options(ContextOrigin.COMPOSED))
    return context


def compose(
    request: SessionRequest,
    stay: Stay,
    context: Context,
    model: OnnxModel,
    imported: Imported,
    power: SessionPower,
) -> HtpExecutable:
    """A graph of the stay's context, compiled."""
    graph = context.compose_graph(
        imported.graph,
        **request.graph_options(imported.graph.name),
        precision="float32" if request.options.backend == "cpu" else "float16",
    )
    graph.finalize()
    return HtpExecutable(request, stay, context, graph, model, imported.inputs, imported.outputs, power)


def restore_context(request: SessionRequest, stay: Stay, saved: ContextModel, path: Path | None) -> Context:
    """The context of a saved model on the device of a stay; sessions that share use one for the same binary."""
    binary = context_bytes(saved, None if path is None else path.parent)
    options = request.context_options(ContextOrigin.BINARY)
    device = stay.begin()
    if request.entries.get(SHARE) == "1":
        digest = hashlib.sha256(binary).hexdigest()
        return stay.share(digest, lambda: device.create_context_from_binary(binary, **options))
    context = stay.claim.context = device.create_context_from_binary(binary, **options)
    return context


def restore(
    request: SessionRequest, stay: Stay, context: Context, graph: str, model: OnnxModel, power: SessionPower
) -> HtpExecutable:
    """A graph of a context that was saved; ``model`` says what its inputs and outputs are in ONNX."""
    outputs = {}
    for name, kind in model.outputs.items():
        if kind is None:
            raise BadModel(f"output {name!r} of the context model has no type")
        outputs[name] = kind
    return HtpExecutable(request, stay, context, context.graph(graph), model, model.inputs, outputs, power)


def _warn_about_floats(request: SessionRequest, graph: IrGraph) -> None:
    """The HTP has no float32 arithmetic, so float ops are computed in half precision whatever the option says."""
    if request.options["enable_htp_fp16_precision"] == "1" or request.options.backend == "cpu":
        return
    computing = [node for node in graph.nodes if not op_of(node).moves_only]
    floats = [node.name for node in computing if graph.tensors[node.outputs[0]].dtype.is_float]
    if floats:
        log.warning(
            "%s in floats, in half precision as an HTP does (first: %r); quantize the model, or set"
            " enable_htp_fp16_precision to '1' to say that this is meant",
            "1 node computes" if len(floats) == 1 else f"{len(floats)} nodes compute",
            floats[0],
        )
