"""``OrtValue``, a tensor that a program holds, and ``IOBinding``, values named once for many runs.

A value lies on the program's own memory, or on memory that is registered with the session's context: the device
reads and writes it there. Values made for a binding, and outputs that a binding makes room for, are registered.
Arrays of the caller's own are copied once per run.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openhtp.core import tidying
from openhtp.core.checks import items_of, shown, type_in_words as shown_type, whole_number
from openhtp.core.errors import InvalidArgument, OutOfMemory, QnnError, WrongState
from openhtp.core.units import bytes_in_words
from openhtp.engine.onnx_graph import onnx_type
from openhtp.engine.onnxruntime import onnxruntime, part
from openhtp.frontend.onnx_reader import value_type
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.mem import Mem
from openhtp.session.executable import Array, NodeArg, array_for, check_fits, dtype_in_words, type_in_words
from openhtp.session.ort_errors import WrongKind, with_ort_errors

if TYPE_CHECKING:
    from openhtp.session.executable import Executable
    from openhtp.session.inference import InferenceSession

CPU, NPU = "cpu", "npu"


class OrtValue:
    """A tensor. ``device_name()`` is ``npu`` once it lies in memory that a session's device shares.

    A value that was made from the caller's array stays there. Any other value moves to the device's memory when it
    is first bound to a session, unless the caller has asked for its address before.
    """

    def __init__(self, array: Array, *, movable: bool = False) -> None:
        self._array = array
        self._movable = movable
        self._mem: Mem | None = None

    @classmethod
    @with_ort_errors
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = CPU, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor on the array itself, or for ``npu`` on a copy of it."""
        if not isinstance(numpy_obj, np.ndarray):
            raise WrongKind(f"numpy_obj is {shown_type(numpy_obj)}; expected a numpy array")
        if check_device(device_type, device_id) == CPU:
            return cls(numpy_obj)
        return cls(np.array(numpy_obj, order="C"), movable=True)

    @classmethod
    @with_ort_errors
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, onnx_element_type: int) -> OrtValue:
        """A tensor on the bytes of an array, with another type of the same size: bfloat16 on uint16, say."""
        value = cls.ortvalue_from_numpy(data)
        dtype = element_dtype(onnx_element_type)
        if dtype.itemsize != data.itemsize:
            raise InvalidArgument(
                f"onnx_element_type {onnx_element_type} is {dtype} of {dtype.itemsize} bytes; the array's elements"
                f" have {data.itemsize}"
            )
        value._array = value._array.view(dtype)
        return value

    @classmethod
    @with_ort_errors
    def from_dlpack(cls, data: Any) -> OrtValue:
        """A tensor on the memory of another library's, given as that tensor or as its DLPack capsule."""
        source = data if hasattr(data, "__dlpack__") else _DlpackCapsule(data)
        try:
            return cls(np.from_dlpack(source))
        except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
            raise WrongKind(f"data is {shown_type(data)} that DLPack cannot hand over: {error}") from error

    @classmethod
    @with_ort_errors
    def ort_value_from_sparse_tensor(cls, sparse_tensor: Any) -> OrtValue:
        """A value that holds ONNX Runtime's sparse tensor; models with sparse inputs run on its CPU kernels."""
        try:
            theirs = onnxruntime.OrtValue.ort_value_from_sparse_tensor(sparse_tensor)
        except (AttributeError, TypeError) as error:
            kind = shown_type(sparse_tensor)
            raise WrongKind(f"sparse_tensor is {kind}; expected openhtp.ort.SparseTensor") from error
        return ForeignValue(theirs)

    @classmethod
    @with_ort_errors
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = CPU,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A tensor of zeros; the type is numpy's or the number of an ONNX type."""
        check_device(device_type, device_id)
        wanted, dtype = checked_shape(shape), element_dtype(element_type)
        try:
            return cls(np.zeros(wanted, dtype), movable=True)
        except MemoryError as error:
            nbytes = bytes_in_words(math.prod(wanted) * dtype.itemsize)
            raise OutOfMemory(
                f"a tensor of shape {shown(list(wanted))} and type {dtype.name} needs {nbytes}; this computer does"
                " not have that"
            ) from error
        except ValueError as error:  # more than can be addressed, or too many axes
            raise InvalidArgument(f"shape is {shown(list(wanted))}: {error}") from error

    def numpy(self) -> Array:
        """The tensor as an array, on the memory of the value."""
        self._movable = False
        return self._array

    def plain(self) -> Any:
        """The value that ONNX Runtime takes in its place."""
        return self.numpy()

    @property
    def _ortvalue(self) -> Any:
        """ONNX Runtime's own value on the same memory, under the name that it has there."""
        return self._get_c_value()

    def _get_c_value(self) -> Any:
        return self.in_ort()._ortvalue

    def in_ort(self) -> Any:
        """ONNX Runtime's own ``OrtValue`` on the same memory."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(self.numpy())

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.numpy().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.numpy().__dlpack_device__()
        return int(kind), int(number)

    def as_sparse_tensor(self) -> Any:
        """Refused: this value is dense."""
        raise InvalidArgument(f"the value is a {self.data_type()}, no sparse tensor")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def data_ptr(self) -> int:
        """The address of its first element."""
        return int(self.numpy().ctypes.data)

    @with_ort_errors
    def update_inplace(self, np_arr: Array) -> None:
        """Overwrite the tensor with an array of the same shape and type."""
        content = np.asarray(np_arr)
        if content.shape != self._array.shape or content.dtype != self._array.dtype:
            raise InvalidArgument(
                f"np_arr is {content.dtype}{list(content.shape)}; the value is"
                f" {self._array.dtype}{list(self._array.shape)}"
            )
        np.copyto(self._array, content)

    def device_name(self) -> str:
        """``cpu``, or ``npu`` if it lies in memory that the device shares."""
        return CPU if self._mem is None else NPU

    def shape(self) -> list[int]:
        """Sizes of its dimensions."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """``tensor(float)`` and its like."""
        return type_in_words(self._array.dtype)

    def element_type(self) -> int:
        """The number of its ONNX type."""
        return onnx_type(self._array.dtype)

    def tensor_size_in_bytes(self) -> int:
        """Bytes that it takes."""
        return self._array.nbytes

    def has_value(self) -> bool:
        """Always: there are no optional values here."""
        return True

    def is_tensor(self) -> bool:
        """Always."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Never."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Never."""
        return False

    def __repr__(self) -> str:
        return f"<OrtValue {self.data_type()}{self.shape()} on {self.device_name()}>"


class _DlpackCapsule:
    """A DLPack capsule as an object that numpy takes; capsules say nothing of their device but CPU is."""

    def __init__(self, capsule: Any) -> None:
        if type(capsule).__name__ != "PyCapsule":
            raise WrongKind(f"data is {shown_type(capsule)}; expected a DLPack capsule or what makes one")
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class ForeignValue(OrtValue):
    """A value of ONNX Runtime's that is no dense tensor; only models on its CPU kernels can take it."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        super().__init__(np.empty(0, np.uint8))

    def plain(self) -> Any:
        """ONNX Runtime's own value."""
        return self._theirs

    def in_ort(self) -> Any:
        """ONNX Runtime's own ``OrtValue``."""
        return self._theirs

    @with_ort_errors
    def numpy(self) -> Array:
        """Refused: there is no array behind it."""
        raise InvalidArgument(f"the value is a {self.data_type()}; only a dense tensor is an array")

    def as_sparse_tensor(self) -> Any:
        """The sparse tensor."""
        return self._theirs.as_sparse_tensor()

    def shape(self) -> list[int]:
        """Sizes of the dense tensor that it stands for."""
        return list(self._theirs.as_sparse_tensor().dense_shape())

    def data_type(self) -> str:
        """``sparse_tensor(float)`` and its like."""
        return str(self._theirs.data_type())

    def element_type(self) -> int:
        """The number of its ONNX type."""
        return int(self._theirs.element_type())

    def is_tensor(self) -> bool:
        """Never."""
        return False

    def is_sparse_tensor(self) -> bool:
        """Always."""
        return True


def array_of(value: OrtValue) -> Array:
    """The tensor as an array; unlike ``numpy()``, this leaves the value free to move."""
    return value._array


def plain_arrays(feeds: Mapping[str, Any], inputs: Sequence[NodeArg]) -> dict[str, Any]:
    """Feeds for ONNX Runtime, which does not know our values; lists for tensors become arrays of their type."""
    dtypes = {item.name: dtype_in_words(item.type) for item in inputs}
    return {name: _plain(name, value, dtypes.get(name)) for name, value in feeds.items()}


def _plain(name: str, value: Any, dtype: np.dtype[Any] | None) -> Any:
    if isinstance(value, OrtValue):
        return value.plain()
    return array_for(name, value, dtype) if isinstance(value, list) and dtype is not None else value


def move_to(value: OrtValue, context: Context | None) -> None:
    """Move a value into memory registered with a context, if it may move and is not there already."""
    if context is None or not value._movable or not value._array.nbytes:
        return
    mem = context.register_memory(value._array.nbytes)
    array = mem.array("value", shape=value._array.shape, dtype=value._array.dtype)
    np.copyto(array, value._array)
    value._array, value._mem, value._movable = array, mem, False
    # Not here and now: the garbage collector may run on any thread.
    weakref.finalize(value, tidying.post, (_take_back, (mem,))).atexit = False


def _take_back(mem: Mem) -> None:
    with contextlib.suppress(QnnError):  # the session was closed, or a run still uses it: then it goes with that
        mem.deregister()


def array_at(address: int, shape: Sequence[int], element_type: Any, name: str) -> Array:
    """The array that lies at an address of this process."""
    number, sizes, dtype = whole_number(address), checked_shape(shape), element_dtype(element_type)
    if number is None or number <= 0:
        raise InvalidArgument(f"buffer_ptr of {name!r} is {shown(address)}; expected the address of its memory")
    nbytes = int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
    buffer = memoryview((ctypes.c_ubyte * nbytes).from_address(number))
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(sizes)


def check_device(device_type: object, device_id: object) -> str:
    """Refuse a device that a value cannot lie on."""
    name = device_type.lower() if isinstance(device_type, str) else device_type
    if not isinstance(name, str) or name not in (CPU, NPU):
        raise InvalidArgument(f"device_type is {shown(device_type)}; expected 'cpu' or 'npu'")
    if whole_number(device_id) != 0:
        raise InvalidArgument(f"device_id is {shown(device_id)}; there is one device, 0")
    return name


def check_vector(name: str, values: object) -> None:
    """Refuse what is no list of ONNX Runtime's own values."""
    if not isinstance(values, part("capi.onnxruntime_pybind11_state").OrtValueVector):
        raise WrongKind(f"{name} is {shown_type(values)}; expected an OrtValueVector")


def fed_arrays(feed_names: object, feeds: Any) -> dict[str, Array]:
    """The arrays of a vector of values, by the names of the inputs."""
    check_vector("feeds", feeds)
    names = items_of(feed_names, len(feeds) + 1) or []
    if len(names) != len(feeds) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"feed_names is {shown(feed_names)}; expected the names of {len(feeds)} inputs")
    return {name: feeds[number].numpy() for number, name in enumerate(names)}


def checked_shape(shape: object) -> tuple[int, ...]:
    """Sizes of dimensions."""
    sizes = [whole_number(size) for size in items_of(shape, 64) or ()]
    if items_of(shape, 64) is None or any(size is None or size < 0 for size in sizes):
        raise InvalidArgument(f"shape is {shown(shape)}; expected a list of sizes from 0")
    return tuple(size for size in sizes if size is not None)


def element_dtype(element_type: Any) -> np.dtype[Any]:
    """The numpy type of numpy's or ONNX's name for it."""
    number = whole_number(element_type)
    if number is not None:
        return value_type(number, "element_type")
    try:
        dtype: np.dtype[Any] = np.dtype(element_type)
    except Exception:  # numpy has many ways to refuse
        dtype = np.dtype(object)
    if dtype.hasobject or not dtype.itemsize:
        raise InvalidArgument(f"element_type is {shown(element_type)}; expected a numpy type, or an ONNX number")
    return dtype


class IOBinding:
    """Made by ``InferenceSession.io_binding``, run by ``run_with_iobinding``."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, OrtValue] = {}
        # None: room is made when the shape is known.
        self._outputs: dict[str, OrtValue | None] = {}

    @with_ort_errors
    def bind_cpu_input(self, name: str, arr_on_cpu: npt.ArrayLike) -> None:
        """Read an input from an array, as it is when a run begins."""
        self._bind_input(name, OrtValue(np.asarray(arr_on_cpu)))

    @with_ort_errors
    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Read an input from an address, as it is when a run begins. The memory must stay."""
        check_device(device_type, device_id)
        self._bind_input(name, OrtValue(array_at(buffer_ptr, shape, element_type, name)))

    @with_ort_errors
    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a value."""
        self._bind_input(name, _checked_value(name, ortvalue))

    @with_ort_errors
    def bind_output(
        self,
        name: str,
        device_type: str = CPU,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Write an output to an address or, if none is given, to memory that the session makes for it."""
        check_device(device_type, device_id)
        if buffer_ptr is None:
            self._bind_output(name, None)
            return
        if element_type is None or shape is None:
            raise InvalidArgument(f"output {name!r} has a buffer_ptr; give its element_type and shape as well")
        self._bind_output(name, OrtValue(array_at(buffer_ptr, shape, element_type, name)))

    @with_ort_errors
    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output to a value."""
        self._bind_output(name, _checked_value(name, ortvalue))

    def synchronize_inputs(self) -> None:
        """Do nothing: the next run sees the inputs as written."""

    def synchronize_outputs(self) -> None:
        """Do nothing: a run returns when its outputs are there."""

    @with_ort_errors
    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        missing = [name for name, value in self._outputs.items() if value is None]
        if missing:
            raise WrongState(f"outputs {missing} are not there yet; run_with_iobinding makes them")
        return [value for value in self._outputs.values() if value is not None]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """The outputs of the last run as ONNX Runtime's own values."""
        vector = part("capi.onnxruntime_pybind11_state").OrtValueVector()
        for value in self.get_outputs():
            vector.push_back(value._get_c_value())
        return vector

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Copies of the outputs of the last run."""
        return [array_of(value).copy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs.clear()

    def __repr__(self) -> str:
        return f"<IOBinding of inputs {list(self._inputs)} and outputs {list(self._outputs)}>"

    def _bind_input(self, name: str, value: OrtValue) -> None:
        _check_name(name, "input", [item.name for item in self._session.get_inputs()])
        move_to(value, self._session.executable.value_context)
        self._inputs[name] = value

    def _bind_output(self, name: str, value: OrtValue | None) -> None:
        _check_name(name, "output", [item.name for item in self._session.get_outputs()])
        if value is not None:
            if not array_of(value).flags.writeable:
                raise InvalidArgument(f"output {name!r} is bound to an array that cannot be written")
            move_to(value, self._session.executable.value_context)
        self._outputs[name] = value


# What a session does with its binding


def is_binding_of(binding: object, session: InferenceSession) -> bool:
    """Whether a session made a binding."""
    return isinstance(binding, IOBinding) and binding._session is session


def feeds_of(binding: IOBinding) -> dict[str, Array]:
    """The inputs, as they are now."""
    return {name: array_of(value) for name, value in binding._inputs.items()}


def targets_of(binding: IOBinding, executable: Executable) -> dict[str, Array]:
    """Where outputs go. An output without a value gets one if the device can write its memory itself."""
    for name, value in binding._outputs.items():
        if value is None:
            binding._outputs[name] = executable.room_for(name)
    return {name: array_of(value) for name, value in binding._outputs.items() if value is not None}


def output_names(binding: IOBinding) -> list[str]:
    """The outputs in the order in which they were bound."""
    return list(binding._outputs)


def take_results(binding: IOBinding, results: Mapping[str, Array]) -> None:
    """Take the results of a run; those that were written in place are there already."""
    for name, result in results.items():
        value = binding._outputs.get(name)
        if value is None:
            binding._outputs[name] = OrtValue(result)
        elif array_of(value) is not result:
            check_fits(name, array_of(value), result)
            np.copyto(array_of(value), result)


def _check_name(name: object, kind: str, known: list[str]) -> None:
    if not isinstance(name, str) or name not in known:
        raise InvalidArgument(f"no {kind} is called {shown(name)}; the model has {', '.join(known)}")


def _checked_value(name: str, value: object) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise WrongKind(f"the value for {name!r} is {shown_type(value)}; expected openhtp.ort.OrtValue")
    return value
