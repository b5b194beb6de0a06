"""Decides which nodes of a model the HTP runs, and cuts the model into parts.

Every node starts on the HTP. Parts are imported as they would be for running; a node that the importer refuses
goes to the CPU with the importer's reason, its quantizers with it, and the parts are made anew. A node's level
grows wherever its data passes from one processor to the other, and nodes of one processor and level make a part:
data never returns to a part that it has left, so parts can run one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from openhtp.core.errors import FormatError, QnnError, UnsupportedError, UnsupportedFeature
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.onnx_import import Imported, import_typed
from openhtp.frontend.onnx_reader import inlined, model_bytes, node_reads, parse_model, read_model
from openhtp.frontend.own_operators import with_own_types
from openhtp.frontend.probing import with_lifted_constants, with_outputs
from openhtp.frontend.typing_pass import known_values

log = logging.getLogger(__name__)

# A graph that was compiled before. In a model that has one, all other nodes run on the CPU.
EP_CONTEXT = "EPContext"
_BESIDE_CONTEXTS = "the context model leaves it to the CPU"
# A part of only these nodes is not worth the way to the HTP and back.
_NOTHING_TO_COMPUTE = {"QuantizeLinear", "DequantizeLinear", "Identity", "Constant", "Shape", "Cast"}
_TRIVIAL = "computes nothing that is worth the way to the HTP"


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A node, and the reason why it runs on the CPU (empty for the HTP)."""

    name: str
    op_type: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """Nodes that run together: a model of its own.

    A part for the HTP has either ``imported`` or the name of a ``graph`` in the model's context.
    """

    nodes: tuple[AssignedNode, ...]
    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    imported: Imported | None = None
    graph: str | None = None

    @property
    def on_htp(self) -> bool:
        """Whether an HTP runs it."""
        return self.imported is not None or self.graph is not None


def partition(data: bytes) -> list[ModelPart]:
    """The parts of a model, in the order in which they run."""
    work = _Work(with_inferred_types(_with_known_values(inlined(parse_model(with_lifted_constants(data))))))
    if work.holds_contexts:
        return work.context_parts()
    parts = None
    while parts is None:
        parts = work.parts()
    return parts


def _with_known_values(proto: Any) -> Any:
    """The model with what follows from constants and shapes as constants.

    Types are inferred from it then: a rule for shapes needs numbers, as of the sizes that a Resize is given.
    """
    try:
        values = known_values(read_model(model_bytes(proto)))
    except QnnError:  # a model that cannot be read as a whole stays as it is
        return proto
    graph = proto.graph
    available = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    needed = {value.name for value in graph.output}
    known = {name for name, value in values.items() if value.size} - needed - available
    kept = []
    # From the end, so that what only made the size of something is left out.
    for node in reversed(graph.node):
        if needed.intersection(node.output) - known:
            needed.update(node_reads(node))
            kept.append(node)
    constants = [
        numpy_helper.from_array(np.ascontiguousarray(values[name]), name) for name in sorted(known & needed)
    ]
    graph.initializer.extend(constants)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    return proto


def with_inferred_types(proto: Any) -> Any:
    """The model with the types and shapes that follow from its inputs, also of outputs that state none."""
    try:
        return with_own_types(proto)
    except Exception:  # types that cannot be inferred stay open, and nodes without types stay on the CPU
        return proto


class _Work:
    def __init__(self, proto: Any) -> None:
        self._proto = proto
        graph = proto.graph
        used: set[str] = set()
        for index, node in enumerate(graph.node):
            if not node.name or node.name in used:
                node.name = f"{node.name or node.op_type}_{index}"
            used.add(node.name)
        self._held = {tensor.name: tensor for tensor in graph.initializer}
        known = (*graph.input, *graph.output, *graph.value_info)
        self._types: dict[str, Any] = {value.name: value for value in known}
        self._add_element_types()
        self._outputs = [value.name for value in graph.output]
        self._reads = [[name for name in node_reads(node) if name not in self._held] for node in graph.node]
        self._maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
        self._readers: dict[str, list[int]] = {}
        for index, names in enumerate(self._reads):
            for name in names:
                self._readers.setdefault(name, []).append(index)
        self._reasons: dict[int, str] = {}
        self._tried: dict[tuple[int, ...], Imported] = {}
        for index, names in enumerate(self._reads):
            if any(self._maker.get(name, -1) >= index for name in names):
                raise UnsupportedFeature("the nodes are not in the order of their data")
            self._look_at_sizes(index)
        passed_on = {value.name for value in graph.input} - self._held.keys()
        if not all(name in self._maker or name in passed_on for name in self._outputs):
            raise UnsupportedFeature("an output of the model is neither the result of a node nor an input")
        self._move_quantizers()

    @property
    def holds_contexts(self) -> bool:
        """Whether some of the model was compiled before."""
        return any(node.op_type == EP_CONTEXT for node in self._proto.graph.node)

    def context_parts(self) -> list[ModelPart]:
        """The parts of a context model: each of its graphs, and the nodes for the CPU between them."""
        nodes = self._proto.graph.node
        self._reasons = {index: _BESIDE_CONTEXTS for index, node in enumerate(nodes) if node.op_type != EP_CONTEXT}
        names = {index: _partition_name(node) for index, node in enumerate(nodes) if index not in self._reasons}
        for index in names:  # the context itself is read only once, from the model
            kept = [attribute for attribute in nodes[index].attribute if attribute.name != "ep_cache_context"]
            del nodes[index].attribute[:]
            nodes[index].attribute.extend(kept)
        parts: list[ModelPart] = []
        for on_htp, indices in self._groups():
            for together in ((index,) for index in indices) if on_htp else (indices,):
                model, inputs, outputs = self._extract(
                    together, f"{self._proto.graph.name or 'graph'}_{len(parts)}"
                )
                assigned = tuple(self._assigned(index) for index in together)
                graph = names[together[0]] if on_htp else None
                part = ModelPart(nodes=assigned, model=model, inputs=inputs, outputs=outputs, graph=graph)
                parts.append(part)
        return parts

    def parts(self) -> list[ModelPart] | None:
        """The parts as they are now, or None if the importer just refused another node."""
        parts: list[ModelPart] = []
        for on_htp, indices in self._groups():
            model, inputs, outputs = self._extract(indices, f"{self._proto.graph.name or 'graph'}_{len(parts)}")
            imported = None
            if on_htp:
                imported = self._tried.get(indices) or self._import(indices, model)
                if imported is None:
                    return None
                self._tried[indices] = imported
            nodes = tuple(self._assigned(index) for index in indices)
            part = ModelPart(nodes=nodes, model=model, inputs=inputs, outputs=outputs, imported=imported)
            parts.append(part)
        return parts

    def _assigned(self, index: int) -> AssignedNode:
        node = self._proto.graph.node[index]
        return AssignedNode(node.name, node.op_type, self._reasons.get(index, ""))

    def _look_at_sizes(self, index: int) -> None:
        """Leave nodes with open sizes to the CPU: only tensors of fixed sizes can pass between processors."""
        for name in (*self._reads[index], *self._proto.graph.node[index].output):
            if name and not _is_fixed(self._types.get(name)):
                self._reasons[index] = f"the size of {name!r} is not known before it runs"
                return

    def _move_quantizers(self) -> None:
        """Put the DequantizeLinear and QuantizeLinear of a node where the node itself is."""
        nodes = self._proto.graph.node
        for index in reversed(range(len(nodes))):
            if nodes[index].op_type == "DequantizeLinear" and index not in self._reasons:
                readers = [reader for name in nodes[index].output for reader in self._readers.get(name, ())]
                if readers and all(reader in self._reasons for reader in readers):
                    self._reasons[index] = f"belongs to {nodes[readers[0]].name!r}"
        for index, node in enumerate(nodes):
            maker = self._maker.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
            if maker in self._reasons and index not in self._reasons:
                self._reasons[index] = f"belongs to {nodes[maker].name!r}"

    def _groups(self) -> list[tuple[bool, tuple[int, ...]]]:
        levels: dict[int, int] = {}
        groups: dict[tuple[int, bool], list[int]] = {}
        for index in range(len(self._proto.graph.node)):
            on_htp = index not in self._reasons
            before = [self._maker[name] for name in self._reads[index] if name in self._maker]
            levels[index] = max(
                (levels[maker] + ((maker not in self._reasons) != on_htp) for maker in before), default=0
            )
            groups.setdefault((levels[index], on_htp), []).append(index)
        return [(on_htp, tuple(groups[level, on_htp])) for level, on_htp in sorted(groups)]

    def _import(self, indices: tuple[int, ...], model: bytes) -> Imported | None:
        """Import a part. A refusal moves the refused node to the CPU, or all nodes if the error names none."""
        nodes = self._proto.graph.node
        if all(nodes[index].op_type in _NOTHING_TO_COMPUTE for index in indices):
            self._reasons.update(dict.fromkeys(indices, _TRIVIAL))
            return None
        try:
            return import_typed(read_model(model))
        except (UnsupportedError, FormatError) as error:
            refused = self._refused(indices, error)
            self._reasons.update(dict.fromkeys(refused, error.message))
            self._move_quantizers()
            return None

    def _add_element_types(self) -> None:
        """Take element types that inference does not know from ONNX Runtime, which needs one for each input.

        Only the runtime knows the types behind its own operators, for example DynamicQuantizeLSTM.
        """
        missing = [
            name
            for node in self._proto.graph.node
            for name in node.output
            if name and not (name in self._types and self._types[name].type.WhichOneof("value"))
        ]
        if not missing:
            return
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            model = with_outputs(model_bytes(self._proto), missing)
            session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # a model that the runtime cannot take either is refused in its own words later
            log.debug("types of elements are not known: %s", error)
            return
        for value in session.get_outputs():
            element = _ELEMENTS.get(value.type)
            if value.name in missing and element is not None:
                self._types[value.name] = helper.make_tensor_value_info(value.name, element, None)

    def _refused(self, indices: tuple[int, ...], error: QnnError) -> Iterable[int]:
        """The nodes that an error names. Ops that the importer made from a node carry the node's name, too."""
        nodes, message = self._proto.graph.node, str(error)
        exact = [index for index in indices if f"node {nodes[index].name!r}" in message]
        return exact or [index for index in indices if f"node '{nodes[index].name}" in message] or indices

    def _extract(self, indices: tuple[int, ...], name: str) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
        """A model of some nodes. Values from other nodes become its inputs, values for other nodes its outputs."""
        graph, inside = self._proto.graph, set(indices)
        nodes = [graph.node[index] for index in indices]
        results = [output for node in nodes for output in node.output if output]
        reads = dict.fromkeys(read for index in indices for read in self._reads[index])
        inputs = tuple(read for read in reads if self._maker.get(read, -1) not in inside)
        outputs = tuple(
            output
            for output in results
            if output in self._outputs or any(reader not in inside for reader in self._readers.get(output, ()))
        )
        constants = dict.fromkeys(read for node in nodes for read in node_reads(node) if read in self._held)
        extracted = helper.make_graph(
            nodes,
            name,
            [self._types.get(read) or ValueInfoProto(name=read) for read in inputs],
            [self._types.get(output) or ValueInfoProto(name=output) for output in outputs],
            [self._held[constant] for constant in constants],
        )
        made_model = ModelProto(ir_version=self._proto.ir_version)
        made_model.opset_import.extend(self._proto.opset_import)
        made_model.graph.CopyFrom(extracted)
        return made_model.SerializeToString(), inputs, outputs


_ELEMENTS = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}


def _partition_name(node: Any) -> str:
    """The name of the graph that an EPContext node stands for."""
    for attribute in node.attribute:
        if attribute.name == "partition_name":
            return str(attribute.s.decode(errors="replace"))
    return str(node.name)


def _is_fixed(value: Any) -> bool:
    if value is None or not value.type.HasField("tensor_type"):
        return False
    kind = value.type.tensor_type
    return bool(kind.elem_type) and kind.HasField("shape") and all(dim.dim_value > 0 for dim in kind.shape.dim)
