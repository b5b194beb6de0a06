"""Collects the tensors and nodes of the QNN graph while a model is being imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.opcall import OpCall
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.frontend import values as vs
from openhtp.frontend.model import Array, Shape
from openhtp.frontend.values import OnnxValue, Perm
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.def_use import needed_nodes
from openhtp.ir.graph import Graph, QnnNode, node_of
from openhtp.ops import PACKAGE, resolve

_SUFFIXES = {(0, 2, 1): "nlc", (0, 2, 3, 1): "nhwc", (0, 2, 3, 4, 1): "ndhwc"}


class Assembly:
    """Tensors, constants and calls so far. ``finish`` drops those that no output needs."""

    def __init__(self, name: str, reserved: Sequence[str]) -> None:
        self._name = name
        self._tensors: dict[str, TensorSpec] = {}
        self._statics: dict[str, Array] = {}
        self._nodes: list[QnnNode] = []
        self._taken = set(reserved)
        self._node_names: set[str] = set()
        # The node of the model that is being imported, and whether a quantizer leaves it in floats.
        self.origin = ""
        self.stays_float = False

    # Tensors

    def edge(self, name: str, shape: Shape, dtype: DType, quant: Encoding | None, kind: TensorKind) -> TensorSpec:
        """An input or output of the graph, under its ONNX name."""
        spec = self._tensors[name] = TensorSpec(name, shape, dtype, quant, kind)
        return spec

    def native(self, name: str, shape: Shape, dtype: DType, quant: Encoding | None) -> TensorSpec:
        """A tensor between nodes; its name is made unique."""
        name = self._unique(name, self._taken)
        spec = self._tensors[name] = TensorSpec(name, shape, dtype, quant)
        return spec

    def static(self, name: str, data: Array, dtype: DType, quant: Encoding | None = None) -> TensorSpec:
        """A constant, given as stored."""
        name = self._unique(name, self._taken)
        spec = self._tensors[name] = TensorSpec(name, data.shape, dtype, quant, TensorKind.STATIC)
        self._statics[name] = in_order(data, np.dtype(dtype.numpy))
        return spec

    def call(
        self,
        op: str,
        name: str,
        inputs: Sequence[TensorSpec | None],
        outputs: Sequence[TensorSpec],
        params: Mapping[str, Any] | None = None,
        *,
        package: str = PACKAGE,
    ) -> None:
        """Add a node. Raises the error of the op's own check if the op refuses it."""
        call = OpCall(op, name, tuple(inputs), tuple(outputs), dict(params or {}), package)
        resolve(call, self._statics)
        name = self._unique(name, self._node_names)
        origin = "" if self.origin == name else self.origin
        known = dataclasses.replace(call, name=name, origin=origin, stays_float=self.stays_float)
        self._nodes.append(node_of(known))

    # Values in the form and type that an op wants

    def form(self, value: OnnxValue, perm: Perm) -> TensorSpec:
        """The tensor that holds the value with its axes in this order."""
        known = value.forms.get(perm)
        if known is not None:
            return known
        shape = vs.permuted(value.shape, perm)
        quant = vs.moved_encoding(value.quant, perm)
        if value.data is not None:
            spec = self.static(_form_name(value, perm), value.data.transpose(perm), value.dtype, quant)
        else:
            have = self._nearest(value, perm)
            spec = self.native(_form_name(value, perm), shape, value.dtype, quant)
            self._move(value, have, perm, spec)
        value.forms[perm] = spec
        return spec

    def move_into(self, value: OnnxValue, target: TensorSpec) -> None:
        """Write the value, with its axes as in ONNX, into a given tensor of its type."""
        perm = vs.identity(value.rank)
        if value.data is not None:
            self._move(value, perm, perm, target, self.form(value, perm))
        else:
            self._move(value, self._nearest(value, perm), perm, target)

    def converted(self, value: OnnxValue, dtype: DType, quant: Encoding | None) -> OnnxValue:
        """The value's real numbers in another type or encoding (Quantize, Dequantize or Convert)."""
        if (dtype, quant) == (value.dtype, value.quant):
            return value
        known = value.variants.get((dtype, quant))
        if known is not None:
            return known
        name = f"{value.name}_{dtype.short}"
        other = OnnxValue(name, value.shape, dtype, quant)
        if value.data is not None:
            real = value.real()
            assert real is not None
            other.data = vs.stored(real, dtype, quant)
        else:
            perm, source = next(iter(value.forms.items()))
            target = self.native(name, source.shape, dtype, vs.moved_encoding(quant, perm))
            self.call(conversion(value.dtype, dtype), name, [source], [target])
            other.forms[perm] = target
        value.variants[dtype, quant] = other
        return other

    def cast(self, value: OnnxValue, dtype: DType) -> OnnxValue:
        """The value's stored numbers in another type."""
        if dtype == value.dtype and value.quant is None:
            return value
        other = OnnxValue(f"{value.name}_{dtype.short}", value.shape, dtype)
        if value.data is not None:
            other.data = vs.stored(value.data, dtype, None)
            return other
        for perm, source in list(value.forms.items())[:1]:
            target = self.native(other.name, source.shape, dtype, None)
            self.call("Cast", other.name, [source], [target])
            other.forms[perm] = target
        return other

    # The end

    def finish(self) -> Graph:
        """Drop what no output needs and build the graph."""
        whole = Graph(self._name, self._tensors, self._statics, tuple(self._nodes))
        kept = needed_nodes(whole.nodes, whole.output_names)
        touched = {name for node in kept for name in (*node.inputs, *node.outputs)}
        builder = GraphBuilder(self._name)
        for spec in self._tensors.values():
            if spec.name in touched or spec.kind.is_input or spec.kind.is_output:
                if 0 in spec.shape:
                    shape = list(spec.shape)
                    raise UnsupportedFeature(
                        f"value {spec.name!r} of shape {shape} has no elements; those of an HTP have at least one"
                    )
                builder.add_tensor(spec, self._statics.get(spec.name))
        for node in kept:
            builder.add_node(whole.call(node), op_accepts=True)
        return builder.finish()

    def _move(
        self, value: OnnxValue, have: Perm, want: Perm, target: TensorSpec, source: TensorSpec | None = None
    ) -> None:
        source = source if source is not None else value.forms[have]
        if have != want and vs.same_order(value.shape, have, want):
            self.call("Reshape", target.name, [source], [target])
        else:
            self.call("Transpose", target.name, [source], [target], {"perm": vs.move_between(have, want)})

    def _nearest(self, value: OnnxValue, perm: Perm) -> Perm:
        """A form that exists, preferably one with the same order of elements."""
        return next(
            (have for have in value.forms if vs.same_order(value.shape, have, perm)), next(iter(value.forms))
        )

    @staticmethod
    def _unique(name: str, used: set[str]) -> str:
        name = name or "value"
        unique, number = name, 1
        while unique in used:
            number += 1
            unique = f"{name}_{number}"
        used.add(unique)
        return unique


def conversion(source: DType, target: DType) -> str:
    """The op that stores real numbers of one type in another."""
    if source.is_float and target.is_fixed_point:
        return "Quantize"
    if source.is_fixed_point and target.is_float:
        return "Dequantize"
    return "Cast" if source.is_float else "Convert"


def _form_name(value: OnnxValue, perm: Perm) -> str:
    return value.name if perm == vs.identity(value.rank) else f"{value.name}_{_SUFFIXES.get(perm, 'moved')}"


# Constants whose axes were put in another order, laid out anew.


# Bytes of the last axis that are copied at a time. With more, the source's lines leave the cache in between.
_STRIP_BYTES = 32
# From this size on, the order of copying decides how long a copy takes.
_LARGE = 64 * 1024


def in_order(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array as it is if it lies in order and has this type, otherwise a copy that does.

    The channels of filters move from the first axis to the last. If they were copied in the order of the result,
    every element would come from another page.
    """
    if array.nbytes < _LARGE or array.dtype != dtype or array.flags.c_contiguous:
        return np.ascontiguousarray(array, dtype)
    copy = np.empty(array.shape, dtype)
    strip = max(1, _STRIP_BYTES // dtype.itemsize)
    for begin in range(0, array.shape[-1], strip):
        copy[..., begin : begin + strip] = array[..., begin : begin + strip]
    return copy
