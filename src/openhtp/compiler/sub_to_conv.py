"""Writes a difference of two tensors as a convolution of both side by side, with weights of 1 and -1.

The vector units are slow at subtracting; the matrix unit does it in passing. Where both tensors come from
convolutions and activations of the same shapes, these are joined, too: two convolutions of one image become one
with the filters of both, and later ones get filters that see only their own half.

No graph is changed unasked: ``openhtp.advising`` prices this rewrite, and hands it out on request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.def_use import needed_nodes
from openhtp.ir.graph import QnnNode
from openhtp.ops import op_of
from openhtp.program.qnn_program import QnnProgram, frozen_array

Array = npt.NDArray[Any]

_PICTURE_RANK = 4
_ACTIVATIONS = ("clamp", "unary")
_ONE = 127
"""The stored number that stands for 1 in weights of 8 bits."""


def sub_to_conv(program: QnnProgram) -> QnnProgram:
    """The program with every difference of two pictures written as a convolution; itself if it has none."""
    writing = _Writing(program)
    for node in program.nodes:
        writing.add(node)
    if not writing.changed:
        return program
    nodes = tuple(needed_nodes(writing.nodes, program.output_names))
    used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    kept = {name: spec for name, spec in writing.tensors.items() if name in used or not _is_inner(spec)}
    statics = {name: frozen_array(data) for name, data in writing.statics.items() if name in kept}
    return dataclasses.replace(program, tensors=kept, statics=statics, nodes=nodes)


def _is_inner(spec: TensorSpec) -> bool:
    return not spec.kind.is_input and not spec.kind.is_output


@dataclass(frozen=True, slots=True)
class _Pair:
    """The nodes that make two tensors in the same way."""

    left: QnnNode
    right: QnnNode


class _Writing:
    def __init__(self, program: QnnProgram) -> None:
        self.tensors: dict[str, TensorSpec] = dict(program.tensors)
        self.statics: dict[str, Array] = dict(program.statics)
        self.nodes: list[QnnNode] = []
        self.changed = False
        self._program = program
        self._uses = program.def_use()

    def add(self, node: QnnNode) -> None:
        """Take a node over; write a difference as a convolution."""
        left, right = (*node.inputs, None, None)[:2]
        if op_of(node).kind != "subtract" or left is None or right is None or left == right:
            self.nodes.append(node)
            return
        out, one, two = (self.tensors[name] for name in (node.outputs[0], left, right))
        alike = one.shape == two.shape == out.shape and one.dtype == two.dtype == out.dtype
        computed = {left, right}.isdisjoint(self._program.statics)
        if len(out.shape) != _PICTURE_RANK or not alike or not computed or not _has_ones(one):
            self.nodes.append(node)
            return
        both = self._both(left, right)
        channels = out.shape[-1]
        signs = np.concatenate([np.eye(channels), -np.eye(channels)]).reshape(1, 1, 2 * channels, channels)
        weights = self._constant(f"{node.name} signs", *_ones(out, signs))
        params = {"stride": np.array([1, 1], np.uint32), "pad_amount": np.zeros((2, 2), np.uint32)}
        self.nodes.append(QnnNode("Conv2d", node.name, (both, weights), node.outputs, params))
        self.changed = True

    def _both(self, left: str, right: str) -> str:
        """Add a tensor that joins the channels of both operands."""
        spec = self._joined(left, right)
        pair = self._pair(left, right)
        if pair is None:
            params = {"axis": np.uint32(_PICTURE_RANK - 1)}
            self.nodes.append(QnnNode("Concat", f"{spec.name} together", (left, right), (spec.name,), params))
            return spec.name
        first, second = pair.left, pair.right
        sources = (first.inputs[0], second.inputs[0])
        assert sources[0] is not None
        assert sources[1] is not None
        shared = sources[0] == sources[1]
        source = sources[0] if shared else self._both(sources[0], sources[1])
        constants = tuple(
            self._stacked(one, two, within=not shared and index == 0)
            for index, (one, two) in enumerate(zip(first.inputs[1:], second.inputs[1:], strict=True))
        )
        merged = dataclasses.replace(
            first, name=f"{first.name} and {second.name}", inputs=(source, *constants), outputs=(spec.name,)
        )
        self.nodes.append(merged)
        return spec.name

    def _joined(self, left: str, right: str) -> TensorSpec:
        """The spec of both side by side, with an encoding that covers the values of both."""
        one, two = self.tensors[left], self.tensors[right]
        shape = (*one.shape[:-1], one.shape[-1] + two.shape[-1])
        name = f"{left} and {right}"
        spec = TensorSpec(name, shape, one.dtype, _wider(one, two), TensorKind.NATIVE)
        self.tensors[name] = spec
        return spec

    def _pair(self, left: str, right: str) -> _Pair | None:
        """The nodes that make both tensors, if no other node reads them and they can be one node."""
        first, second = self._uses.maker(left), self._uses.maker(right)
        if first is None or second is None or first is second:
            return None
        single_reader = all(self._uses.only_reader(name) is not None for name in (left, right))
        one, two = self.tensors[left], self.tensors[right]
        if (
            not single_reader
            or first.op != second.op
            or one.quant != two.quant
            or not _same(first.params, second.params)
        ):
            return None
        if len(first.inputs) != len(second.inputs):
            return None
        if op_of(first).kind in _ACTIVATIONS and len(first.inputs) == 1:
            return _Pair(first, second)
        return _Pair(first, second) if self._stackable(first, second) else None

    def _stackable(self, first: QnnNode, second: QnnNode) -> bool:
        """Whether the constants of two convolutions, and the constants' encodings, allow joining the two."""
        if op_of(first).kind != "conv" or int(first.params.get("group", 1)) != 1:
            return False
        for one, two in zip(first.inputs[1:], second.inputs[1:], strict=True):
            if (one is None) != (two is None):
                return False
            if one is None or two is None:
                continue
            if one not in self.statics or two not in self.statics:
                return False
            left, right = self.tensors[one], self.tensors[two]
            if left.dtype != right.dtype or left.shape[:-2] != right.shape[:-2]:
                return False
            if left.quant != right.quant and not _by_channel(left, right):
                return False
        return True

    def _stacked(self, left: str | None, right: str | None, *, within: bool) -> str | None:
        """Constants for the filters of both; ``within`` lets each filter see only its own half of the channels."""
        if left is None or right is None:
            return None
        one, two = self.statics[left], self.statics[right]
        spec = self.tensors[left]
        data = np.concatenate([one, two], axis=-1)
        if within:
            zeros = [
                np.full(each.shape, _zero(self.tensors[name]), each.dtype)
                for name, each in ((left, one), (right, two))
            ]
            data = np.concatenate(
                [np.concatenate([one, zeros[1]], axis=-1), np.concatenate([zeros[0], two], axis=-1)], axis=-2
            )
        quant = spec.quant
        if isinstance(quant, AxisScaleOffset):
            other = self.tensors[right].quant
            assert isinstance(other, AxisScaleOffset)
            quant = AxisScaleOffset(quant.axis, quant.scales + other.scales, quant.offsets + other.offsets)
        return self._constant(f"{left} and {right}", data, dataclasses.replace(spec, quant=quant))

    def _constant(self, name: str, data: Array, like: TensorSpec) -> str:
        self.tensors[name] = dataclasses.replace(like, name=name, shape=data.shape, kind=TensorKind.STATIC)
        self.statics[name] = data
        return name


def _same(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[key], two[key]) for key in one)


def _by_channel(one: TensorSpec, two: TensorSpec) -> bool:
    """Whether both have a symmetric encoding for each filter, so that 0 is stored as 0 in all."""
    pair = (one.quant, two.quant)
    return all(
        isinstance(quant, AxisScaleOffset) and quant.axis == len(one.shape) - 1 and not any(quant.offsets)
        for quant in pair
    )


def _zero(spec: TensorSpec) -> int:
    return spec.quant.zero_point if isinstance(spec.quant, ScaleOffset) else 0


def _has_ones(spec: TensorSpec) -> bool:
    """Whether there is a convolution with exact weights of 1 for tensors of this type."""
    return spec.dtype.is_float or (spec.dtype.is_fixed_point and spec.dtype.bits in (8, 16))


def _ones(out: TensorSpec, signs: Array) -> tuple[Array, TensorSpec]:
    """Weights of 1 and -1, and the spec of such weights."""
    if out.dtype.is_float:
        return signs.astype(out.dtype.numpy), TensorSpec("", signs.shape, out.dtype, None, TensorKind.STATIC)
    spec = TensorSpec("", signs.shape, DType.SFIXED_POINT_8, ScaleOffset(1.0 / _ONE, 0), TensorKind.STATIC)
    return (signs * _ONE).astype(np.int8), spec


def _wider(one: TensorSpec, two: TensorSpec) -> Encoding | None:
    """The common encoding if both have the same, otherwise one that covers the ranges of both."""
    if one.quant == two.quant or not isinstance(one.quant, ScaleOffset) or not isinstance(two.quant, ScaleOffset):
        return one.quant
    low, high = one.dtype.integer_range
    ends = [quant.scale * (end + quant.offset) for quant in (one.quant, two.quant) for end in (low, high)]
    scale = (max(ends) - min(ends)) / (high - low)
    return ScaleOffset(scale, round(min(ends) / scale) - low)
