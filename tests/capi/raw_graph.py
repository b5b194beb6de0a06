"""A graph of the C library whose every argument a test gives by itself, right or wrong."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.abi.structs import pointer_list, struct
from openhtp.abi.writing import tensor_struct
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import CUSTOM
from openhtp.core.tensor import TensorSpec
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import params_of
from tests.waiting import PATIENCE_S

Array = npt.NDArray[Any]
NOTIFY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)


class TensorRoom:
    """A tensor of an execution: its structure, and the dimensions that this points at."""

    def __init__(self, spec: TensorSpec, number: int, array: Array, dims: Sequence[int] | None) -> None:
        self.array = array
        shape = array.shape if dims is None else dims
        self.dims = (ctypes.c_uint32 * max(1, len(shape)))(*shape)
        self.struct = struct("Tensor")(version=2, id=number, kind=int(spec.kind), rank=len(shape))
        self.struct.dims = ctypes.addressof(self.dims)
        self.struct.data_type = int(spec.dtype)
        self.struct.buffer.data, self.struct.buffer.size = array.ctypes.data, array.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """What the dimensions say now."""
        return tuple(self.dims)


class RawGraph:
    """Built and finalized as given; executions return codes."""

    def __init__(
        self,
        context: LibraryContext,
        specs: Sequence[TensorSpec],
        calls: Sequence[OpCall],
        *,
        finalize: bool = True,
        name: str = "g",
    ) -> None:
        self.library = context.library
        self.library_graph = context.create_graph(name)
        self.handle = self.library_graph.handle
        self.specs = {spec.name: spec for spec in specs}
        self.ids: dict[str, int] = {}
        self._keep: list[Any] = []
        for spec in specs:
            self.add_tensor(spec)
        for call in calls:
            self.library_graph.add_node(call, params_of(call), validate=False)
        if finalize:
            self.library_graph.finalize()

    def add_tensor(self, spec: TensorSpec) -> None:
        """Also one that the other side of the same description would not write."""
        made: Any = tensor_struct(spec, None, self._keep)
        self.library.call("tensorCreateGraphTensor", self.handle, ctypes.addressof(made))
        self.library_graph._tensors[spec.name] = (spec, made)
        self.specs[spec.name], self.ids[spec.name] = spec, made.id

    def room(self, name: str, array: Array, dims: Sequence[int] | None = None) -> TensorRoom:
        """A tensor for an execution; ``dims`` where they are not those of the array."""
        return TensorRoom(self.specs[name], self.ids[name], array, dims)

    def execute(
        self, inputs: Sequence[TensorRoom], outputs: Sequence[TensorRoom], profile: int = 0, signal: int = 0
    ) -> int:
        """The code of one execution."""
        ins, outs = _listed(inputs), _listed(outputs)
        return self.ask(
            "graphExecute",
            ctypes.addressof(ins),
            len(inputs),
            ctypes.addressof(outs),
            len(outputs),
            profile,
            signal,
        )

    def execute_async(
        self, inputs: Sequence[TensorRoom], outputs: Sequence[TensorRoom], profile: int = 0, signal: int = 0
    ) -> tuple[int, list[int]]:
        """The code of the call, and the statuses that were notified by the end of it."""
        ins, outs = _listed(inputs), _listed(outputs)
        statuses: list[int] = []
        over = threading.Event()

        def notify(_: int, status: int) -> None:
            statuses.append(status)
            over.set()

        told = NOTIFY(notify)
        code = self.ask(
            "graphExecuteAsync",
            ctypes.addressof(ins),
            len(inputs),
            ctypes.addressof(outs),
            len(outputs),
            profile,
            signal,
            ctypes.cast(told, ctypes.c_void_p).value,
            0,
        )
        if not code:
            assert over.wait(PATIENCE_S)
        return code, statuses

    def ask(self, entry: str, *arguments: Any) -> int:
        """The code of any call on the graph."""
        return int(self.library.ask(entry, self.handle, *arguments))

    def set_config(self, *options: Any) -> int:
        """The code of setting these options."""
        return self.ask("graphSetConfig", pointer_list(list(options)))


def _listed(rooms: Sequence[TensorRoom]) -> Any:
    listed = (struct("Tensor") * max(1, len(rooms)))()
    for place, room in enumerate(rooms):
        listed[place] = room.struct
    return listed


def htp_option(number: int, keep: list[Any], **body: Any) -> Any:
    """A graph option of the HTP's own."""
    custom = struct("HtpGraphConfig")(option=number)
    for field, value in body.items():
        setattr(custom.of, field, value)
    keep.append(custom)
    config = struct("Config")(option=CUSTOM)
    config.of.custom = ctypes.addressof(custom)
    return config


def filled(shape: Sequence[int], values: Mapping[tuple[int, ...], float] | None = None) -> Array:
    """Zeros, and what is given by place."""
    array = np.zeros(shape, np.float32)
    for place, value in (values or {}).items():
        array[place] = value
    return array
