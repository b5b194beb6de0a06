"""A model that runs in parts: nodes that an HTP can take on the device, the rest on ONNX Runtime's CPU kernels."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openhtp.core.errors import QnnError, UnsupportedError, WrongState
from openhtp.frontend.onnx_reader import parse_model, read_model
from openhtp.frontend.partitioning import ModelPart, partition, with_inferred_types
from openhtp.runtime.objects.graph import Graph
from openhtp.session.context_cache import read_cache_request, read_main_context, write_cache, write_parts_model
from openhtp.session.executable import (
    AssignedPart,
    Executable,
    ModelMetadata,
    Results,
    RunCall,
    check_feed,
    checked_names,
    described,
)
from openhtp.session.hosts import Stay, host_kind
from openhtp.session.on_cpu import CpuPart
from openhtp.session.on_htp import HtpExecutable, begin_context, compose, restore, restore_context
from openhtp.session.options import CPU, QNN, SessionRequest
from openhtp.session.power import SessionPower
from openhtp.session.profiling import PartsProfile
from openhtp.session.values import plain_arrays

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context

log = logging.getLogger(__name__)


def load_in_parts(request: SessionRequest, error: UnsupportedError, power: SessionPower) -> PartsExecutable | None:
    """The model in parts, some of them on the HTP; None if no part can be. ``error`` says why not as a whole."""
    try:
        parts = partition(request.fixed_model())
    except QnnError as problem:
        log.debug("the model cannot be taken apart: %s", problem)
        parts = []
    all_on_htp = bool(parts) and all(part.on_htp for part in parts)  # several contexts, and nothing else
    if request.entries.get("session.disable_cpu_ep_fallback") == "1" and not all_on_htp:
        raise _refusal(parts, error)
    if not any(part.on_htp for part in parts):
        return None
    executable = PartsExecutable(request, parts, power)
    if all_on_htp:
        return executable
    left = sum(len(part.nodes) for part in parts if not part.on_htp)
    log.warning(
        "the HTP cannot take all of this model: %s on the CPU, in %d parts in all (get_partition() tells"
        " why; the first: %s)",
        "1 node runs" if left == 1 else f"{left} nodes run",
        len(parts),
        # For a context model, the error says only that the model has several nodes.
        _reasons(parts)[0] if any(part.graph is not None for part in parts) else error,
    )
    return executable


def _reasons(parts: Sequence[ModelPart]) -> list[str]:
    """The nodes of the CPU, each with the reason why it is there."""
    return [
        f"{node.name!r} ({node.op_type}): {node.reason}" for part in parts for node in part.nodes if node.reason
    ]


def _refusal(parts: Sequence[ModelPart], first: UnsupportedError) -> UnsupportedError:
    """Why a model that must not use the CPU is refused: all nodes with their reasons."""
    reasons = _reasons(parts)
    if len(reasons) < 2:
        return first
    count = sum(len(part.nodes) for part in parts)
    return type(first)(
        f"{len(reasons)} of {count} nodes cannot run on the HTP, and session.disable_cpu_ep_fallback is set:"
        f" {'; '.join(reasons)}",
        first.status,
    )


class PartsExecutable(Executable):
    """The parts, loaded, which run one after the other. The graphs on the HTP share a context.

    They are all compiled, or they all come from a saved context.
    """

    def __init__(self, request: SessionRequest, parts: Sequence[ModelPart], power: SessionPower) -> None:
        is_saved = any(part.graph is not None for part in parts)
        path = request.source if isinstance(request.source, Path) else None
        cache_request = None if is_saved else read_cache_request(request.entries, path)
        proto = with_inferred_types(parse_model(request.fixed_model()))
        constants = {tensor.name for tensor in proto.graph.initializer}
        self.inputs = [described(value) for value in proto.graph.input if value.name not in constants]
        self.outputs = [described(value) for value in proto.graph.output]
        # Results are copies of these: an input is the caller's array, who may change it.
        self._passed_on = {item.name for item in self.inputs} & {item.name for item in self.outputs}
        self.metadata = ModelMetadata(
            graph_name=proto.graph.name,
            producer_name=proto.producer_name,
            domain=proto.domain,
            description=proto.doc_string,
            graph_description=proto.graph.doc_string,
            version=proto.model_version,
            custom_metadata_map={item.key: item.value for item in proto.metadata_props},
        )
        self._power = power
        self._parts = list(parts)
        self.stay: Stay = Stay(host_kind(request))
        try:
            context = self._saved_context(request, path) if is_saved else begin_context(request, self.stay)
            self._loaded = [self._load_part(request, part, context, power) for part in parts]
            self.graphs: Sequence[Graph | None] = [loaded.graph for loaded in self._loaded]
            if cache_request is not None:
                names = [graph.name for graph in self.graphs if graph is not None]
                model_with = functools.partial(write_parts_model, proto, parts, names)
                write_cache(cache_request, context.get_binary(), model_with)
        except BaseException:
            self.stay.end()
            raise
        self._where = f"on {request.soc} and the CPU, in {len(parts)} parts"

    def _saved_context(self, request: SessionRequest, path: Path | None) -> Context:
        """The context that the main node of the model has."""
        model = read_model(request.source, request.dims, request.freeze, ask=request.free_dimensions)
        return restore_context(request, self.stay, read_main_context(model), path)

    def _load_part(
        self, request: SessionRequest, part: ModelPart, context: Context, power: SessionPower
    ) -> HtpExecutable | CpuPart:
        if part.graph is not None:
            return restore(request, self.stay, context, part.graph, read_model(part.model), power)
        if part.imported is not None:
            return compose(request, self.stay, context, read_model(part.model), part.imported, power)
        return CpuPart(part.model, request.sess_options)

    @property
    def assigned(self) -> list[AssignedPart]:
        """The parts in running order."""
        return [AssignedPart(QNN if part.on_htp else CPU, part.nodes) for part in self._parts]

    def new_profile(self, level: str, max_events: int | None = None) -> PartsProfile:
        """A profile for one run, with at most ``max_events`` events of each part."""
        profiles = [loaded.new_profile(level, max_events) for loaded in self._loaded]
        return PartsProfile(level, self.assigned, profiles)

    def checked(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
    ) -> tuple[list[str], dict[str, Any]]:
        """The names of the outputs that are asked for, and the inputs; each part checks the form of its own."""
        if self.is_closed:
            raise WrongState("the session was closed")
        names = checked_names(output_names, [item.name for item in self.outputs])
        check_feed(feeds, [item.name for item in self.inputs])
        return names, plain_arrays(feeds, self.inputs)

    def run(self, call: RunCall) -> Results:
        """Run part after part."""
        if self.is_closed:
            raise WrongState("the session was closed")
        profile: PartsProfile | None = call.profile
        values = call.feeds
        with self._power.during(call.run_options):
            for number, (part, loaded) in enumerate(zip(self._parts, self._loaded, strict=True)):
                feeds = {name: values[name] for name in part.inputs}
                part_run = None if profile is None else profile.parts[number]
                results = loaded.run_part(part.outputs, feeds, call.run_options, part_run)
                values.update(zip(part.outputs, results, strict=True))
        return [np.array(values[name]) if name in self._passed_on else values[name] for name in call.names]

    def __str__(self) -> str:
        return self._where
