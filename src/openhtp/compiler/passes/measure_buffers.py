"""Measures the size and the lifetime of each tensor between kernels."""

from __future__ import annotations

import dataclasses

from openhtp.core.dtype import DType
from openhtp.core.precision import FloatPrecision
from openhtp.core.tensor import TensorSpec
from openhtp.program.htp_program import Buffer, HtpProgram


def measure_buffers(program: HtpProgram) -> HtpProgram:
    """Give every tensor that a kernel passes to another, or to the client, a buffer with its lifetime."""
    end = len(program.kernels) - 1
    first = dict.fromkeys((spec.name for spec in program.inputs), 0)
    last = dict(first)
    for index, kernel in enumerate(program.kernels):
        last.update((name, index) for name in kernel.inputs if name not in program.statics)
        for name in kernel.outputs:
            first[name] = last[name] = index
    last.update((spec.name, end) for spec in program.outputs)
    half = program.options.precision is FloatPrecision.FLOAT16
    buffers = tuple(
        Buffer(name, spec.elements * element_bytes(spec, half=half), begin, last[name])
        for name, begin in first.items()
        for spec in (program.tensors[name],)
    )
    return dataclasses.replace(program, buffers=buffers)


def element_bytes(spec: TensorSpec, *, half: bool) -> int:
    """Bytes of an element on the chip, which holds floats in half precision unless the graph says otherwise."""
    return 2 if half and spec.dtype is DType.FLOAT_32 else spec.dtype.itemsize
