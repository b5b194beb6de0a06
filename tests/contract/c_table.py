"""Our own C library as a QNN application uses it, in the words of the contract's tests.

Every call goes through the table of functions that ``libQnnHtp.so`` gives out. The C interface has no futures:
what is known of an execution here is what its notification told.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import openhtp as htp
from openhtp.abi.structs import pointer_list, struct
from openhtp.capi import handles
from openhtp.capi.device import DeviceHeld
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.enumerations import Priority
from openhtp.core.errors import QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import SignalOption
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor import backend as client, context as client_context, graph as client_graph
from openhtp.vendor.forms import params_of
from openhtp.vendor.library import load

_TELL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)
_KINDS = {
    st.QNN_GRAPH_ERROR_ABORTED.code: htp.Aborted,
    st.QNN_GRAPH_ERROR_TIMED_OUT.code: htp.TimedOut,
}
_numbers = itertools.count(1)


def _as_error(code: int, words: str = "told by its notification") -> QnnError:
    return _KINDS.get(code, QnnError)(words, st.for_code(code))


class Backend:
    def __init__(self, folder: Path) -> None:
        self.held = client.LibraryBackend(load(folder / "libQnnHtp.so"))

    def create_device(self) -> Device:
        return Device(self)

    def create_signal(self, timeout_us: int | None = None) -> Signal:
        return Signal(self, timeout_us)

    def free(self) -> None:
        self.held.free()


class Signal:
    def __init__(self, backend: Backend, timeout_us: int | None) -> None:
        self.library = backend.held.library
        config = struct("Config")(option=SignalOption.TIMEOUT)
        config.of.number64 = timeout_us or 0
        place = ctypes.c_void_p()
        configs = None if timeout_us is None else pointer_list([config])
        self.library.call("signalCreate", backend.held.handle, configs, ctypes.addressof(place))
        self.handle = place.value

    def trigger(self) -> None:
        self.library.call("signalTrigger", self.handle)


class Device:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.held = backend.held.create_device()

    def create_context(self, **options: Any) -> Context:
        return Context(client_context.LibraryContext.create(self.held, **options))

    @property
    def computing(self) -> Any:
        """What is behind the handle: the tests make it stand still."""
        return handles.of_kind(DeviceHeld)[-1].device()


class Context:
    def __init__(self, held: client_context.LibraryContext) -> None:
        self.held = held
        self.pending = 0

    def create_graph(self, name: str, *, priority: str | None = None) -> Graph:
        options = client_graph.LibraryGraphOptions(priority=None if priority is None else Priority.parse(priority))
        return Graph(self, self.held.create_graph(name, options))

    def free(self) -> None:
        self.held.free()


class Graph:
    def __init__(self, context: Context, held: client_graph.LibraryGraph) -> None:
        self.context = context
        self.held = held
        # Each is called back and written to, whether or not a test still looks at it.
        self._sent: list[Execution] = []

    def add_tensor(self, name: str, shape: tuple[int, ...], dtype: str, *, kind: str) -> TensorSpec:
        spec = TensorSpec(name, shape, DType.parse(dtype), None, TensorKind.parse(kind))
        self.held.add_tensor(spec)
        return spec

    def add_node(self, op: str, *, name: str, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> None:
        call = OpCall(op, name, tuple(inputs), tuple(outputs))
        self.held.add_node(call, params_of(call))

    def finalize(self) -> None:
        self.held.finalize()

    def execute(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self.held.execute(inputs)

    def execute_async(
        self,
        inputs: dict[str, Any],
        outputs: dict[str, Any] | None = None,
        *,
        notify: Callable[[Any, int], None] | None = None,
        notify_param: object = None,
        signal: Signal | None = None,
    ) -> Execution:
        made = Execution(self, inputs, outputs, notify, notify_param)
        self._sent.append(made)
        made.send(signal)
        return made


class Execution:
    def __init__(
        self, graph: Graph, inputs: dict[str, Any], outputs: dict[str, Any] | None, notify: Any, param: object
    ) -> None:
        self._graph = graph
        self._notify, self._param = notify, param
        self._over = threading.Event()
        self._code = 0
        held = graph.held
        tensors = held.ends.values()
        self._arrays = {spec.name: np.ascontiguousarray(inputs[spec.name]) for spec in held.inputs}
        self._outputs = outputs or {spec.name: np.empty(spec.shape, spec.dtype.numpy) for spec in held.outputs}
        self._keep: list[Any] = []
        sides = []
        for arrays in (self._arrays, self._outputs):
            mine = [tensor for tensor in tensors if tensor.spec.name in arrays]
            ordered = [arrays[tensor.spec.name] for tensor in mine]
            sides.append((client_graph.io_structs(mine, ordered, {}, self._keep), len(mine)))
        self._sides = sides
        self._tell = _TELL(self._told)
        self._number = next(_numbers)

    def send(self, signal: Signal | None) -> None:
        (ins, n_ins), (outs, n_outs) = self._sides
        self._graph.context.pending += 1
        try:
            self._graph.held.library.call(
                "graphExecuteAsync",
                self._graph.held.handle,
                ctypes.addressof(ins),
                n_ins,
                ctypes.addressof(outs),
                n_outs,
                None,
                None if signal is None else signal.handle,
                ctypes.cast(self._tell, ctypes.c_void_p),
                self._number,
            )
        except QnnError as error:
            self._graph.context.pending -= 1
            raise _as_error(error.code, error.message) from error

    def _told(self, param: int, code: int) -> None:
        assert param == self._number
        self._code = code
        self._graph.context.pending -= 1
        self._over.set()
        if self._notify is not None:
            self._notify(self._param, code)

    def exception(self, timeout: float) -> QnnError | None:
        assert self._over.wait(timeout)
        return _as_error(self._code) if self._code else None

    def result(self, timeout: float) -> dict[str, Any]:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._outputs
