"""Op packages with a C interface of the CPU kind: a shared library whose operators run on this processor.

The library's provider fills in a table of functions. An operator is made for each node (``create_op``) from the
node's tensors and parameters, and is then called for every execution, with the tensors' data where it was told.
A library is code: it is only opened if the owner of this process asks for it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.abi.writing import (
    c_text,
    fill_encoding,
    null_tensor,
    op_config,
    scalar_param,
    tensor_param,
    tensor_struct,
)
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import ExecutionError, InvalidArgument, QnnError, UnsupportedFeature, UnsupportedOp
from openhtp.core.files import open_file
from openhtp.core.opcall import OpCall
from openhtp.core.status import Status
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops._node import Arrays, Node, Results
from openhtp.ops._packages import Operator, OpPackage

_Code = ctypes.c_uint64
_MOST_OPERATIONS = 4096
_HEXAGON, _HERE = 164, {"x86_64": 62, "aarch64": 183}
# The types that operators of the CPU kind know, for each of a graph's. Quantized numbers come with their encoding.
_CPU_TYPES = {
    DType.BOOL_8: DType.BOOL_8,
    DType.INT_8: DType.INT_8,
    DType.INT_32: DType.INT_32,
    DType.UINT_8: DType.UINT_8,
    DType.UINT_32: DType.UINT_32,
    DType.FLOAT_32: DType.FLOAT_32,
    DType.FLOAT_16: DType.FLOAT_32,
    DType.SFIXED_POINT_8: DType.INT_8,
    DType.UFIXED_POINT_8: DType.UINT_8,
    DType.SFIXED_POINT_32: DType.INT_32,
    DType.UFIXED_POINT_32: DType.UINT_32,
}
_SCALAR, _TENSOR = 0, 1

_opened: dict[tuple[str, str], OpPackage] = {}
_turn = [threading.Lock()]
# In the child of a fork, another thread of the parent may have had it.
os.register_at_fork(after_in_child=lambda: _turn.__setitem__(0, threading.Lock()))


def open_library(path: str, provider: str) -> OpPackage:
    """The package that a library's provider describes. A library is opened once; the same package is returned."""
    real = os.path.realpath(path)
    with _turn[0]:
        if (real, provider) not in _opened:
            _check_machine(real, path)
            _opened[real, provider] = _CpuLibrary(real, provider).package()
        return _opened[real, provider]


def _check_machine(real: str, path: str) -> None:
    """Say what is wrong with a file before the loader does: most often it was built for the chip."""
    try:
        with open_file(real, most=None, what="an op package", error=InvalidArgument) as (fd, _):
            head = os.pread(fd, 20, 0)
    except QnnError as error:
        error.status = st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND
        raise
    machine = int.from_bytes(head[18:20], "little") if head[:4] == b"\x7fELF" else None
    if machine == _HEXAGON:
        raise UnsupportedFeature(
            f"op package {path!r} holds Hexagon code, which nothing here can run; build it for this computer, as a"
            " package of the CPU kind",
            st.QNN_BACKEND_ERROR_NOT_SUPPORTED,
        )
    if machine != _HERE.get(os.uname().machine):
        raise InvalidArgument(
            f"op package {path!r} is no library for this computer ({os.uname().machine})",
            st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND,
        )


def _ignore() -> int:
    """Do nothing: messages and times of a package are not kept."""
    return 0


_ignored = ctypes.CFUNCTYPE(_Code)(_ignore)


class _CpuLibrary:
    """A library, its table of functions, and what its calls need to stay where it is."""

    def __init__(self, path: str, provider: str) -> None:
        self._title = f"op package {path}:{provider}"
        self._reference = f"{path}:{provider}"
        try:
            self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise InvalidArgument(
                f"{self._title} cannot be loaded: {error}", st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND
            ) from error
        try:
            provide = getattr(self._library, provider)
        except (AttributeError, ValueError):
            raise InvalidArgument(
                f"{self._title}: the library has no function {provider!r}",
                st.QNN_BACKEND_ERROR_OP_PACKAGE_IF_PROVIDER_NOT_FOUND,
            ) from None
        provide.restype, provide.argtypes = _Code, (ctypes.c_void_p,)
        table = struct("OpPackageInterface")()
        self._need(provide(ctypes.addressof(table)), "its provider")
        # Whatever a package may call of it does nothing.
        self._infrastructure = (ctypes.c_void_p * 64)(*[ctypes.cast(_ignored, ctypes.c_void_p).value] * 64)
        self._handle: tuple[ctypes.c_void_p, ...] = ()
        version = (table.version.major, table.version.minor)
        if version[0] == 1:
            self._functions = table.of.v1
            self._call("init", (ctypes.c_void_p,), ctypes.addressof(self._infrastructure))
        elif version[0] == 2:
            self._functions = table.of.v2
            handle = ctypes.c_void_p()
            pointers = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
            infrastructure = ctypes.addressof(self._infrastructure)
            self._call("create", pointers, infrastructure, None, 0, ctypes.addressof(handle))
            self._handle = (handle,)
        else:
            raise UnsupportedFeature(
                f"{self._title} has version {version[0]}.{version[1]} of the interface; expected 1.4 or 2.0",
                st.QNN_BACKEND_ERROR_OP_PACKAGE_UNSUPPORTED_VERSION,
            )

    def _call(self, name: str, kinds: tuple[Any, ...], *values: Any, own: bool = False) -> None:
        """Call a function of the table, with the package's handle if its version has one and it is its ``own``."""
        self._need(self._function(name, kinds, own=own)(*(self._handle if own else ()), *values), name)

    def _function(self, name: str, kinds: tuple[Any, ...], *, own: bool) -> Callable[..., int]:
        address = getattr(self._functions, name)
        if not address:
            self._refuse(f"has no function {name}", st.QNN_BACKEND_ERROR_OP_PACKAGE_REGISTRATION_FAILED)
        kinds = ((ctypes.c_void_p,) if own and self._handle else ()) + kinds
        function: Callable[..., int] = ctypes.CFUNCTYPE(_Code, *kinds)(address)
        return function

    def _need(self, code: int, what: str) -> None:
        if code:
            self._refuse(f"{what} answered {code}", st.QNN_BACKEND_ERROR_OP_PACKAGE_REGISTRATION_FAILED)

    def _refuse(self, problem: str, status: Status) -> None:
        raise InvalidArgument(f"{self._title}: {problem}", status)

    # What it has

    def package(self) -> OpPackage:
        """The package as graphs use it."""
        out = ctypes.c_void_p()
        self._call("get_info", (ctypes.c_void_p,), ctypes.addressof(out))
        info = memory.structure(struct("OpPackageInfo"), out.value or 0, "the package's description")
        name = memory.text(info.name, "the package's name")
        if not 0 < info.num_operations <= _MOST_OPERATIONS:
            self._refuse(f"has {info.num_operations} operations", st.QNN_OP_PACKAGE_ERROR_INVALID_INFO)
        listed = memory.array(ctypes.c_void_p, info.num_operations, info.operations or 0, "the operations' names")
        operators = [self._operator(name, memory.text(address, "an operation's name")) for address in listed]
        return OpPackage(name, _version(info), operators, reference=self._reference)

    def _operator(self, package: str, name: str) -> Operator:
        return Operator(
            name,
            None,
            prepare=lambda node: _CpuOperation(self, package, name, node).compute,
            summary="of a C package",
            inputs=None,
            outputs=None,
            params=None,
            stored=True,
            constraints={
                "tensors are 8-bit or 32-bit, or floats, as operators of the CPU kind take them": _types_are_known,
                f"{package} accepts it (validateOpConfig)": lambda node: self._accepts(package, name, node),
            },
        )

    def _accepts(self, package: str, name: str, node: Node) -> bool:
        """Whether the package's own validator, if it has one, takes the node."""
        if not self._functions.validate:
            return True
        keep: list[Any] = []
        call = OpCall(name, node.name or name, node.inputs, node.outputs, node.params, package)
        inputs = [null_tensor() if spec is None else self._described(spec, node, keep) for spec in node.inputs]
        outputs = [self._described(spec, node, keep) for spec in node.outputs]
        params = [_param(key, value, call.name, keep) for key, value in node.params.items()]
        config = op_config(call, inputs, outputs, params, keep)
        return not self._function("validate", (struct("OpConfig"),), own=True)(*self._handle, config)

    @staticmethod
    def _described(spec: TensorSpec, node: Node, keep: list[Any]) -> Any:
        return tensor_struct(spec, node.statics.get(spec.name) if spec.kind.is_static else None, keep)

    # Its operations

    def make(self, node: int, title: str) -> Any:
        """The implementation of a node, as its structure."""
        out = ctypes.c_void_p()
        kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        function = self._function("create_op", kinds, own=True)
        infrastructure = ctypes.addressof(self._infrastructure)
        code = function(*self._handle, infrastructure, node, ctypes.addressof(out))
        if code or not out.value:
            raise UnsupportedOp(f"operator {title}: createOpImpl answered {code}")
        return struct("CpuOpImpl").from_address(out.value)

    def free(self, address: int) -> None:
        """The implementation is not needed any more."""
        if self._functions.free_op:
            self._function("free_op", (ctypes.c_void_p,), own=True)(*self._handle, address)


def _version(info: Any) -> str:
    """The version of its operations; that of the API if it says none."""
    address = info.opset or info.api
    if not address:
        return "0"
    version = memory.structure(struct("Version"), address, "the package's version")
    return f"{version.major}.{version.minor}.{version.patch}"


def _types_are_known(node: Node) -> bool:
    return all(spec.dtype in _CPU_TYPES for spec in (*node.inputs, *node.outputs) if spec is not None)


def _param(name: str, value: Any, node: str, keep: list[Any]) -> Any:
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "biuf":
        kinds = {"b": DType.BOOL_8, "f": DType.FLOAT_32}
        dtype = kinds.get(array.dtype.kind, DType.INT_32 if array < 0 else DType.UINT_32)
        return scalar_param(name, value, dtype, node, keep)
    spec = TensorSpec(name, array.shape, DType.parse(array.dtype), None, TensorKind.STATIC)
    return tensor_param(name, tensor_struct(spec, array, keep), node, keep)


class _CpuOperation:
    """An operator for one node: its structures, which the package keeps addresses of, and its function."""

    def __init__(self, library: _CpuLibrary, package: str, name: str, node: Node) -> None:
        self._title = f"{package}::{name}"
        self._keep: list[Any] = []
        self._turn = threading.Lock()
        self._inputs = [None if spec is None else self._tensor(spec) for spec in node.inputs]
        self._outputs = [self._tensor(spec) for spec in node.outputs]
        self._specs = node.outputs
        params = [self._param(key, value) for key, value in node.params.items()]
        keep = self._keep
        cpu_node = struct("CpuNode")(
            name=c_text(node.name or name, "the node's name", keep),
            package=c_text(package, "the package's name", keep),
            type=c_text(name, "the operator's name", keep),
            num_params=len(params),
            params=self._pointers(params),
            num_inputs=len(self._inputs),
            inputs=self._pointers(self._inputs),
            num_outputs=len(self._outputs),
            outputs=self._pointers(self._outputs),
        )
        keep.append(cpu_node)
        operation = library.make(ctypes.addressof(cpu_node), self._title)
        self._function = ctypes.CFUNCTYPE(_Code, ctypes.c_void_p)(operation.function)
        self._user_data = operation.user_data
        # The structures go after the implementation that was told where they are.
        weakref.finalize(self, _free, library, ctypes.addressof(operation), keep).atexit = False

    def _tensor(self, spec: TensorSpec) -> Any:
        dims = (ctypes.c_uint32 * max(1, spec.rank))(*spec.shape)
        tensor = struct("CpuTensor")(rank=spec.rank, data_type=int(_CPU_TYPES[spec.dtype]))
        tensor.dims = tensor.max_dims = ctypes.addressof(dims)
        fill_encoding(tensor.quant, spec, self._keep)
        self._keep += [dims, tensor]
        return tensor

    def _param(self, name: str, value: Any) -> Any:
        param = struct("CpuParam")(name=c_text(name, "a parameter's name", self._keep))
        array = np.asarray(value)
        if array.ndim == 0 and array.dtype.kind in "biuf":
            param.kind, param.of.number = _SCALAR, float(array)
            return param
        dtype = DType.parse(array.dtype)
        if dtype not in _CPU_TYPES:
            raise UnsupportedOp(
                f"operator {self._title}: parameter {name!r} is {array.dtype}; not of 8 or 32 bits"
            )
        stored = np.ascontiguousarray(array)
        tensor = self._tensor(TensorSpec(name, array.shape, dtype))
        tensor.data = stored.ctypes.data
        self._keep.append(stored)
        param.kind, param.of.tensor = _TENSOR, ctypes.addressof(tensor)
        return param

    def _pointers(self, items: list[Any]) -> int | None:
        addresses = [None if item is None else ctypes.addressof(item) for item in items]
        listed = (ctypes.c_void_p * max(1, len(items)))(*addresses)
        self._keep += [listed, items]
        return ctypes.addressof(listed) if items else None

    def compute(self, node: Node, arrays: Arrays) -> Results:
        """Point the tensors at the arrays and call. One call at a time: the package knows one set of tensors."""
        inputs = [np.ascontiguousarray(a.astype(np.float32) if a.dtype == np.float16 else a) for a in arrays]
        types = [np.float32 if s.dtype is DType.FLOAT_16 else s.dtype.numpy for s in self._specs]
        results = [np.zeros(s.shape, dtype) for s, dtype in zip(self._specs, types, strict=True)]
        with self._turn:
            for tensor, array in zip((*self._inputs, *self._outputs), (*inputs, *results), strict=True):
                if tensor is not None:
                    tensor.data = array.ctypes.data
            code = self._function(self._user_data)
        if code:
            raise ExecutionError(f"its function answered {code}")
        return tuple(array.astype(spec.dtype.numpy) for array, spec in zip(results, self._specs, strict=True))


def _free(library: _CpuLibrary, address: int, keep: list[Any]) -> None:
    library.free(address)
    keep.clear()
