"""Builds a Graph, checking every step before it changes anything.

The vendor's library accepts most mistakes here and fails later, or computes nonsense. We answer at the call
that is wrong, with the same numbers where the library has one.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, NameClash, QnnError, WrongState, error_context
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset
from openhtp.core.status import Status
from openhtp.core.tensor import MAX_RANK, TensorKind, TensorSpec
from openhtp.ir.graph import Graph, QnnNode, node_of
from openhtp.ops import resolve

_MAX_TENSOR_BYTES = 1 << 40
_BAD_TENSOR = st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM
_BAD_NODE = st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG

Array = npt.NDArray[Any]


class GraphBuilder:
    """Collects tensors and nodes; a call that raises leaves it as it was."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tensors: dict[str, TensorSpec] = {}
        self._statics: dict[str, Array] = {}
        self._nodes: list[QnnNode] = []
        self._node_names: set[str] = set()
        self._producers: dict[str, str] = {}

    @classmethod
    def resume(cls, graph: Graph, *, name: str | None = None) -> GraphBuilder:
        """A builder that holds all of a finished graph, which needs no second verification."""
        builder = cls(name or graph.name)
        builder._tensors = dict(graph.tensors)
        builder._statics = dict(graph.statics)
        builder._nodes = list(graph.nodes)
        builder._node_names = {node.name for node in graph.nodes}
        builder._producers = {name: node.name for node in graph.nodes for name in node.outputs}
        return builder

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Tensors so far, by name."""
        return dict(self._tensors)

    def add_tensor(self, spec: TensorSpec, data: Array | None = None) -> None:
        """Register a tensor; ``data`` goes with STATIC tensors only, in the type that ``spec.dtype`` stores."""
        with error_context(graph=self.name, tensor=spec.name):
            if spec.name in self._tensors:
                raise NameClash(
                    f"tensor {spec.name!r} already exists as {self._tensors[spec.name]}",
                    st.QNN_TENSOR_ERROR_ALREADY_EXISTS,
                )
            _check_spec(spec)
            static = _check_data(spec, data)
        self._tensors[spec.name] = spec
        if static is not None:
            self._statics[spec.name] = static

    def add_node(self, call: OpCall, *, op_accepts: bool = False) -> None:
        """Add a node whose inputs are already there; ``op_accepts`` says that its op was asked before."""
        with error_context(graph=self.name, node=call.name):
            if not call.name or call.name in self._node_names:
                what = f"node name {call.name!r} is taken" if call.name else "node has no name"
                raise NameClash(what, _BAD_NODE)
            for spec in (*call.inputs, *call.outputs):
                self._check_known(spec)
            try:
                if not op_accepts:
                    resolve(call, self._statics)
            except QnnError as error:
                error.status = _BAD_NODE
                raise
            for spec in call.inputs:
                self._check_ready(spec)
            self._check_outputs(call)
        self._nodes.append(node_of(call))
        self._node_names.add(call.name)
        self._producers.update({spec.name: call.name for spec in call.outputs})

    def finish(self) -> Graph:
        """Verify the whole and return it. The builder may go on afterwards."""
        with error_context(graph=self.name):
            if not self._nodes:
                raise WrongState("graph has no nodes; expected at least one", st.QNN_GRAPH_ERROR_FINALIZE_FAILED)
            if not any(spec.kind.is_output for spec in self._tensors.values()):
                raise WrongState(
                    "graph has no output; expected at least one tensor of kind APP_READ",
                    st.QNN_GRAPH_ERROR_FINALIZE_FAILED,
                )
            missing = [
                spec.name
                for spec in self._tensors.values()
                if spec.kind.is_output and not spec.kind.is_input and spec.name not in self._producers
            ]
            if missing:
                raise WrongState(
                    f"no node produces the output tensors {', '.join(map(repr, missing))}",
                    st.QNN_GRAPH_ERROR_CREATE_FAILED,
                )
        return Graph(self.name, dict(self._tensors), dict(self._statics), tuple(self._nodes))

    def _check_known(self, spec: TensorSpec | None) -> None:
        if spec is None:
            return
        known = self._tensors.get(spec.name)
        if known is None:
            raise InvalidArgument(f"tensor {spec.name!r} is not in this graph; add it first", _BAD_NODE)
        if known != spec:
            raise InvalidArgument(f"tensor {spec} differs from the graph's {known} of that name", _BAD_NODE)

    def _check_ready(self, spec: TensorSpec | None) -> None:
        if spec is None or spec.kind.is_static or spec.kind.is_input or spec.kind is TensorKind.NULL:
            return
        if spec.name not in self._producers:
            raise WrongState(
                f"input tensor {spec.name!r} is produced by no node so far; add nodes in the order of their data",
                st.QNN_GRAPH_ERROR_UNCONNECTED_NODE,
            )

    def _check_outputs(self, call: OpCall) -> None:
        names = [spec.name for spec in call.outputs]
        for spec in call.outputs:
            if not spec.kind.is_native and not spec.kind.is_output:
                raise InvalidArgument(
                    f"output tensor {spec.name!r} is of kind {spec.kind.name}; expected NATIVE or APP_READ",
                    _BAD_NODE,
                )
            if spec.name in self._producers or names.count(spec.name) > 1:
                first = self._producers.get(spec.name, call.name)
                raise InvalidArgument(f"tensor {spec.name!r} is already produced by node {first!r}", _BAD_NODE)


def _check_spec(spec: TensorSpec) -> None:
    if not spec.name:
        _refuse("tensor has no name")
    if spec.dtype.bits < 8:
        _refuse(f"data type {spec.dtype.qnn_name} is not supported; store 4-bit weights as 8-bit fixed point")
    if spec.rank > MAX_RANK:
        _refuse(f"shape {list(spec.shape)} has rank {spec.rank}; expected at most {MAX_RANK}")
    if any(size < 1 for size in spec.shape):
        _refuse(f"shape {list(spec.shape)} has a dimension below 1")
    if math.prod(spec.shape) * spec.dtype.itemsize > _MAX_TENSOR_BYTES:
        _refuse(f"shape {list(spec.shape)} takes more than {_MAX_TENSOR_BYTES} bytes")
    if spec.dynamic and len(spec.dynamic) != spec.rank:
        _refuse(f"{len(spec.dynamic)} dynamic flags for rank {spec.rank}; expected one per dimension")
    if spec.quant is not None and not spec.dtype.is_fixed_point:
        _refuse(f"{spec.dtype.short} takes no quantization encoding", st.QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM)
    if spec.kind.is_input and spec.kind.is_output:
        _refuse(
            f"a tensor of kind {spec.kind.name} is not offered; use one that is written and one that is read",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM,
        )
    if spec.kind.is_updateable and spec.dtype.is_fixed_point and spec.quant is None:
        _refuse("an updateable tensor of fixed point needs an encoding of its own")
    if isinstance(spec.quant, AxisScaleOffset):
        axis, count = spec.quant.axis, len(spec.quant.scales)
        if not 0 <= axis < spec.rank or spec.shape[axis] != count:
            _refuse(f"per-axis encoding has {count} scales on axis {axis} of shape {list(spec.shape)}")


def _check_data(spec: TensorSpec, data: Array | None) -> Array | None:
    if not spec.kind.is_static:
        if data is not None:
            _refuse(f"tensor of kind {spec.kind.name} comes with data; only static tensors hold data")
        return None
    if data is None:
        _refuse(f"{spec.kind.name} tensor comes without data")
    if data.dtype != spec.dtype.numpy or data.size != spec.elements:
        _refuse(
            f"data is {data.dtype}{list(data.shape)} of {data.nbytes} bytes;"
            f" expected {spec.dtype.numpy}{list(spec.shape)} of {spec.nbytes} bytes"
        )
    return data.reshape(spec.shape)


def _refuse(problem: str, status: Status = _BAD_TENSOR) -> NoReturn:
    raise InvalidArgument(problem, status)
