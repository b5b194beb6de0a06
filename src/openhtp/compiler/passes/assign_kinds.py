"""What each kernel costs like: by its op, and by what the op is applied to."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.ops import find_op
from openhtp.program.htp_program import HtpNode, HtpProgram

_IMAGE_CHANNELS = 4


def assign_kinds(program: HtpProgram) -> HtpProgram:
    """Give every kernel its kind. Kernels still have one node each."""
    naming = _Naming(program)
    kernels = tuple(dataclasses.replace(kernel, kind=naming.kind(kernel.nodes[0])) for kernel in program.kernels)
    return dataclasses.replace(program, kernels=kernels)


class _Naming:
    def __init__(self, program: HtpProgram) -> None:
        self._program = program
        self._statics = program.statics
        self._normed: set[str] = set()

    def kind(self, node: HtpNode) -> str | None:
        call = self._program.source.call(node)
        opdef = find_op(call.op)
        if opdef.kind == "conv":
            return conv_kind(call)
        if call.op == "MatMul":
            return "fully_connected" if any(name in self._statics for name in node.inputs[:2]) else "matmul"
        if call.op == "Transpose" and keeps_order(call):
            return "reshape"
        constants = [spec for spec in call.inputs if spec is not None and spec.name in self._statics]
        if opdef.affine_by_constant and constants:
            return self._arithmetic(call, constants)
        return opdef.kind

    def _arithmetic(self, call: OpCall, constants: list[TensorSpec]) -> str:
        """Whether each colour of an input image gets its own number, as networks for photographs begin."""
        shape = call.outputs[0].shape
        source = next((spec for spec in call.inputs if spec is not None and spec.name not in self._statics), None)
        per_channel = 1 < constants[0].elements <= _IMAGE_CHANNELS
        image = len(shape) == 4 and min(shape[1], shape[3]) <= _IMAGE_CHANNELS
        if source is None or not image or not per_channel:
            return "affine"
        if not source.kind.is_input and source.name not in self._normed:
            return "affine"
        self._normed.add(call.outputs[0].name)
        return "image_norm"


def conv_kind(call: OpCall) -> str:
    """Which sort of convolution it is to the HMX."""
    if any(step > 1 for step in _ints(call.params.get("dilation", ()))):
        return "dilated"
    if int(call.params.get("group", 1)) > 1:
        return "group"
    source = call.inputs[0]
    shallow = source is not None and source.shape[-1] <= _IMAGE_CHANNELS
    return "stem" if shallow and call.op == "Conv2d" else "conv"


def keeps_order(call: OpCall) -> bool:
    """Whether a transpose moves only axes of size one, so that memory stays as it is."""
    source = call.inputs[0]
    shape = source.shape if source is not None else ()
    order = [axis for axis in _ints(call.params.get("perm", ())) if shape[axis] != 1]
    return order == sorted(order)


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in np.ravel(value))
