"""Join chains of transposes and reshapes: each chain is one movement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from openhtp.compiler.kernels import join_chains
from openhtp.core.opcall import OpCall
from openhtp.program.htp_program import HtpProgram, Kernel

_REARRANGING = ("Transpose", "Reshape")
_MOVING = ("reshape", "permute", "transpose")
_IMAGE_CHANNELS = 4
_IMAGE_SIDE = 32


def join_rearranging(program: HtpProgram) -> HtpProgram:
    """Join each chain of such ops. It moves data if any op does; turning an input image is a kind of its own."""
    program = join_chains(program, _grow)
    kernels = tuple(dataclasses.replace(kernel, kind=_kind(kernel, program)) for kernel in program.kernels)
    return dataclasses.replace(program, kernels=kernels)


def _kind(kernel: Kernel, program: HtpProgram) -> str | None:
    if kernel.op not in _REARRANGING or kernel.kind == "reshape":
        return kernel.kind
    if _turns_image(kernel, program):
        return "image_layout"
    return net_kind([program.source.call(node) for node in kernel.nodes]) or kernel.kind


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if kernel.op not in _REARRANGING or reader.op not in _REARRANGING:
        return None
    # A change of shape may come first: the op that moves data decides the kind.
    kind = max(kernel.kind, reader.kind, key=lambda kind: _MOVING.index(kind or "reshape"))
    return Kernel((*kernel.nodes, *reader.nodes), kind)


def _turns_image(kernel: Kernel, program: HtpProgram) -> bool:
    """Whether an image of few channels is turned, on its way in or out."""
    if kernel.kind != "transpose":
        return False
    names = (kernel.nodes[0].inputs[0], kernel.outputs[0])
    shapes = [program.tensors[name].shape for name in names if name is not None]
    return any(
        len(shape) == 4 and shape[0] == 1 and shape[1] <= _IMAGE_CHANNELS and shape[2] >= _IMAGE_SIDE
        for shape in shapes
    )


# The kind of movement that a whole chain of transposes and reshapes amounts to.


_MOST = 1 << 22
"""The most elements that are followed one by one; the kind of a larger chain is that of its parts."""


def net_kind(calls: Sequence[OpCall]) -> str | None:
    """``reshape`` if all elements end up in their original order, ``permute`` if rows of 32 stay together.

    None if the chain is too large to be followed, or moves single elements.
    """
    source = calls[0].inputs[0]
    if source is None or source.elements > _MOST:
        return None
    order = np.arange(source.elements, dtype=np.int32).reshape(source.shape)
    for call in calls:
        perm = call.params.get("perm")
        order = order.reshape(call.outputs[0].shape) if perm is None else order.transpose(np.ravel(perm))
    steps = np.diff(order.ravel()) == 1
    if steps.all():
        return "reshape"
    breaks = np.flatnonzero(~steps) + 1
    return "permute" if not np.any(breaks % _ROW) else None


_ROW = 32
