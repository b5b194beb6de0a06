"""From an ONNX model to a QNN graph.

The steps: read the file, settle all types and constants, recognise patterns, find the encodings of a quantized
model, then turn node by node into QNN ops. Inputs and outputs keep their ONNX names, types and axes; in between,
images are channel-last.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.errors import BadModel, UnsupportedFeature, UnsupportedOp, error_context
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.quant import Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.frontend import encodings, values as vs
from openhtp.frontend.assembly import Assembly, conversion
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.model import MICROSOFT, OnnxModel, OnnxNode, ValueType, is_op
from openhtp.frontend.onnx_reader import ModelSource, read_model
from openhtp.frontend.own_operators import apply_own, is_own
from openhtp.frontend.patterns import find_targets, fuse_patterns, merge_axes
from openhtp.frontend.rules import apply_plain, keeping_values, plain_rules, rules
from openhtp.frontend.rules.indexing import TABLES
from openhtp.frontend.site import Site
from openhtp.frontend.typing_pass import TypedModel, settle_types
from openhtp.frontend.values import OnnxValue, Perm
from openhtp.ir.def_use import DefUse
from openhtp.ir.graph import Graph

RECURRENT = ("GRU", "LSTM", "RNN")
"""What an HTP computes in floats, whatever the type of its weights."""

# Errors of rules when the attributes of a node contradict each other: nothing checks attributes earlier.
_CONTRADICTIONS = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, AttributeError)


def load(source: ModelSource, dims: Dims | None = None, freeze: Freeze | None = None) -> Graph:
    """Import a model. ``dims`` fixes sizes that it leaves open, ``freeze`` makes inputs constants."""
    return import_model(read_model(source, dims, freeze))


def import_model(model: OnnxModel) -> Graph:
    """Import a model that has been read."""
    return import_typed(model).graph


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and the ONNX types of its inputs and outputs (QNN has no scalars and no 64-bit floats)."""

    graph: Graph
    inputs: Mapping[str, ValueType]
    outputs: Mapping[str, ValueType]


def import_typed(model: OnnxModel) -> Imported:
    """Import a model that has been read; also returns the types at its edges."""
    with error_context(model=model.name):
        typed = merge_axes(fuse_patterns(settle_types(model)))
        outputs = {name: typed.types[name] for name in model.outputs}
        # Weights of a damaged file may hold any number; numpy's warnings about them help nobody.
        with np.errstate(all="ignore"):
            kinds = {node.name: node.op_type for node in model.nodes if node.name}
            return Imported(GraphImport(typed, kinds).graph(), model.inputs, outputs)


def origin_of(name: str, node_names: Container[str]) -> str:
    """The node of the file that a node was made from: parts of an expanded one are named ``<its name>/<part>``."""
    origin = name
    while origin and origin not in node_names:
        origin = origin.rpartition("/")[0]
    return origin


class GraphImport:
    """One model on its way into a QNN graph. Rules reach it through their ``Site``."""

    def __init__(self, model: TypedModel, op_types: Mapping[str, str]) -> None:
        """``op_types`` are those of the nodes in the model's file by name, before any node was expanded."""
        # QNN has no tensors of rank 0: a scalar is a vector of one.
        self.types = {name: replace(kind, shape=kind.shape or (1,)) for name, kind in model.types.items()}
        self._model = model
        self._op_types = op_types
        self._targets = find_targets(model)
        self._uses = DefUse(model.nodes, model.source.outputs)
        self._outputs = model.source.outputs
        self._values: dict[str, OnnxValue] = {}
        self._written: set[str] = set()
        self.assembly = Assembly(model.source.name, [*model.source.inputs, *model.source.outputs])

    def graph(self) -> Graph:
        """Import everything."""
        for name in self._model.source.inputs:
            self._add_input(name)
        for node in self._model.nodes:
            self.assembly.origin = origin_of(node.name, self._op_types)
            self.assembly.stays_float = self._op_types.get(self.assembly.origin) in RECURRENT
            with error_context(node=node.name):
                self._check_sizes(node)
                try:
                    self._add_node(node)
                except _CONTRADICTIONS as error:
                    raise UnsupportedOp(f"{node.title} cannot be imported as it is: {error}") from error
        self.assembly.origin, self.assembly.stays_float = "", False
        for name in self._outputs:
            with error_context(output=name):
                self._check_elements(name)
                self._add_output(name)
        return self.assembly.finish()

    # What sites ask for

    def value(self, name: str) -> OnnxValue:
        """The value of this name."""
        if name not in self._values:
            data = self._model.constants.get(name)
            if data is None:
                raise BadModel(f"value {name!r} is used but not defined")
            dtype = encodings.plain_type(data.dtype)
            shape = data.shape or (1,)
            stored = vs.stored(data, dtype, None).reshape(shape)
            self._values[name] = OnnxValue(name, shape, dtype, None, stored)
        return self._values[name]

    def define(self, name: str, value: OnnxValue) -> None:
        """Let this value stand for an ONNX name from here on."""
        self._values[name] = value

    def declare(self, name: str, perm: Perm, dtype: DType, quant: Encoding | None) -> TensorSpec:
        """A tensor for an ONNX name, an output of the graph if it can be."""
        shape = self.types[name].shape
        value = OnnxValue(name, shape, dtype, quant)
        target = self._targets.get(name)
        edge = name if name in self._outputs else target.quantized_name if target is not None else ""
        if edge in self._outputs and perm == vs.identity(len(shape)) and self._edge_type(edge) == (dtype, quant):
            spec = self.assembly.edge(edge, shape, dtype, quant, TensorKind.APP_READ)
            self._written.add(edge)
        else:
            spec = self.assembly.native(name, vs.permuted(shape, perm), dtype, vs.moved_encoding(quant, perm))
        value.forms[perm] = spec
        self._values[name] = value
        return spec

    # Edges

    def _add_input(self, name: str) -> None:
        kind = self.types[name]
        dtype, quant = encodings.edge_type(kind.dtype)
        reader = next((node for node in self._uses.readers(name) if is_op(node, "DequantizeLinear")), None)
        if reader is not None:
            dtype, quant = encodings.read_encoding(reader, self.types, self._model.constants)
        spec = self.assembly.edge(name, kind.shape, dtype, quant, TensorKind.APP_WRITE)
        value = OnnxValue(name, kind.shape, dtype, quant, None, {vs.identity(len(kind.shape)): spec})
        inner = encodings.plain_type(kind.dtype)
        if reader is None and inner != dtype and self._uses.readers(name):
            value = self.assembly.cast(value, inner)
        self._values[name] = value

    def _edge_type(self, name: str) -> tuple[DType, Encoding | None]:
        """Type and encoding that the client sees at an output."""
        maker = self._uses.maker(name)
        if maker is not None and is_op(maker, "QuantizeLinear"):
            return encodings.read_encoding(maker, self.types, self._model.constants)
        return encodings.edge_type(self.types[name].dtype)

    def _add_output(self, name: str) -> None:
        if name in self._written:
            return
        if name in self._model.source.inputs:
            raise UnsupportedFeature(
                f"output {name!r} is an input of the model; a graph's tensor is one or the other. Put an Identity"
                " between them"
            )
        value = self.value(name)
        dtype, quant = self._edge_type(name)
        spec = self.assembly.edge(name, value.shape, dtype, quant, TensorKind.APP_READ)
        if (value.dtype, value.quant) == (dtype, quant):
            self.assembly.move_into(value, spec)
            return
        source = self.assembly.form(value, vs.identity(value.rank))
        real = value.is_real and (dtype.is_float or dtype.is_fixed_point)
        self.assembly.call(conversion(value.dtype, dtype) if real else "Cast", name, [source], [spec])

    # Nodes

    def _check_sizes(self, node: OnnxNode) -> None:
        for name in node.outputs:
            kind = self.types.get(name)
            self._check_elements(name)
            if kind is not None and math.prod(kind.shape) * kind.dtype.itemsize > SESSION_LIMIT_BYTES:
                raise UnsupportedFeature(
                    f"{node.title}: output {name!r} of shape {list(kind.shape)} takes more than an HTP session's"
                    f" {SESSION_LIMIT_BYTES} bytes"
                )

    def _check_elements(self, name: str) -> None:
        kind = self.types.get(name)
        if kind is not None and 0 in kind.shape:
            raise UnsupportedFeature(
                f"value {name!r} of shape {list(kind.shape)} has no elements; those of an HTP have at least one"
            )

    def _add_node(self, node: OnnxNode) -> None:
        if is_op(node, "QuantizeLinear"):
            return self._quantize(node)
        if is_op(node, "DequantizeLinear"):
            return self._dequantize(node)
        fixed = self._fixed_outputs(node)
        if fixed is not None:
            written = set(self._written)
            try:
                return self._apply(Site(self, node, fixed))
            except UnsupportedOp:
                # The op has no fixed point: it computes in floats, between a Dequantize and the Quantize that
                # follows anyway.
                self._written = written
        return self._apply(Site(self, node, None))

    def _apply(self, site: Site) -> None:
        node = site.node
        if is_own(node):
            return apply_own(site)
        rule = rules().get(node.op_type) if node.domain in ("", MICROSOFT) else None
        if rule is not None:
            return rule(site)
        plain = plain_rules().get(node.op_type) if not node.domain else None
        if plain is None:
            raise UnsupportedOp(f"{node.title} is not supported{_nearest(node.op_type)}")
        return apply_plain(site, *plain)

    def _fixed_outputs(self, node: OnnxNode) -> dict[int, encodings.Fixed] | None:
        """Encodings of the float outputs if the node can compute in fixed point, otherwise None."""
        inputs = [self.value(name) for name in node.inputs if name]
        computed = [value for value in inputs if value.is_real and not value.is_constant]
        if node.op_type in TABLES and not computed and not all(value.is_constant for value in inputs):
            # Only the indices are computed, so the table decides.
            computed = inputs[:1]
        if not computed or not all(value.dtype.is_fixed_point for value in computed):
            return None
        fixed: dict[int, encodings.Fixed] = {}
        for index, name in enumerate(node.outputs):
            if not name or self.types[name].dtype.kind != "f":
                continue
            target = self._targets.get(name)
            if target is not None:
                fixed[index] = (target.dtype, target.quant)
            elif node.op_type in keeping_values() and computed[0].quant is not None:
                fixed[index] = (computed[0].dtype, computed[0].quant)
            elif name in self._outputs or self._uses.readers(name):
                return None
        return fixed

    def _quantize(self, node: OnnxNode) -> None:
        fixed = encodings.read_encoding(node, self.types, self._model.constants)
        value = self.value(node.inputs[0])
        if not value.is_real:
            raise UnsupportedOp(f"{node.title}: quantizes integers; expected floats")
        if node.has(2) and node.inputs[2] in self._model.source.narrow:
            raise UnsupportedOp(f"{node.title}: quantizes to 4 bits, which are for weights; use 8 or 16")
        self._refuse_axis(node, value, fixed[1])
        self.define(node.outputs[0], self.assembly.converted(value, *encodings.activation(*fixed)))

    def _refuse_axis(self, node: OnnxNode, value: OnnxValue, quant: Encoding) -> None:
        """Refuse a scale per channel where an op of an HTP would read it. A result of the model may have one."""
        is_read = bool(self._uses.readers(node.outputs[0]))
        if is_read and not value.is_constant and not isinstance(quant, ScaleOffset):
            raise UnsupportedOp(f"{node.title}: has a scale per channel, which is for weights; use one scale")

    def _dequantize(self, node: OnnxNode) -> None:
        dtype, quant = encodings.read_encoding(node, self.types, self._model.constants)
        value = self.value(node.inputs[0])
        if value.data is not None and value.quant is None:
            stored = vs.stored(self._model.constants[node.inputs[0]], dtype, None).reshape(value.shape)
            return self.define(node.outputs[0], OnnxValue(node.outputs[0], value.shape, dtype, quant, stored))
        self._refuse_axis(node, value, quant)
        unsigned = encodings.activation(dtype, quant)
        if (value.dtype, value.quant) in ((dtype, quant), unsigned):
            return self.define(node.outputs[0], self.assembly.converted(value, *unsigned))
        raise UnsupportedOp(
            f"{node.title}: reads {value.name!r} with another scale or type than it was written with;"
            " a DequantizeLinear must undo its QuantizeLinear"
        )


def _nearest(op_type: str) -> str:
    """What to write instead, for operators that have a well-known other form."""
    if op_type in _INSTEAD:
        return f"; {_INSTEAD[op_type]}"
    near = difflib.get_close_matches(op_type, [*rules(), *plain_rules()], n=2)
    return f"; the nearest supported are {' and '.join(near)}" if near else "; docs/onnx.md lists what is"


_INSTEAD = {
    "Erf": "use it inside GELU (x * (1 + erf(x / sqrt 2)) / 2), which is recognised",
    "MatMulInteger": "use QuantizeLinear/DequantizeLinear around MatMul",
    "QLinearConv": "use QuantizeLinear/DequantizeLinear around Conv (QDQ format)",
    "QLinearMatMul": "use QuantizeLinear/DequantizeLinear around MatMul (QDQ format)",
    "DynamicQuantizeLinear": "use static quantization (openhtp quantize)",
}
