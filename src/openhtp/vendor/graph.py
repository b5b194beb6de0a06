"""Graphs of the vendor's library: build, finalize, execute."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openhtp.abi.numbers import VERSION_1, MemoryKind
from openhtp.abi.structs import pointer_list, struct
from openhtp.abi.writing import (
    Array,
    Params,
    as_stored,
    as_target,
    c_text,
    given_inputs,
    null_tensor,
    op_config,
    param_value,
    scalar_param,
    tensor_param,
)
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, NameClash, WrongState
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import HtpGraphOption, Optimization, PrecisionNumber, SignalOption
from openhtp.core.tensor import TensorKind, TensorSpec, batched
from openhtp.options import GRAPH, Number
from openhtp.vendor.forms import LibraryGraphOptions, config_with, custom_config, dense_tensor
from openhtp.vendor.handles import Owner
from openhtp.vendor.profile import LibraryProfile

if TYPE_CHECKING:
    from openhtp.vendor.backend import LibraryBackend
    from openhtp.vendor.context import LibraryContext, LibraryMemory


# An option of the library's that ours does not have.
_DLBC = Number(
    name="QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_DLBC",
    value=HtpGraphOption.OPTIMIZATION,
    htp=True,
    kind=Optimization.DLBC,
)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A graph's input or output and the id that executions name it by."""

    spec: TensorSpec
    id: int


class LibraryGraph(Owner):
    """One graph. It ends with its context."""

    freed_status = st.QNN_GRAPH_ERROR_INVALID_HANDLE

    def __init__(self, context: LibraryContext, name: str, handle: int, io: Sequence[GraphTensor] | None) -> None:
        """Wrap a handle; ``io`` is given for graphs from a binary, which are finalized already."""
        self.name = name
        self.context = context
        self.library = context.library
        self._backend = context.device.backend
        self.finalized = io is not None
        # Inputs and outputs by name.
        self.ends = {tensor.spec.name: tensor for tensor in io or ()}
        self._tensors: dict[str, tuple[TensorSpec, ctypes.Structure]] = {}
        self._keep: list[Any] = []
        super().__init__(handle, f"graph {name!r}", context)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that an execution must be given."""
        return tuple(tensor.spec for tensor in self.ends.values() if tensor.spec.kind.is_input)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs that an execution gives."""
        return tuple(tensor.spec for tensor in self.ends.values() if tensor.spec.kind.is_output)

    def add_tensor(self, spec: TensorSpec, data: Array | None = None) -> ctypes.Structure:
        """Create a tensor, with its data if it is static; returns its C form."""
        handle = self._unfinished("add a tensor")
        if spec.name in self._tensors:
            raise NameClash(
                f"tensor {spec.name!r} exists already in graph {self.name!r}",
                st.QNN_TENSOR_ERROR_ALREADY_EXISTS,
            )
        keep: list[Any] = []
        tensor = dense_tensor(spec, data, keep)
        where = f"tensor {spec} in graph {self.name!r}"
        self.library.call("tensorCreateGraphTensor", handle, ctypes.addressof(tensor), where=where)
        # The library has its own copy now. Ours stays for later nodes, which show the tensor again.
        self._keep += keep
        self._tensors[spec.name] = (spec, tensor)
        if spec.kind.is_input or spec.kind.is_output:
            self.ends[spec.name] = GraphTensor(spec, tensor.id)
        return tensor

    def add_node(self, call: OpCall, params: Params, *, validate: bool = True) -> None:
        """Add an operation on tensors that were created before; ``params`` gives forms and types.

        The library adds nodes that it cannot do, and then fails, crashes or computes nonsense. So its validator
        is asked first, unless ``validate`` is false: the validator also refuses some nodes that would work.
        """
        handle = self._unfinished("add a node")
        keep: list[Any] = []
        inputs = [
            null_tensor() if spec is None else self._created_tensor(spec, call) for spec in given_inputs(call)
        ]
        outputs = [self._created_tensor(spec, call) for spec in call.outputs]
        param_structs = [self._param(call, name, *param, keep) for name, param in params.items()]
        config = op_config(call, inputs, outputs, param_structs, keep)
        where = f"{call.op} {call.name!r} in graph {self.name!r}"
        if validate:
            self.library.call("backendValidateOpConfig", self._backend.handle, config, where=where)
        self.library.call("graphAddNode", handle, config, where=where)

    def _created_tensor(self, spec: TensorSpec, call: OpCall) -> ctypes.Structure:
        known = self._tensors.get(spec.name)
        if known is None or known[0] != spec:
            reason = "was not created" if known is None else f"was created as {known[0]}"
            raise InvalidArgument(
                f"{call.op} {call.name!r} uses tensor {spec}, which {reason} in graph {self.name!r}",
                st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
            )
        return known[1]

    def _param(
        self, call: OpCall, name: str, value: Any, dtype: Any, form: str, keep: list[Any]
    ) -> ctypes.Structure:
        if form == "scalar":
            return scalar_param(name, value, dtype, call.name, keep)
        if form != "tensor":
            raise InvalidArgument(
                f"parameter {name!r} of {call.name!r} has form {form!r}; expected scalar or tensor"
            )
        array = param_value(name, value, dtype, call.name)
        spec = TensorSpec(self._free_name(f"{call.name}:{name}"), array.shape, dtype, kind=TensorKind.STATIC)
        return tensor_param(name, self.add_tensor(spec, array), call.name, keep)

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._tensors:
            name, number = f"{wanted}:{number}", number + 1
        return name

    def finalize(self, profile: LibraryProfile | None = None) -> None:
        """Compile. May take seconds; what the compiler refuses is raised with its own words."""
        handle = self._unfinished("finalize")
        where = f"graph {self.name!r}"
        self.library.call("graphFinalize", handle, profile.handle if profile else None, None, where=where)
        self.finalized = True
        # The library has its own copies by now.
        self._tensors.clear()
        self._keep.clear()

    def execute(
        self,
        inputs: Mapping[str, Array],
        profile: LibraryProfile | None = None,
        *,
        outputs: Mapping[str, Array] | None = None,
        memories: Mapping[str, LibraryMemory] | None = None,
        signal: LibrarySignal | None = None,
    ) -> dict[str, Array]:
        """Run once. ``inputs`` has every input by name; all may hold the same multiple of the batch (dimension 0).

        ``outputs`` are arrays to write into, all of them; without it they are made. ``memories`` has the
        registered memory of arrays that lie in some. ``signal`` ends the execution early, with ``Aborted``.
        """
        if not self.finalized:
            raise WrongState(f"graph {self.name!r} is not finalized", st.QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED)
        handle = self.handle
        wanted = [tensor for tensor in self.ends.values() if tensor.spec.kind.is_input]
        written = [tensor for tensor in self.ends.values() if tensor.spec.kind.is_output]
        times = batch_of(self.name, self.inputs, inputs)
        sources = [as_stored(t.spec, inputs[t.spec.name], batched(t.spec.shape, times)) for t in wanted]
        if outputs is None:
            outputs = {spec.name: np.empty(batched(spec.shape, times), spec.dtype.numpy) for spec in self.outputs}
        check_names(self.name, "outputs", self.outputs, outputs)
        results = [as_target(t.spec, outputs[t.spec.name], batched(t.spec.shape, times)) for t in written]
        keep: list[Any] = []
        memories = memories or {}
        ins, outs = io_structs(wanted, sources, memories, keep), io_structs(written, results, memories, keep)
        self.library.call(
            "graphExecute",
            handle,
            ctypes.addressof(ins),
            len(wanted),
            ctypes.addressof(outs),
            len(written),
            profile.handle if profile else None,
            signal.handle if signal else None,
            where=f"graph {self.name!r}",
        )
        return dict(outputs)

    def _unfinished(self, what: str) -> int:
        handle = self.handle
        if self.finalized:
            raise WrongState(
                f"graph {self.name!r} is finalized; it is too late to {what}",
                st.QNN_GRAPH_ERROR_GRAPH_FINALIZED,
            )
        return handle


class LibrarySignal(Owner):
    """An abort signal. Timeouts are kept by the device's own clock, which triggers the same signal."""

    freed_status = st.QNN_SIGNAL_ERROR_INVALID_HANDLE

    def __init__(self, backend: LibraryBackend) -> None:
        """Raises UnsupportedFeature where the library has no signals, as on x86."""
        self._library = backend.library
        abort = struct("Config")(option=SignalOption.ABORT)
        handle = self._library.make("signalCreate", backend.handle, pointer_list([abort]))
        super().__init__(handle, "signal", backend)

    def trigger(self) -> bool:
        """End the call that carries the signal. False if none does, as before the library has begun with it."""
        return self._library.ask("signalTrigger", self.handle) == 0

    def _release(self, handle: int) -> None:
        self._library.call("signalFree", handle)


def check_names(graph: str, what: str, specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> None:
    """Refuse an execution with tensors missing or too many."""
    expected = [spec.name for spec in specs]
    if set(arrays) != set(expected):
        raise InvalidArgument(
            f"graph {graph!r} got {what} {sorted(arrays)}; expected {sorted(expected)}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )


def batch_of(graph: str, specs: Sequence[TensorSpec], inputs: Mapping[str, Array]) -> int:
    """How many batches an execution's inputs hold, going by the first that is a whole multiple."""
    # The library takes the caller's word for the batch and reads that much: all others must agree exactly.
    check_names(graph, "inputs", specs, inputs)
    for spec in specs:
        shape = np.shape(inputs[spec.name])
        if spec.shape and len(shape) == spec.rank and shape[1:] == spec.shape[1:] and shape[0]:
            return max(1, int(shape[0]) // spec.shape[0])
    return 1


def io_structs(
    tensors: Sequence[GraphTensor], arrays: Sequence[Array], memories: Mapping[str, LibraryMemory], keep: list[Any]
) -> Any:
    """Input or output structures of an execution; the library goes by id, dimensions and address only.

    A tensor in registered memory has the memory's handle instead of an address.
    """
    structs = (struct("Tensor") * max(1, len(tensors)))()
    for struct_, tensor, array in zip(structs, tensors, arrays, strict=False):
        dims = (ctypes.c_uint32 * max(1, array.ndim))(*array.shape)
        keep.append(dims)
        struct_.version, struct_.id, struct_.kind = VERSION_1, tensor.id, int(tensor.spec.kind)
        struct_.data_type, struct_.rank, struct_.dims = int(tensor.spec.dtype), array.ndim, ctypes.addressof(dims)
        memory = memories.get(tensor.spec.name)
        if memory is None:
            struct_.buffer.data, struct_.buffer.size = array.ctypes.data, array.nbytes
        else:
            struct_.mem_type, struct_.buffer.data = MemoryKind.HANDLE, memory.handle
    return structs


def graph_configs(options: LibraryGraphOptions, keep: list[Any]) -> list[ctypes.Structure]:
    """The config list of ``graphCreate``."""
    configs = []
    if options.priority is not None:
        configs.append(config_with(GRAPH.number("priority").value, number=int(options.priority)))
    bodies: list[tuple[Number, str, Any]] = []
    if options.vtcm_mb is not None:
        bodies.append((GRAPH.number("vtcm_mb"), "number32", options.vtcm_mb))
    if options.hvx_threads is not None:
        bodies.append((GRAPH.number("hvx_threads"), "number64", options.hvx_threads))
    if options.float16:
        bodies.append((GRAPH.number("precision"), "number32", PrecisionNumber.FLOAT16))
    if options.optimization is not None:
        bodies.append((GRAPH.number("optimization_level"), "optimization", options.optimization))
    if options.dlbc is not None:
        bodies.append((_DLBC, "optimization", options.dlbc))
    if options.fold_relu_off:
        bodies.append((GRAPH.number("fold_relu_activation_into_conv_off"), "flag", 1))
    if options.short_depth_off:
        bodies.append((GRAPH.number("short_depth_conv_on_hmx_off"), "flag", 1))
    for number, field, value in bodies:
        custom = struct("HtpGraphConfig")(option=number.value)
        setattr(custom.of, field, value if number.kind is None else (number.kind, float(value)))
        configs.append(custom_config(custom, keep))
    return configs


def create_graph(context: LibraryContext, name: str, options: LibraryGraphOptions) -> LibraryGraph:
    """Create an empty graph in a context."""
    keep: list[Any] = []
    for what, number in (("vtcm_mb", options.vtcm_mb), ("hvx_threads", options.hvx_threads)):
        if number is not None and not 0 <= number <= 0xFFFF:
            raise InvalidArgument(f"{what} is {number}; expected 0 to 65535")
    configs, address = graph_configs(options, keep), c_text(name, "graph name", keep)
    where = f"graph {name!r}"
    handle = context.library.make("graphCreate", context.handle, address, pointer_list(configs), where=where)
    return LibraryGraph(context, name, handle, None)
