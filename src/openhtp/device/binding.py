"""Turns a client's description of its memory into arrays that a program is bound to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec, batched
from openhtp.device.contexts import DeviceGraph
from openhtp.engine.protocol import MappingProgram, Run, SharedRange
from openhtp.rpc import frames
from openhtp.rpc.shm import SharedBuffer


def bind_ports(
    graph: DeviceGraph, memories: dict[int, SharedBuffer], key: bytes, count: int, batch: int, *, with_dims: bool
) -> list[Run]:
    """Check everything that a client says about its memory, then bind one Run per piece of the batch.

    The client's own library has checked it too; this is for clients that lie.
    """
    try:
        bindings, dims = frames.unpack_bindings(key, count, with_dims=with_dims)
    except ValueError as error:
        raise InvalidArgument(str(error), st.QNN_GRAPH_ERROR_INVALID_ARGUMENT) from error
    if not 1 <= batch <= 4096:
        raise InvalidArgument(f"batch multiple {batch}", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)
    arrays: dict[int, npt.NDArray[Any]] = {}
    ranges: dict[str, SharedRange] = {}
    for index, binding in enumerate(bindings):
        if binding.port >= len(graph.ports) or binding.port in arrays:
            raise InvalidArgument(
                f"port {binding.port} is unknown or bound twice", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        spec = graph.ports[binding.port]
        shape = _shape(spec, dims[index] if dims is not None else spec.shape, batch)
        memory = memories.get(binding.memory)
        arrays[binding.port] = _view(spec, memory, binding, shape)
        if memory is not None:
            ranges[spec.name] = SharedRange(memory.fd, memory.nbytes, binding.offset)
    for port, spec in enumerate(graph.ports):
        if port not in arrays:
            arrays[port] = _left_out(spec, batch)
    return [_bind_piece(graph, arrays, ranges, batch, number) for number in range(batch)]


def _shape(spec: TensorSpec, dims: tuple[int, ...], batch: int) -> tuple[int, ...]:
    if not spec.accepts(dims):
        raise InvalidArgument(
            f"dimensions {list(dims)} for tensor {spec}", st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE
        )
    return batched(dims, batch)


def _view(
    spec: TensorSpec, memory: SharedBuffer | None, binding: frames.Binding, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    if memory is None:
        raise InvalidArgument(
            f"memory {binding.memory} of tensor {spec.name!r} is not registered", st.QNN_GRAPH_ERROR_INVALID_TENSOR
        )
    nbytes = int(np.prod(shape, dtype=object)) * spec.dtype.itemsize
    if binding.offset % spec.dtype.itemsize or binding.offset + nbytes > memory.nbytes:
        raise InvalidArgument(
            f"tensor {spec} needs {nbytes} bytes at offset {binding.offset}, the memory has {memory.nbytes}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    return memory.array(binding.offset, shape, spec.dtype.numpy)


def _left_out(spec: TensorSpec, batch: int) -> npt.NDArray[Any]:
    """A stand-in for an optional tensor: an input reads as zero, an output goes nowhere."""
    if not spec.kind.is_optional:
        raise InvalidArgument(f"tensor {spec.name!r} is missing", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
    zero = getattr(spec.quant, "zero_point", 0) if spec.dtype.is_fixed_point else 0
    return np.full(batched(spec.shape, batch), zero, spec.dtype.numpy)


def _bind_piece(
    graph: DeviceGraph,
    arrays: dict[int, npt.NDArray[Any]],
    ranges: dict[str, SharedRange],
    batch: int,
    number: int,
) -> Run:
    pieces = {graph.ports[port].name: array for port, array in arrays.items()}
    if batch > 1:
        for name, array in pieces.items():
            rows = array.shape[0] // batch
            pieces[name] = array[number * rows : (number + 1) * rows]
    if not isinstance(graph.loaded, MappingProgram):
        return graph.loaded.bind(pieces)
    starts = {
        name: whole._replace(offset=whole.offset + number * pieces[name].nbytes) for name, whole in ranges.items()
    }
    return graph.loaded.bind_shared(pieces, starts)
