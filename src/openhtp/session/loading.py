"""Makes a session ready: import and compile a model, or start from a context that was saved."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from openhtp.config import BackendConfig
from openhtp.core import tidying
from openhtp.core.errors import BadModel
from openhtp.frontend.context_model import ContextModel, read_context_model
from openhtp.frontend.fixing import Ask, Dims, Freeze
from openhtp.frontend.model import OnnxModel, ValueType
from openhtp.frontend.onnx_import import Imported, import_typed
from openhtp.frontend.onnx_reader import read_model
from openhtp.ir.graph import Graph as IrGraph
from openhtp.ops import find_op
from openhtp.options import ContextOrigin
from openhtp.records.calls import DEFAULT_FOLDER
from openhtp.runtime.instruments.saving_calls import start_saving, stop_saving
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile
from openhtp.session import context_cache, hosts
from openhtp.session.options import ProviderOptions

log = logging.getLogger(__name__)

DEFAULT_SOC = "SM8650"
# What this emulation stands for, written into context files.
SDK_VERSION = "openhtp"
# Of ours: look into the first run for values that half precision cannot hold.
CHECK_RANGE = "openhtp.check_range"
_CONFIG_KEYS = (
    "session.disable_cpu_ep_fallback",
    "ep.context_enable",
    "ep.context_file_path",
    "ep.context_embed_mode",
    CHECK_RANGE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that was asked for."""

    source: bytes | Path
    options: ProviderOptions
    entries: Mapping[str, str]
    soc: str
    threads: int
    dims: Dims | None
    freeze: Freeze | None
    ask: Ask
    queue_depth: int | None
    transport: str
    device_name: str | None = None
    config: BackendConfig | None = None

    def context_options(self, origin: ContextOrigin) -> dict[str, Any]:
        """Options of the context: the config's, and over them what was asked for otherwise."""
        found = {} if self.config is None else self.config.context_options(origin)
        priority = self.options["qnn_context_priority"]
        if priority != "normal" or "priority" not in found:
            found["priority"] = priority
        if self.queue_depth is not None:
            found["queue_depth"] = self.queue_depth
        return found

    def graph_options(self, name: str) -> dict[str, Any]:
        """Options of the graph, in the same way."""
        found = {} if self.config is None else self.config.graph_options(name)
        if self.options.vtcm_mb is not None:
            found.pop("vtcm_bytes", None)
            found["vtcm_mb"] = self.options.vtcm_mb
        level = int(self.options["htp_graph_finalization_optimization_mode"])
        if level:
            found["optimization_level"] = level
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A graph on a device, and how its edges look in ONNX."""

    stay: hosts.Stay
    device: Device
    context: Context
    graph: Graph
    model: OnnxModel
    inputs: Mapping[str, ValueType]
    outputs: Mapping[str, ValueType]
    stored: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    is_closed: bool = False

    @property
    def asynchronous(self) -> bool:
        """Whether runs can be queued."""
        return self.stay.kind.transport == "rpc"

    def new_profile(self, level: str, max_events: int | None = None) -> Profile:
        """A profile for one run; None keeps all its events."""
        return self.device.backend.create_profile(level, max_events=max_events)


def soc_of(config: BackendConfig | None) -> str:
    """The chip that a config asks for, or the usual one."""
    found = None if config is None else config.device_options().get("soc")
    return str(found or DEFAULT_SOC)


def config_entries(sess_options: Any) -> dict[str, str]:
    """The session configuration entries that have an effect here."""
    found = {}
    for key in _CONFIG_KEYS:
        try:
            found[key] = str(sess_options.get_session_config_entry(key))
        except RuntimeError:
            continue
    return found


def host_kind(plan: Plan) -> hosts.HostKind:
    """The device that a plan asks for."""
    # A CPU backend has no half precision and no device of its own.
    transport = "inprocess" if plan.options.backend == "cpu" else plan.transport
    return hosts.HostKind(plan.soc, plan.threads, transport, plan.options.library, plan.device_name)


def load(plan: Plan) -> Loaded:
    """Read the model and put it on a device; with a saver, all calls are recorded until it is unloaded."""
    if not plan.options["qnn_saver_path"]:
        return _load(plan)
    start_saving(DEFAULT_FOLDER)
    try:
        loaded = _load(plan)
    except BaseException:
        tidying.post((stop_saving, ()))
        tidying.flush()
        raise
    loaded.stay.claim.saves.append(True)
    return loaded


def _load(plan: Plan) -> Loaded:
    model = read_model(plan.source, plan.dims, plan.freeze, ask=plan.ask)
    path = plan.source if isinstance(plan.source, Path) else None
    saved = read_context_model(model)
    kind = host_kind(plan)
    if saved is not None:
        return _from_context(plan, kind, model, saved, path)
    request = context_cache.read_request(plan.entries, path)
    imported = import_typed(model)
    _tell_about_floats(plan, imported.graph)
    loaded = _composed(plan, kind, model, imported)
    if request is not None:
        context_cache.write_cache(
            request,
            loaded.graph.name,
            loaded.context.get_binary(),
            imported.inputs,
            imported.outputs,
            version=SDK_VERSION,
            metadata=model.metadata,
        )
    return loaded


def closed(loaded: Loaded) -> Loaded:
    """The same, marked as given back."""
    return replace(loaded, is_closed=True)


def _composed(plan: Plan, kind: hosts.HostKind, model: OnnxModel, imported: Imported) -> Loaded:
    stay = hosts.Stay(kind)
    try:
        device = stay.begin()
        stay.claim.context = device.create_context(**plan.context_options(ContextOrigin.COMPOSED))
        return composed_in(plan, stay, device, model, imported)
    except BaseException:
        stay.end()
        raise


def composed_in(plan: Plan, stay: hosts.Stay, device: Device, model: OnnxModel, imported: Imported) -> Loaded:
    """A graph of the stay's context, compiled."""
    context = stay.claim.context
    assert context is not None
    graph = context.compose_graph(
        imported.graph,
        **plan.graph_options(imported.graph.name),
        precision="float32" if plan.options.backend == "cpu" else "float16",
    )
    graph.finalize()
    return _loaded(stay, device, context, graph, model, imported.inputs, imported.outputs)


def _from_context(
    plan: Plan, kind: hosts.HostKind, model: OnnxModel, saved: ContextModel, path: Path | None
) -> Loaded:
    binary = context_cache.context_bytes(saved, None if path is None else path.parent)
    outputs = {}
    for name, known in model.outputs.items():
        if known is None:
            raise BadModel(f"output {name!r} of the context model has no type")
        outputs[name] = known
    stay = hosts.Stay(kind)
    try:
        device = stay.begin()
        context = stay.claim.context = device.create_context_from_binary(
            binary, **plan.context_options(ContextOrigin.BINARY)
        )
        return _loaded(stay, device, context, context.graph(saved.graph), model, model.inputs, outputs)
    except BaseException:
        stay.end()
        raise


def _loaded(
    stay: hosts.Stay,
    device: Device,
    context: Context,
    graph: Graph,
    model: OnnxModel,
    inputs: Mapping[str, ValueType],
    outputs: Mapping[str, ValueType],
) -> Loaded:
    if {tensor.name for tensor in graph.inputs} != set(inputs) or {tensor.name for tensor in graph.outputs} != set(
        outputs
    ):
        raise BadModel(f"graph {graph.name!r} has other inputs or outputs than the model says")
    return Loaded(
        stay=stay,
        device=device,
        context=context,
        graph=graph,
        model=model,
        inputs=inputs,
        outputs=outputs,
        stored={
            tensor.name: (tensor.spec.dtype.numpy, tensor.spec.shape) for tensor in (*graph.inputs, *graph.outputs)
        },
    )


def _tell_about_floats(plan: Plan, graph: IrGraph) -> None:
    """The HTP has no float32 arithmetic, so float ops are computed in half precision whatever the option says."""
    if plan.options["enable_htp_fp16_precision"] == "1" or plan.options.backend == "cpu":
        return
    computing = [node for node in graph.nodes if not find_op(node.op).moves_only]
    floats = [node.name for node in computing if graph.tensors[node.outputs[0]].dtype.is_float]
    if floats:
        log.warning(
            "%d nodes compute in floats, in half precision as an HTP does (first: %r); quantize the model, or set"
            " enable_htp_fp16_precision to '1' to say that this is meant",
            len(floats),
            floats[0],
        )
