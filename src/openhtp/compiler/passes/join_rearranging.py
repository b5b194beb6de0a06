"""A chain of transposes and reshapes is one movement."""

from __future__ import annotations

import dataclasses

from openhtp.compiler.joining import join_chains
from openhtp.program.htp_program import HtpProgram, Kernel

_REARRANGING = ("Transpose", "Reshape")
_IMAGE_CHANNELS = 4
_IMAGE_SIDE = 32


def join_rearranging(program: HtpProgram) -> HtpProgram:
    """Join each chain of such ops. It moves data if any of them does; turning an input image is its own kind."""
    program = join_chains(program, _grow)
    kernels = tuple(
        dataclasses.replace(kernel, kind="image_layout") if _turns_image(kernel, program) else kernel
        for kernel in program.kernels
    )
    return dataclasses.replace(program, kernels=kernels)


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if kernel.op not in _REARRANGING or reader.op not in _REARRANGING:
        return None
    kind = "transpose" if "transpose" in (kernel.kind, reader.kind) else kernel.kind
    return Kernel((*kernel.nodes, *reader.nodes), kind)


def _turns_image(kernel: Kernel, program: HtpProgram) -> bool:
    source = kernel.nodes[0].inputs[0]
    if source is None or kernel.kind != "transpose" or kernel.op not in _REARRANGING:
        return False
    shape = program.tensors[source].shape
    return len(shape) == 4 and shape[0] == 1 and shape[1] <= _IMAGE_CHANNELS and shape[2] >= _IMAGE_SIDE
