"""ONNX's backend interface (``prepare``, ``run_model``, ``run_node``), so that its own test suite can run on us.

    import onnx, openhtp.onnx.backend as backend
    outputs = backend.run_model(onnx.load("model.onnx"), [x])

Models run on an emulated HTP inside this process.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, defs, helper
from onnx.backend.base import Backend, BackendRep

from openhtp.core import tidying
from openhtp.core.errors import QnnError, UnsupportedError
from openhtp.frontend.onnx_import import Imported, import_model, import_typed
from openhtp.frontend.onnx_reader import read_model
from openhtp.frontend.schemas import STATIC_INPUTS
from openhtp.runtime.objects.backend import Backend as HtpBackend
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph

__all__ = ["HtpBackendRep", "OnnxBackend", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

Array = npt.NDArray[Any]


@functools.cache
def _device() -> Device:
    return HtpBackend().create_device(transport="inprocess")


class HtpBackendRep(BackendRep):  # type: ignore[misc]
    """A prepared model.

    An HTP graph is compiled for fixed shapes, axes and bounds. A model that takes those as inputs (ONNX's node
    tests do) is compiled when they are known: at the first run, and again whenever they change. The model is
    unloaded when the last reference to it is gone.
    """

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        constants = {tensor.name for tensor in model.graph.initializer}
        self._names = [value.name for value in model.graph.input if value.name not in constants]
        self._fixed = [name for name in self._names if name in _read_as_static(model)]
        self._ready: tuple[bytes, Graph, Imported] | None = None
        self._give_up: Callable[[], object] = int
        if not self._fixed:
            self._compiled({})

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Run once on a sequence of inputs in the model's order, or on a mapping by name."""
        values = inputs if isinstance(inputs, dict) else dict(zip(self._names, inputs, strict=True))
        graph, imported = self._compiled({name: np.asarray(values[name]) for name in self._fixed})
        feeds = {
            tensor.name: np.ascontiguousarray(values[tensor.name], tensor.dtype.numpy).reshape(tensor.shape)
            for tensor in graph.inputs
        }
        outputs = graph.execute(feeds)
        return tuple(
            outputs[name].reshape(kind.shape).astype(kind.dtype) for name, kind in imported.outputs.items()
        )

    def _compiled(self, constants: dict[str, Array]) -> tuple[Graph, Imported]:
        key = b"".join(array.tobytes() for array in constants.values())
        if self._ready is None or self._ready[0] != key:
            imported = import_typed(read_model(self._model, freeze=constants))
            context = _device().create_context()
            try:
                graph = context.compose_graph(imported.graph)
                graph.finalize()
            except BaseException:
                context.free()  # nobody else knows it
                raise
            self._give_up()
            # Not here and now: the garbage collector may come for it while anything runs.
            ending = weakref.finalize(self, tidying.post, (_free, (context,)))
            ending.atexit = False
            self._give_up = ending
            self._ready = key, graph, imported
        return self._ready[1], self._ready[2]


def _free(context: Context) -> None:
    with contextlib.suppress(QnnError):  # the device is gone, and the context with it
        context.free()


def _read_as_static(model: ModelProto) -> set[str]:
    return {
        node.input[index]
        for node in model.graph.node
        for index in STATIC_INPUTS.get(node.op_type, ())
        if index < len(node.input)
    }


class OnnxBackend(Backend):  # type: ignore[misc]
    """The interface as a class, as ``onnx.backend.test`` wants it."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be imported."""
        try:
            import_model(read_model(model.SerializeToString()))
        except QnnError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> HtpBackendRep:
        """Import and compile a model."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"device {device!r} is unknown; expected 'CPU' (the emulator)")
        return HtpBackendRep(model)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Array, ...]:
        """Prepare and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """Run one operator on arrays."""
        arrays = [np.asarray(array) for array in inputs]
        names = [name for name in node.input if name]
        graph = helper.make_graph(
            [node],
            "node",
            [_described(name, array) for name, array in zip(names, arrays, strict=True)],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        opset = int(kwargs.get("opset_version", defs.onnx_opset_version()))
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return cls.run_model(helper.make_model(graph, opset_imports=opsets), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Only the emulator, which computes on the CPU."""
        return device == "CPU"


def _described(name: str, array: Array) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


is_compatible = OnnxBackend.is_compatible
prepare = OnnxBackend.prepare
run_model = OnnxBackend.run_model
run_node = OnnxBackend.run_node
supports_device = OnnxBackend.supports_device
