"""Checks the arguments of an execute call before anything is changed, and sorts them into ports.

A port is the position of an input or output in the program: inputs first, then outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from openhtp.core import status as st
from openhtp.core.checks import shown, type_in_words
from openhtp.core.errors import InvalidArgument
from openhtp.core.status import Status
from openhtp.core.tensor import TensorSpec, batched
from openhtp.rpc import frames
from openhtp.runtime.objects.argument_checks import MAX_BATCH
from openhtp.runtime.objects.mem import Mem
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.objects.mem import ContextMemory


Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Values = Mapping[Any, Any]
# The addresses of an array's first byte and of the one after its last.
Span = tuple[int, int]

_ARGUMENT = st.QNN_GRAPH_ERROR_INVALID_ARGUMENT
_TENSOR = st.QNN_GRAPH_ERROR_INVALID_TENSOR


class Ports:
    """The inputs and outputs of a finalized graph, found by name, by tensor id or by Tensor."""

    def __init__(self, specs: list[TensorSpec], inputs: int, tensors: Mapping[str, Tensor]) -> None:
        self.specs = specs
        self.inputs = inputs
        self.is_dynamic = any(spec.is_dynamic for spec in specs)
        self.sparse = [port for port, spec in enumerate(specs[:inputs]) if spec.sparse_elements is not None]
        self.required = [port for port, spec in enumerate(specs) if not spec.kind.is_optional]
        self.required_inputs = [port for port in self.required if port < inputs]
        self._find: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
        for port, spec in enumerate(specs):
            table = self._find[port >= inputs]
            table[spec.name] = port
            tensor = tensors.get(spec.name)
            if tensor is not None:
                table[tensor.id] = table[tensor] = port

    def input(self, key: Any) -> int:
        """Port of an input."""
        return self._port(key, 0, "input")

    def output(self, key: Any) -> int:
        """Port of an output."""
        return self._port(key, 1, "output")

    def _port(self, key: Any, side: int, role: str) -> int:
        try:
            port = self._find[side].get(key)
        except TypeError:
            port = None
        if port is None:
            names = ", ".join(repr(spec.name) for spec in self._specs_of_side(side))
            wanted = shown(key.name if isinstance(key, Tensor) else key)
            _refuse(f"{wanted} is not an {role} of this graph; expected {names or 'none'}", _TENSOR)
        return port

    def _specs_of_side(self, side: int) -> list[TensorSpec]:
        return self.specs[self.inputs :] if side else self.specs[: self.inputs]


class Arguments:
    """The arguments of one call: the ports in registered memory, the raw ports, and the sizes of all."""

    __slots__ = (
        "_outputs",
        "_packed",
        "_read_raw",
        "_written_raw",
        "batch",
        "count",
        "dims",
        "has_raw_targets",
        "raw_count",
        "raw_inputs",
        "raw_outputs",
        "registered",
        "written",
    )

    def __init__(self) -> None:
        self.batch = 1
        # Actual sizes by port, only where they differ from the declared ones.
        self.dims: dict[int, Shape] = {}
        self.registered: dict[int, tuple[Mem, int, Array | None]] = {}
        self.raw_inputs: dict[int, Array] = {}
        self.raw_outputs: dict[int, Array | None] = {}
        # Registered arrays that the device writes to.
        self.written: tuple[Array, ...] = ()
        # Ports whose data is copied, and ports that are bound at all: optional ones may be left out.
        self.raw_count = self.count = 0
        # Whether results go to plain arrays of the caller's.
        self.has_raw_targets = False
        # Found out when they are first asked for: few calls need them.
        self._read_raw: tuple[Span, ...] | None = None
        self._written_raw: tuple[Span, ...] | None = None
        # Made by the first call, as later ones have the same arguments.
        self._packed: bytes | None = None
        self._outputs: dict[str, Array] | None = None

    def still_hold(self) -> bool:
        """Whether the checks of the registered arrays still hold.

        An array never moves. Its shape and type may be set in place, but its bytes stay the same, so these are
        not checked again. Only its writeable flag is.
        """
        for array in self.written:  # noqa: SIM110  # every call comes through here: a generator takes longer
            if not array.flags.writeable:
                return False
        return True

    @property
    def packed(self) -> bytes:
        """The bindings of registered ports as they go into the frame, if all ports have their declared sizes."""
        if self._packed is None:
            bindings = self.registered.items()
            self._packed = frames.pack_bindings(
                [frames.Binding(port, mem.number, offset) for port, (mem, offset, _) in bindings]
            )
        return self._packed

    def registered_outputs(self, ports: Ports) -> dict[str, Array]:
        """The outputs in registered memory, by name, in a dictionary of the caller's own."""
        if self._outputs is None:
            outputs: dict[str, Array] = {}
            for port, (_, _, array) in self.registered.items():
                if port >= ports.inputs:
                    assert array is not None  # a Mem got its array when the sizes were settled
                    outputs[ports.specs[port].name] = array
            self._outputs = outputs
        return self._outputs.copy()

    @property
    def read_raw(self) -> tuple[Span, ...]:
        """Where its plain inputs lie."""
        if self._read_raw is None:
            self._read_raw = _spans(self.raw_inputs.values())
        return self._read_raw

    @property
    def read_registered(self) -> tuple[Span, ...]:
        """Where its inputs in registered memory lie."""
        is_written = {id(array) for array in self.written}
        arrays = [array for _, _, array in self.registered.values()]
        return _spans([array for array in arrays if id(array) not in is_written])

    @property
    def read_anywhere(self) -> tuple[Span, ...]:
        """Where all its inputs lie."""
        return self.read_raw + self.read_registered

    @property
    def written_raw(self) -> tuple[Span, ...]:
        """Where results go that are to be written to plain arrays of the caller's."""
        if self._written_raw is None:
            self._written_raw = _spans(self.raw_outputs.values())
        return self._written_raw

    @property
    def written_anywhere(self) -> tuple[Span, ...]:
        """Where all results go."""
        return self.written_raw + _spans(self.written)


def _spans(arrays: Iterable[Array | None]) -> tuple[Span, ...]:
    return tuple([_span(array) for array in arrays if array is not None and array.size])


def _span(array: Array) -> Span:
    if array.flags.c_contiguous:
        begin: int = array.__array_interface__["data"][0]
        return begin, begin + array.nbytes
    return byte_bounds(array)


def check_arguments(
    ports: Ports,
    memory: ContextMemory,
    inputs: Values | None,
    outputs: Values | None,
    infer_dims: Callable[[dict[str, Shape]], dict[str, Shape]],
) -> Arguments:
    """Sort the values of a call into ports. If a value is wrong, raise before anything is changed."""
    arguments = Arguments()
    sizes: dict[int, Shape] = {}
    _check_inputs(ports, memory, inputs, arguments, sizes)
    if outputs is not None:
        _check_outputs(ports, memory, outputs, arguments, sizes)
        arguments.has_raw_targets = bool(arguments.raw_outputs)
    if sizes or ports.is_dynamic:
        _settle_sizes(ports, arguments, sizes, infer_dims)
    if outputs is None:
        for port in range(ports.inputs, len(ports.specs)):
            arguments.raw_outputs[port] = None
    arguments.raw_count = len(arguments.raw_inputs) + len(arguments.raw_outputs)
    arguments.count = arguments.raw_count + len(arguments.registered)
    for port, (mem, offset, _) in arguments.registered.items():
        if offset < 0:  # the Mem itself was given, not an array on it
            spec = ports.specs[port]
            shape = arguments.dims.get(port, spec.shape)
            full = (shape[0] * arguments.batch, *shape[1:]) if shape else shape
            arguments.registered[port] = memory.place_for(mem, spec, full)
    if arguments.registered:
        arguments.written = tuple(
            array
            for port, (_, _, array) in arguments.registered.items()
            if port >= ports.inputs and array is not None
        )
    return arguments


def _check_inputs(
    ports: Ports, memory: ContextMemory, inputs: Values | None, arguments: Arguments, sizes: dict[int, Shape]
) -> None:
    # A dictionary is a mapping: the question takes longer.
    if inputs is not None and type(inputs) is not dict and not isinstance(inputs, Mapping):
        _refuse(f"inputs is {type_in_words(inputs)}; expected a mapping from tensor to value", _ARGUMENT)
    if not inputs:
        if ports.required_inputs or inputs is not None:
            names = ", ".join(repr(ports.specs[port].name) for port in ports.required_inputs)
            expected = f"values for {names}" if names else "None, as the graph has no inputs"
            _refuse(f"inputs is {inputs!r}; expected {expected}", _ARGUMENT)
        return
    for key, value in inputs.items():
        port = ports.input(key)
        if port in arguments.registered or port in arguments.raw_inputs:
            _refuse(f"input {ports.specs[port].name!r} is given twice", _TENSOR)
        registered = _registered(memory, value)
        if registered is not None:
            array = registered[2]
            if array is not None:
                _check_type(ports.specs[port], array, "input")
            arguments.registered[port] = registered
        else:
            array = arguments.raw_inputs[port] = _raw_input(ports.specs[port], value)
        if array is not None and array.shape != ports.specs[port].shape:
            sizes[port] = array.shape
    for port in ports.required_inputs:
        if port not in arguments.registered and port not in arguments.raw_inputs:
            names = ", ".join(repr(getattr(key, "name", key)) for key in inputs)
            _refuse(f"input {ports.specs[port]} is missing; given were {names}", _TENSOR)


def _check_outputs(
    ports: Ports, memory: ContextMemory, outputs: Values, arguments: Arguments, sizes: dict[int, Shape]
) -> None:
    if type(outputs) is not dict and not isinstance(outputs, Mapping):
        _refuse(f"outputs is {type_in_words(outputs)}; expected a mapping from tensor to buffer", _ARGUMENT)
    if not outputs:
        _refuse("outputs is empty; pass None to have them allocated", _ARGUMENT)
    for key, value in outputs.items():
        port = ports.output(key)
        if port in arguments.registered or port in arguments.raw_outputs:
            _refuse(f"output {ports.specs[port].name!r} is given twice", _TENSOR)
        registered = _registered(memory, value)
        if registered is not None:
            array = registered[2] if registered[2] is None else _output_array(ports.specs[port], registered[2])
            arguments.registered[port] = registered
        else:
            array = None if value is None else _output_array(ports.specs[port], value)
            arguments.raw_outputs[port] = array
        if array is not None and array.shape != ports.specs[port].shape:
            sizes[port] = array.shape
    for port in ports.required:
        if port >= ports.inputs and port not in arguments.registered and port not in arguments.raw_outputs:
            _refuse(f"output {ports.specs[port]} is missing", _TENSOR)


def _registered(memory: ContextMemory, value: Any) -> tuple[Mem, int, Array | None] | None:
    """Where a value lies in registered memory; None if it is plain. Offset -1: decided when sizes are known."""
    if isinstance(value, np.ndarray):
        registered = memory.place_of(value)
        return None if registered is None else (registered.mem, registered.offset, value)
    if isinstance(value, Mem):
        memory.check_own(value)
        return (value, -1, None)
    return None


def _raw_input(spec: TensorSpec, value: Any) -> Array:
    """A raw input as an array of the tensor's type."""
    if isinstance(value, Sparse):
        return value.densify(spec)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _from_bytes(spec, value)
    if not isinstance(value, np.ndarray):
        if value is None:
            _refuse(f"input {spec.name!r} is None; expected {spec}", _TENSOR)
        try:
            array = np.asarray(value, spec.dtype.numpy)
        except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            _refuse(f"input {spec} cannot be made from {type_in_words(value)}: {error}", _TENSOR)
    else:
        array = value
    _check_type(spec, array, "input")
    return array


def _from_bytes(spec: TensorSpec, value: bytes | bytearray | memoryview) -> Array:
    view = memoryview(value)
    nbytes = view.nbytes
    if not view.c_contiguous:
        _refuse(f"the buffer for tensor {spec} has gaps; expected contiguous memory", _TENSOR)
    if nbytes < spec.nbytes or nbytes % spec.nbytes or (not spec.shape and nbytes != spec.nbytes):
        _refuse(f"buffer of {nbytes} bytes for tensor {spec}; expected {spec.nbytes} or a multiple", _TENSOR)
    array = np.frombuffer(value, spec.dtype.numpy)
    batch = nbytes // spec.nbytes
    return array.reshape(batched(spec.shape, batch))


def _output_array(spec: TensorSpec, value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        _refuse(
            f"output {spec.name!r} is {type_in_words(value)}; expected an array or registered memory",
            _TENSOR,
        )
    _check_type(spec, value, "output")
    if not value.flags.writeable:
        _refuse(f"output array for {spec.name!r} is read-only", _TENSOR)
    return value


def _check_type(spec: TensorSpec, array: Array, role: str) -> None:
    if array.dtype != spec.dtype.numpy:
        _refuse(
            f"{role} {spec.name!r} is {array.dtype}; expected {spec.dtype.numpy} ({spec.dtype.short})",
            _TENSOR,
        )
    if array.ndim != len(spec.shape):
        _refuse(f"{role} {spec.name!r} has shape {list(array.shape)}; expected {list(spec.shape)}", _TENSOR)


def _settle_sizes(
    ports: Ports,
    arguments: Arguments,
    sizes: dict[int, Shape],
    infer_dims: Callable[[dict[str, Shape]], dict[str, Shape]],
) -> None:
    """Tell batch multiples, dynamic dimensions and mistakes apart."""
    arguments.batch = _batch_of(ports, arguments, sizes)
    input_sizes: dict[str, Shape] = {}
    for port, shape in sizes.items():
        spec = ports.specs[port]
        single = (shape[0] // arguments.batch, *shape[1:]) if shape else shape
        if single == spec.shape:
            continue
        check_dynamic(spec, single)
        arguments.dims[port] = single
        if port < ports.inputs:
            input_sizes[spec.name] = single
    if not ports.is_dynamic:
        return
    for name, shape in infer_dims(input_sizes).items():
        port = ports.output(name)
        wanted = arguments.dims.get(port)
        if wanted is not None and wanted != shape:
            _refuse(
                f"output {name!r} has shape {list(wanted)}, but this execution makes {list(shape)}",
                st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE,
            )
        if shape != ports.specs[port].shape:
            arguments.dims[port] = shape


def check_sparse(ports: Ports, arguments: Arguments) -> None:
    """Check the present contents of sparse inputs: they alone can change without a trace."""
    for port in ports.sparse:
        array = arguments.registered[port][2] if port in arguments.registered else arguments.raw_inputs.get(port)
        if array is not None:
            check_elements(ports.specs[port], array, arguments.batch)


def _batch_of(ports: Ports, arguments: Arguments, sizes: dict[int, Shape]) -> int:
    multiples: dict[int, int] = {}
    for port in (*arguments.registered, *arguments.raw_inputs, *arguments.raw_outputs):
        spec = ports.specs[port]
        shape = sizes.get(port)
        if port in arguments.registered and arguments.registered[port][2] is None:
            continue  # a Mem alone has no shape to compare
        if port in arguments.raw_outputs and arguments.raw_outputs[port] is None:
            continue
        if shape is None or not spec.shape or spec.free[0]:
            multiples[port] = 1
        elif shape[0] % spec.shape[0] or shape[0] == 0 or (not spec.dynamic and shape[1:] != spec.shape[1:]):
            _refuse(_wrong_shape(spec, shape), _TENSOR)
        else:
            multiples[port] = shape[0] // spec.shape[0]
    batch = max(multiples.values(), default=1)
    for port, multiple in multiples.items():
        spec = ports.specs[port]
        if multiple != batch:
            _refuse(
                f"tensor {spec.name!r} has batch multiple {multiple}, another has {batch};"
                " all inputs and outputs must have the same",
                _TENSOR,
            )
    if batch > MAX_BATCH:
        _refuse(f"a batch multiple of {batch}; expected at most {MAX_BATCH}", _TENSOR)
    if batch > 1 and ports.is_dynamic:
        _refuse("a batch multiple and dynamic dimensions cannot be used in one graph", _TENSOR)
    return batch


def check_dynamic(spec: TensorSpec, shape: Shape) -> None:
    """Refuse a shape of the right rank that the tensor cannot have in any execution."""
    if spec.accepts(shape):
        return
    if any(size != full and not free for size, full, free in zip(shape, spec.shape, spec.free, strict=True)):
        _refuse(_wrong_shape(spec, shape), _TENSOR)
    _refuse(
        f"tensor {spec.name!r} has shape {list(shape)}; its dimensions go up to {list(spec.shape)}",
        st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE,
    )


def _wrong_shape(spec: TensorSpec, shape: Shape) -> str:
    return (
        f"tensor {spec.name!r} has shape {list(shape)}; expected {list(spec.shape)},"
        " or a multiple of it in the first (batch) dimension"
    )


def _refuse(message: str, status: Status) -> NoReturn:
    raise InvalidArgument(message, status)


@dataclass(frozen=True, slots=True)
class Sparse:
    """``values[i]`` stands at ``indices[i]`` (one coordinate per dimension); everything else is zero."""

    indices: npt.ArrayLike
    values: npt.ArrayLike

    def densify(self, spec: TensorSpec) -> npt.NDArray[Any]:
        """The whole tensor. Raises if there are more elements than ``spec`` allows, or if one lies outside."""
        if not isinstance(spec, TensorSpec):
            raise InvalidArgument(
                f"spec is {shown(spec)}; expected a TensorSpec", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        try:
            indices, values = np.asarray(self.indices), np.asarray(self.values, spec.dtype.numpy)
        except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            raise InvalidArgument(
                f"sparse value for {spec} cannot be read: {error}", st.QNN_GRAPH_ERROR_TENSOR_SPARSITY
            ) from error
        if spec.sparse_elements is None:
            raise InvalidArgument(
                f"tensor {spec.name!r} was not created sparse; pass an array", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        if values.ndim != 1 or indices.dtype.kind not in "iu" or indices.shape != (len(values), spec.rank):
            raise InvalidArgument(
                f"sparse value for {spec} has indices {indices.dtype}{list(indices.shape)} and values"
                f" {list(values.shape)}; expected whole numbers [n, {spec.rank}] and [n]",
                st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
            )
        if len(values) > spec.sparse_elements:
            raise InvalidArgument(
                f"sparse value for {spec} specifies {len(values)} elements; at most {spec.sparse_elements} fit",
                st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
            )
        if np.any(indices < 0) or np.any(indices >= np.array(spec.shape)):
            raise InvalidArgument(
                f"sparse value for {spec} has an index outside of its shape", st.QNN_GRAPH_ERROR_TENSOR_SPARSITY
            )
        dense = np.full(spec.shape, _zero(spec), spec.dtype.numpy)
        dense[tuple(indices.T)] = values
        return dense


def check_elements(spec: TensorSpec, dense: npt.NDArray[Any], batch: int) -> None:
    """Refuse a whole tensor that has more non-zero elements than ``spec`` allows."""
    assert spec.sparse_elements is not None
    specified, most = int(np.count_nonzero(dense != _zero(spec))), spec.sparse_elements * batch
    if specified > most:
        raise InvalidArgument(
            f"tensor {spec} has {specified} elements that are not zero; at most {most} fit",
            st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
        )


def _zero(spec: TensorSpec) -> int:
    """The stored value that stands for zero."""
    return int(getattr(spec.quant, "zero_point", 0)) if spec.dtype.is_fixed_point else 0
