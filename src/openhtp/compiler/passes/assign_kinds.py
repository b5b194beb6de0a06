"""Gives each kernel its kind for the cost model, by its op and the op's operands."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from openhtp.compiler.chip_rules import SHORT_DEPTH
from openhtp.core.opcall import MATRIX_KINDS, MOVES_NOTHING, OpCall
from openhtp.ops import op_of
from openhtp.program.htp_program import HtpNode, HtpProgram, Kernel, Unit

_PICTURE_RANK = 4
_SMALLEST_IMAGE = 32


def assign_kinds(program: HtpProgram) -> HtpProgram:
    """Give every kernel its kind. Kernels still have one node each."""
    flattened = _flattened_pictures(program)
    kernels = tuple(
        dataclasses.replace(kernel, kind=_kind(kernel.nodes[0], program, flattened)) for kernel in program.kernels
    )
    return dataclasses.replace(program, kernels=kernels)


def _flattened_pictures(program: HtpProgram) -> frozenset[str]:
    """Tensors that are pictures under another shape: a row for each pixel, its channels in the row."""
    names: set[str] = set()
    for kernel in program.kernels:
        call = program.source.call(kernel.nodes[0])
        source, result = call.inputs[0] if call.inputs else None, call.outputs[0]
        if source is None:
            continue
        if call.op == "Reshape" and _is_picture(source.shape) and source.shape[-1] == result.shape[-1]:
            names.add(result.name)
    return frozenset(names)


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == _PICTURE_RANK and shape[0] == 1 and min(shape[1:3]) > 1


def _kind(node: HtpNode, program: HtpProgram, flattened: frozenset[str]) -> str | None:
    call = program.source.call(node)
    opdef = op_of(call)
    if opdef.kind in ("fully_connected", "matmul") and _is_product_of_pixels(node, call, program, flattened):
        return "conv"
    if opdef.kind == "conv":
        kind = conv_kind(call)
        # Without the HMX it is a convolution of every channel by itself, on the HVX.
        return "depthwise" if kind == "stem" and program.options.short_depth_conv_on_hmx_off else kind
    if call.op == "MatMul":
        return "fully_connected" if any(name in program.statics for name in node.inputs[:2]) else "matmul"
    if call.op == "Transpose":
        return "reshape" if keeps_order(call) else "permute" if keeps_rows(call) else "transpose"
    if opdef.affine_by_constant and any(name in program.statics for name in node.inputs):
        return _arithmetic(call) if opdef.kind == "divide" else "affine"
    return opdef.kind


def _is_product_of_pixels(node: HtpNode, call: OpCall, program: HtpProgram, flattened: frozenset[str]) -> bool:
    """Whether a constant matrix is applied to every pixel of a picture, which makes it a convolution."""
    source = call.inputs[0]
    if source is None or node.inputs[0] in program.statics or node.inputs[1] not in program.statics:
        return False
    return source.name in flattened or _is_picture(source.shape)


def _arithmetic(call: OpCall) -> str:
    """A division is slow even by a constant, most of all for images of few channels, as many networks begin."""
    shape = call.outputs[0].shape
    image = len(shape) >= _PICTURE_RANK and shape[0] == 1 and min(shape[1], shape[-1]) <= SHORT_DEPTH
    # A row or column of numbers is no image, though one of its axes is as short.
    return "image_norm" if image and sorted(shape)[-2] >= _SMALLEST_IMAGE else "divide"


def conv_kind(call: OpCall) -> str:
    """The kind of a convolution from the HMX's point of view."""
    if any(step > 1 for step in _ints(call.params.get("dilation", ()))):
        return "dilated"
    if int(call.params.get("group", 1)) > 1:
        return "group"
    if len(call.outputs[0].shape) > _PICTURE_RANK:
        return "conv3d"
    source = call.inputs[0]
    shallow = source is not None and source.shape[-1] <= SHORT_DEPTH
    return "stem" if shallow and call.op == "Conv2d" else "conv"


def keeps_order(call: OpCall) -> bool:
    """Whether a transpose moves only axes of size one, so that memory stays as it is."""
    source = call.inputs[0]
    shape = source.shape if source is not None else ()
    order = [axis for axis in _ints(call.params.get("perm", ())) if shape[axis] != 1]
    return order == sorted(order)


def keeps_rows(call: OpCall) -> bool:
    """Whether a transpose leaves the last axis where it is, so that whole rows are moved."""
    order = _ints(call.params.get("perm", ()))
    return order[-1] == len(order) - 1


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in np.ravel(value))


# The units that each kernel keeps busy.


def assign_units(program: HtpProgram) -> HtpProgram:
    """Give every kernel the units that it keeps busy. A mere change of shape keeps none busy."""
    kernels = tuple(dataclasses.replace(kernel, units=_units(kernel, program)) for kernel in program.kernels)
    return dataclasses.replace(program, kernels=kernels)


def _units(kernel: Kernel, program: HtpProgram) -> frozenset[Unit]:
    units = set()
    if kernel.kind in MATRIX_KINDS:
        units.add(Unit.HMX)
    if kernel.kind != MOVES_NOTHING:
        units.add(Unit.HVX)  # for a product, too: the HVX converts results back to their stored type
    specs = [program.tensors[name] for name in (*kernel.inputs, *kernel.outputs)]
    # Weights come from DDR; the client's inputs and outputs are there, too.
    if any(spec.name in program.statics or spec.kind.is_input or spec.kind.is_output for spec in specs):
        units.add(Unit.DMA)
    return frozenset(units)
