"""A model that runs in parts: what an HTP can take on the device, the rest on ONNX Runtime's CPU kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

from openhtp.core.checks import items_of, shown
from openhtp.core.errors import InvalidArgument, QnnError, UnsupportedError, UnsupportedFeature, WrongState
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.onnx_reader import parse_model, read_model
from openhtp.frontend.partitioning import AssignedNode, ModelPart, partition
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.options import ContextOrigin
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile
from openhtp.session import hosts, loading
from openhtp.session.assigned import AssignedPart
from openhtp.session.cpu import cpu_session
from openhtp.session.cpu_profile import ProfiledSession
from openhtp.session.feeding import checked_call, collected
from openhtp.session.metadata import ModelMetadata, NodeArg, described
from openhtp.session.options import CPU, QNN
from openhtp.session.part_profile import PartsProfile
from openhtp.session.pending import Results

log = logging.getLogger(__name__)


def find_parts(plan: loading.Plan) -> list[ModelPart]:
    """The parts that the model of a plan falls into."""
    return partition(_fixed(plan))


def _fixed(plan: loading.Plan) -> bytes:
    """The model with what was given for it, sizes and values; the data that lies beside a file is inside."""
    return with_fixed_inputs(plan.source, plan.dims, plan.freeze, ask=plan.ask, may_stay_open=True)


def in_parts(plan: loading.Plan, error: UnsupportedError, options: Any) -> PartitionedModel | None:
    """The model as parts, some of them on the HTP; None if none can be. ``error``: why not as a whole."""
    try:
        parts = find_parts(plan)
    except QnnError as problem:
        log.debug("the model cannot be taken apart: %s", problem)
        parts = []
    if plan.entries.get("session.disable_cpu_ep_fallback") == "1":
        raise _refusal(parts, error)
    if not any(part.on_htp for part in parts):
        return None
    made = PartitionedModel(plan, parts, options)
    log.warning(
        "the HTP cannot take all of this model: %d nodes run on the CPU, in %d parts in all (get_partition() tells"
        " why; the first: %s)",
        sum(len(part.nodes) for part in parts if not part.on_htp),
        len(parts),
        error,
    )
    return made


def on_cpu(plan: loading.Plan, *, wanted: bool) -> tuple[AssignedNode, ...]:
    """The nodes of a model that is on the CPU as a whole, and why; none if it cannot be taken apart."""
    try:
        nodes = [node for part in find_parts(plan) for node in part.nodes]
    except QnnError:
        return ()
    return tuple(nodes if wanted else (replace(node, reason=f"{QNN} was not asked for") for node in nodes))


def _refusal(parts: Sequence[ModelPart], first: UnsupportedError) -> UnsupportedError:
    """Why a model that must not use the CPU is refused: all nodes with their reasons."""
    reasons = [
        f"{node.name!r} ({node.op_type}): {node.reason}" for part in parts for node in part.nodes if node.reason
    ]
    if len(reasons) < 2:
        return first
    count = sum(len(part.nodes) for part in parts)
    return type(first)(
        f"{len(reasons)} of {count} nodes cannot run on the HTP, and session.disable_cpu_ep_fallback is set:"
        f" {'; '.join(reasons)}",
        first.status,
    )


class PartitionedModel:
    """The parts, loaded; with the methods of ONNX Runtime's session that a session needs."""

    def __init__(self, plan: loading.Plan, parts: Sequence[ModelPart], options: Any) -> None:
        if plan.entries.get("ep.context_enable") == "1":
            raise UnsupportedFeature(
                f"ep.context_enable: the model runs in {len(parts)} parts, and a context file holds one graph; end"
                " the model before the nodes that an HTP cannot take, or leave ep.context_enable"
            )
        self._proto = parse_model(_fixed(plan))
        held = {tensor.name for tensor in self._proto.graph.initializer}
        self._inputs = [value for value in self._proto.graph.input if value.name not in held]
        del self._proto.graph.node[:], self._proto.graph.initializer[:]
        self.assigned = [AssignedPart(QNN if part.on_htp else CPU, part.nodes) for part in parts]
        self._outputs = [value.name for value in self._proto.graph.output]
        self._parts = list(parts)
        self._options = options
        self._is_closed = False
        self._stay = hosts.Stay(loading.host_kind(plan))
        self.leave: Callable[[], object] = self._stay.leave
        try:
            device = self._stay.begin()
            self._stay.claim.context = device.create_context(**plan.context_options(ContextOrigin.COMPOSED))
            self._runners = [self._runner(plan, device, part, options) for part in parts]
        except BaseException:
            self._stay.end()
            raise

    def _runner(self, plan: loading.Plan, device: Any, part: ModelPart, options: Any) -> Any:
        if part.imported is None:
            return cpu_session(onnxruntime.InferenceSession, part.model, _quiet(options))
        return loading.composed_in(plan, self._stay, device, read_model(part.model), part.imported)

    def get_inputs(self) -> list[NodeArg]:
        """What ``run`` takes."""
        return [described(value) for value in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """What ``run`` returns."""
        return [described(value) for value in self._proto.graph.output]

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about itself."""
        proto = self._proto
        return ModelMetadata(
            graph_name=proto.graph.name,
            producer_name=proto.producer_name,
            domain=proto.domain,
            description=proto.doc_string,
            graph_description=proto.graph.doc_string,
            version=proto.model_version,
            custom_metadata_map={item.key: item.value for item in proto.metadata_props},
        )

    @property
    def graphs(self) -> list[Graph | None]:
        """The graph of each part; None for those on the CPU."""
        return [runner.graph if isinstance(runner, loading.Loaded) else None for runner in self._runners]

    def new_profile(self, level: str, max_events: int | None = None) -> PartsProfile:
        """A profile for one run; so many events of each part are kept."""
        own = [
            each.new_profile(level, max_events) if isinstance(each, loading.Loaded) else None
            for each in self._runners
        ]
        return PartsProfile(level, self.assigned, own)

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_options: Any = None,
        profile: PartsProfile | None = None,
    ) -> Results:
        """Run part after part; returns the named outputs, or all."""
        if self._is_closed:
            raise WrongState("the session was closed")
        names = items_of(output_names, len(self._outputs) + 1) or self._outputs
        for name in names:
            if name not in self._outputs:
                raise InvalidArgument(
                    f"no output is called {shown(name)}; the model has {', '.join(self._outputs)}"
                )
        missing = [item.name for item in self.get_inputs() if item.name not in feeds]
        if missing:
            raise InvalidArgument(f"required inputs {missing} are missing from the feed {list(feeds)}")
        with ExitStack() as stack:
            runners = self._runners
            if profile is not None and profile.tells_nodes:
                runners = [self._profiled(number, stack) for number in range(len(self._parts))]
            values = self._run_parts(runners, feeds, run_options, profile)
        return [values[name] for name in names]

    def _run_parts(
        self, runners: Sequence[Any], feeds: Mapping[str, Any], run_options: Any, profile: PartsProfile | None
    ) -> dict[str, Any]:
        values: dict[str, Any] = dict(feeds)
        for number, (part, runner) in enumerate(zip(self._parts, runners, strict=True)):
            given = {name: values[name] for name in part.inputs}
            with nullcontext() if profile is None else profile.timing(number) as sheet:
                found = _run_part(part, runner, given, run_options, sheet)
            values.update(zip(part.outputs, found, strict=True))
        for number, runner in enumerate(runners):
            if profile is not None and isinstance(runner, ProfiledSession):
                profile.parts[number].node_times = runner.times()
        return values

    def _profiled(self, number: int, stack: ExitStack) -> Any:
        """What runs a part so that the times of its nodes are known: on the CPU, a session for this run alone."""
        part = self._parts[number]
        if part.imported is not None:
            return self._runners[number]
        session = ProfiledSession(onnxruntime.InferenceSession, part.model, _quiet(self._options))
        return stack.enter_context(session)

    def close(self) -> None:
        """Free the context and let go of the device."""
        self._is_closed = True
        self._stay.end()


def _run_part(
    part: ModelPart, runner: Any, feeds: dict[str, Any], run_options: Any, profile: Profile | None
) -> Results:
    if part.imported is None:
        results: Results = runner.run(list(part.outputs), feeds, run_options)
        return results
    names, stored = checked_call(runner, part.outputs, feeds)
    graph, inputs = runner.graph, stored or None
    if runner.asynchronous:
        outputs = graph.execute_async(inputs, profile=profile).result()
    else:
        outputs = graph.execute(inputs, profile=profile)
    return collected(runner, names, outputs)


def _quiet(options: Any) -> Any:
    """Options for one part: what the user's say of threads, without the files that they ask for."""
    own = onnxruntime.SessionOptions()
    own.intra_op_num_threads = options.intra_op_num_threads
    own.log_severity_level = 3
    return own
