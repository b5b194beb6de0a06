"""A lowered program as sessions: optimised as a whole, then cut into segments, long ops into strips."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.engine.half import place_rounding
from openhtp.engine.lowering import Lowered, lower_program, origin
from openhtp.engine.native import NativeSession
from openhtp.engine.onnx_graph import external_tensor, model_bytes, numpy_type, onnx_type
from openhtp.engine.onnx_messages import (
    ModelProto,
    TensorProto,
    ValueInfoProto,
    make_graph,
    make_model,
    make_node,
    make_value_info,
)
from openhtp.engine.opened import End
from openhtp.engine.row_products import can_fuse, fuse_row_products
from openhtp.engine.segments import Cuts, Segment, cut, cuts_of, share_memory, used_nodes
from openhtp.engine.sessions import (
    PreparedSegments,
    SegmentBuffer,
    SegmentModel,
    SegmentSession,
    Staged,
    kept_apart,
    open_session,
    optimised,
    read_in_place,
    session_options,
    shared,
)
from openhtp.engine.strips import (
    FilterPart,
    RowWindow,
    Strip,
    can_be_cut,
    cut_by_channels,
    cut_into_channels,
    cut_into_columns,
    cut_into_strips,
    cut_sequence,
    give_states,
    is_channel_last,
    is_sequence,
    rounded_type,
    stays_in_strips,
    weights_of,
)
from openhtp.engine.values import Rounding
from openhtp.program.htp_program import HtpProgram

Array = npt.NDArray[Any]


def make_stages(program: HtpProgram, lowered: Lowered, threads: int, *, yield_points: bool = True) -> Staged:
    """Sessions for a lowered program: one, or several when it is long enough to be worth cutting."""
    prepared = prepare(program, lowered, threads, yield_points=yield_points)
    if prepared is not None:
        return prepared.staged
    if lowered.marks:
        lowered = lower_program(program, Rounding.CASTS)
    session = open_session(model_bytes(lowered.model), lowered.external, session_options(threads, optimise=True))
    stage = SegmentSession(session, tuple(lowered.inputs.values()), tuple(lowered.outputs.values()))
    return Staged((stage,), {})


def prepare(
    program: HtpProgram, lowered: Lowered, threads: int, *, yield_points: bool = True, whole: bool = False
) -> PreparedSegments | None:
    """Optimise a program as a whole and cut it. None if it cannot be cut, or is too short to be worth it.

    ``whole``: one part is worth it, too.
    """
    cuts = cuts_of(program) if yield_points else Cuts()
    fuses = bool(lowered.products) and can_fuse()
    if cuts.segments == 1 and not lowered.marks and not whole and not fuses:
        return None
    model, external = optimised(lowered, threads)
    if not place_rounding(model, lowered.marks):
        return None
    told = fuse_row_products(model, lowered.products, cuts.ends)
    flowing = program.source.is_dynamic and cuts.segments > 1
    return _Cutting(model, external, cuts, threads, told, flowing=flowing).run()


class _Cutting:
    """Makes the parts of a model one after the other: each needs to know the results of those before it."""

    def __init__(
        self,
        model: ModelProto,
        external: Mapping[str, Array],
        cuts: Cuts,
        threads: int,
        told: Mapping[str, ValueInfoProto],
        *,
        flowing: bool,
    ) -> None:
        """``flowing``: sizes are only known when it runs. ``told``: those that the runtime cannot find out."""
        self._flowing = flowing
        self._told = told
        self._flows: set[str] = set()
        self._model = model
        self._external = dict(_write_folded_outputs(model, external))
        self._cuts = cuts
        self._threads = threads
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._known = {value.name: value for value in (*model.graph.input, *model.graph.output)}
        self._parts: list[SegmentModel] = []
        self._stages: list[SegmentSession] = []
        # By the model's own names, the session that computes several strips.
        self._common: dict[tuple[str, ...], tuple[SegmentModel, SegmentSession]] = {}
        self._buffers: dict[str, SegmentBuffer] = {}
        self._windows: dict[str, RowWindow] = {}
        self._cut_from: dict[str, FilterPart] = {}
        # The values that each part reads and makes, without windows.
        self._lives: list[Segment] = []

    def run(self) -> PreparedSegments | None:
        """All parts and their sessions. None if the shape of a value between two parts is unknown."""
        outputs = [value.name for value in self._model.graph.output]
        nodes = self._with_states(used_nodes(self._model.graph.node, outputs))
        runs = self._runs_in_strips(nodes, outputs)
        for segment in cut(nodes, outputs, _step_of, self._cuts.after, lambda node: runs.get(id(node))):
            strips = self._strips(segment)
            if strips is None:
                self._open(segment)
                self._lives.append(segment)
                if not self._learn(self._stages[-1]):
                    return None
            else:
                self._open_strips(strips)
        sizes = {name: buffer.nbytes for name, buffer in self._buffers.items()}
        slots, slot_bytes = share_memory(self._lives, sizes)
        placed = {name: dataclasses.replace(buffer, slot=slots[name]) for name, buffer in self._buffers.items()}
        return PreparedSegments(
            tuple(self._parts),
            Staged(tuple(self._stages), placed, tuple(slot_bytes), self._windows, frozenset(self._flows)),
            {part.of: self._external[part.of] for part in self._cut_from.values()},
        )

    def _with_states(self, nodes: Sequence[Any]) -> list[Any]:
        """The nodes, and those that give its first states to each sequence that is cut."""
        all_nodes = []
        for node in nodes:
            if is_sequence(node) and _step_of(node) in self._cuts.ends:
                all_nodes += give_states(node, self._initializers.__contains__)
            all_nodes.append(node)
        return all_nodes

    def _runs_in_strips(self, nodes: Sequence[Any], outputs: Sequence[str]) -> dict[int, str]:
        """The long op in whose strips a node is computed, by the node's identity."""
        readers = Counter(name for node in nodes for name in node.input)
        readers.update(outputs)
        runs: dict[int, str] = {}
        heads: dict[str, Any] = {}
        carried: dict[str, str] = {}  # the run that makes a value for the next node alone
        for node in nodes:
            run = carried.pop(node.input[0], None) if node.input else None
            if run is not None and not stays_in_strips(heads[run], node):
                run = None
            if run is None and _step_of(node) in self._cuts.ends and self._can_be_cut(node):
                run = node.output[0]
                heads[run] = node
            if run is None:
                continue
            runs[id(node)] = run
            if readers[node.output[0]] == 1 and node.output[0] not in outputs and not is_channel_last(node):
                carried[node.output[0]] = run
        return runs

    def _can_be_cut(self, node: Any) -> bool:
        return can_be_cut(node) or is_sequence(node) or self._has_parts(node)

    def _has_parts(self, node: Any) -> bool:
        """Whether a node is a product, or a convolution by channels, whose weights can be taken apart."""
        weights = weights_of(node)
        if weights is None and not cut_by_channels(node):
            return False
        return all(
            name in self._external or self._initializers[name].raw_data if name in self._initializers else False
            for name in node.input[weights or 1 :]
            if name
        )

    def _strips(self, segment: Segment) -> list[Strip] | None:
        """The strips of an op that is long enough for it."""
        node = segment.nodes[0]
        ends = self._cuts.ends.get(_step_of(node) or 0, ())
        if not ends or node.input[0] not in self._known:
            return None
        value = self._known[node.input[0]].type.tensor_type
        shape = tuple(size.dim_value for size in value.shape.dim)
        source = RowWindow(node.input[0], 0, numpy_type(value.elem_type), shape)
        if len(segment.nodes) == 1 and can_be_cut(node):
            filters, zero = self._initializers[node.input[3]], self._initializers[node.input[7]]
            return cut_into_strips(node, source, filters.dims[0], numpy_type(zero.data_type), ends)
        if len(segment.nodes) == 1 and is_sequence(node):
            return cut_sequence(node, source, ends, segment.outputs)
        if not self._has_parts(node) or not all(stays_in_strips(node, each) for each in segment.nodes[1:]):
            return None
        dtype = self._made_type(segment.nodes)
        if weights_of(node) is not None:
            shapes = {name: self._initializers[name].dims for name in node.input if name in self._initializers}
            return cut_into_columns(segment.nodes, source, shapes, dtype, ends)
        filters = self._initializers[node.input[1]].dims[1 if node.op_type == "ConvTranspose" else 0]
        return cut_into_channels(segment.nodes, source, filters, dtype, ends)

    def _made_type(self, nodes: Sequence[Any]) -> np.dtype[Any]:
        """The type of the result of a run's last node."""
        zero = {"QuantizeLinear": 2, "QGemm": 8}.get(nodes[-1].op_type)
        if zero is None or len(nodes[-1].input) <= zero:
            return rounded_type(nodes)
        return numpy_type(self._initializers[nodes[-1].input[zero]].data_type)

    def _open_strips(self, strips: Sequence[Strip]) -> None:
        begun: set[str] = set()
        for strip in strips:
            self._windows |= strip.windows
            for name in strip.reads:
                if name in strip.windows:
                    window = strip.windows[name]
                    self._known[name] = make_value_info(name, onnx_type(window.dtype), window.shape)
            for name, part in strip.filters.items():
                self._take_part(name, part)
            # Each once: the runtime takes a constant that it is told about twice for an input.
            constants = dict.fromkeys(
                name for node in strip.nodes for name in node.input if name in self._initializers
            )
            segment = Segment(strip.nodes, (*strip.reads, *constants), strip.writes)
            if strip.called:
                self._open_alike(segment, strip.called, strip.axis)
            else:
                self._open(segment)
            reads, writes = (
                {strip.windows[name].of if name in strip.windows else name for name in names}
                for names in (strip.reads, strip.writes)
            )
            # From the second strip on, the result exists already and must stay.
            self._lives.append(
                Segment((), (*sorted(reads), *sorted(writes & begun)), tuple(sorted(writes - begun)))
            )
            begun |= writes
            for value in strip.made:
                self._keep(value.of, value.dtype, value.shape)

    def _take_part(self, name: str, part: FilterPart) -> None:
        """Make a constant of some entries of another."""
        whole = self._initializers[part.of]
        sizes = list(whole.dims)
        sizes[part.axis] = part.last - part.first
        tensor = TensorProto(name=name, data_type=whole.data_type, dims=sizes)
        chosen = (slice(None),) * part.axis + (slice(part.first, part.last),)
        if part.of in self._external:
            self._external[name] = np.ascontiguousarray(self._external[part.of][chosen])
            self._cut_from[name] = part
        else:
            entries = np.frombuffer(whole.raw_data, numpy_type(whole.data_type)).reshape(tuple(whole.dims))
            tensor.raw_data = entries[chosen].tobytes()
        self._initializers[name] = tensor

    def _open_alike(self, segment: Segment, called: Mapping[str, str], axis: int) -> None:
        """Open a part whose session has these names for its values; parts with the same names share a session.

        The sizes of windows vary along ``axis``.
        """
        own = tuple(called.values())
        if own not in self._common:
            for name, other in called.items():
                if name in segment.inputs:
                    value = self._known[name].type.tensor_type
                    sizes: list[int | str] = [size.dim_value for size in value.shape.dim]
                    if name in self._windows:
                        sizes[axis] = other
                    self._known[other] = make_value_info(other, value.elem_type, sizes)
            inputs, outputs = (
                tuple(called.get(name, name) for name in names) for names in (segment.inputs, segment.outputs)
            )
            self._open(Segment(segment.nodes, inputs, outputs))
            self._common[own] = self._parts.pop(), self._stages.pop()
        part, stage = self._common[own]
        reads = tuple(name for name in segment.inputs if name in called)
        self._parts.append(dataclasses.replace(part, inputs=reads, outputs=segment.outputs, called=called))
        self._stages.append(SegmentSession(stage.session, reads, segment.outputs, called))

    def _open(self, segment: Segment) -> None:
        part = _make_part(self._model, segment, self._initializers, self._external, self._known, self._told)
        stage = part.open(self._threads, flowing=self._flowing)
        if isinstance(stage.session, NativeSession):  # then the type is known, not guessed
            part = dataclasses.replace(part, in_place=frozenset(stage.session.reads))
        cut_from = {name: self._cut_from[name] for name in part.constants if name in self._cut_from}
        if cut_from:
            part = dataclasses.replace(part, cut_from=cut_from)
        self._parts.append(part)
        self._stages.append(stage)

    def _learn(self, stage: SegmentSession) -> bool:
        """Note the results of a stage for later ones; the runtime has inferred their shapes."""
        for end in stage.session.outputs():
            if end.name in self._known:
                continue
            if self._flowing:
                self._flow(end)
                continue
            shape = tuple(size for size in end.shape if isinstance(size, int))
            if len(shape) != len(end.shape):
                return False
            self._keep(end.name, end.dtype, shape)
        return True

    def _flow(self, end: End) -> None:
        """Let later stages read the runtime's own values, of any size."""
        sizes = tuple(
            size if isinstance(size, int) else f"{end.name}.{axis}" for axis, size in enumerate(end.shape)
        )
        self._flows.add(end.name)
        self._known[end.name] = make_value_info(end.name, onnx_type(end.dtype), sizes)

    def _keep(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if name not in self._known:
            self._buffers[name] = SegmentBuffer(dtype, shape)
            self._known[name] = make_value_info(name, onnx_type(dtype), shape)


def _write_folded_outputs(model: ModelProto, external: Mapping[str, Array]) -> Mapping[str, Array]:
    """Let a node write every output that was folded to a constant, as segments are made of nodes alone."""
    outputs = {value.name for value in model.graph.output}
    renamed = {}
    for tensor in model.graph.initializer:
        if tensor.name in outputs:
            renamed[tensor.name] = f"{tensor.name} folded"
            tensor.name = renamed[tensor.name]
    for node in model.graph.node if renamed else ():
        node.input[:] = [renamed.get(name, name) for name in node.input]
    model.graph.node.extend(make_node("Identity", [new], [old]) for old, new in renamed.items())
    return {renamed.get(name, name): array for name, array in external.items()}


def _step_of(node: Any) -> int | None:
    """The step of the program that a node of the optimised model was made from; its last one, if of several."""
    return next((step for name in (*node.output, node.name) if (step := origin(name)) is not None), None)


def _make_part(
    model: ModelProto,
    segment: Segment,
    initializers: Mapping[str, TensorProto],
    external: Mapping[str, Array],
    known: Mapping[str, ValueInfoProto],
    told: Mapping[str, ValueInfoProto],
) -> SegmentModel:
    inputs = tuple(name for name in segment.inputs if name not in initializers)
    constants = [name for name in segment.inputs if name in initializers]
    inside = [name for node in segment.nodes for name in node.output if name not in segment.outputs]
    graph = make_graph(
        segment.nodes,
        "segment",
        [known[name] for name in inputs],
        # The runtime infers types that are not given; later segments get the inferred types.
        [known.get(name) or told.get(name) or ValueInfoProto(name=name) for name in segment.outputs],
        [external_tensor(name, external[name]) if name in external else initializers[name] for name in constants],
        [told[name] for name in inside if name in told],
    )
    part = make_model(graph, model.opset_import, model.ir_version)
    mine = {name: external[name] for name in constants if name in external}
    in_place, unpacked = read_in_place(segment.nodes, mine)
    mine |= {name: shared(external[name]) for name in in_place}
    apart = kept_apart(segment.nodes, mine)
    return SegmentModel(model_bytes(part), mine, inputs, segment.outputs, in_place, apart, unpacked=unpacked)
