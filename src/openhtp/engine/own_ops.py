"""Programs with operators of a user's packages, which are computed one by one, apart from the rest.

A program is cut at each such operator. The pieces are programs of their own, with arrays in between, and run one
after the other. An operator's function runs on a thread of its own, on copies of its inputs, and for a limited
time: whatever it does, the device goes on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from openhtp.compiler.passes.assign_kinds import assign_units
from openhtp.compiler.passes.mark_steps import mark_steps
from openhtp.compiler.passes.measure_buffers import measure_buffers
from openhtp.compiler.vtcm.place import vtcm_peak_bytes
from openhtp.compiler.vtcm.spill_fill import spill_fill_bytes
from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import ExecutionError, InvalidArgument, UnsupportedFeature, error_context
from openhtp.core.precision import FloatPrecision, half_rounded
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.limited_calls import CallFailed, CallTookTooLong, call_within
from openhtp.engine.protocol import Arrays, LoadedProgram, Run, UpdateableProgram
from openhtp.ops import Node, op_of
from openhtp.ops._packages import Compute, OwnOp
from openhtp.program.htp_program import HtpProgram, Kernel
from openhtp.program.qnn_program import QnnProgram

Array = npt.NDArray[Any]


def has_own_ops(program: HtpProgram | QnnProgram) -> bool:
    """Whether an operator of a user's package is in the program."""
    return any(op_of(node).own is not None for node in program.nodes)


def load_in_turns(program: HtpProgram, load: Callable[[HtpProgram], LoadedProgram]) -> ChainedProgram:
    """Make a program with operators of a package ready; ``load`` makes ready what lies between them."""
    if program.source.is_dynamic:
        raise UnsupportedFeature(
            f"graph {program.name!r} has dynamic inputs and operators of a package; expected fixed shapes beside"
            " these",
            st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
        )
    if program.native_kv is not None:
        raise UnsupportedFeature(
            f"graph {program.name!r} has a native KV cache and operators of a package; use one of the two",
            st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
        )
    links: list[LoadedProgram] = []
    for own, kernels in itertools.groupby(program.kernels, lambda kernel: op_of(kernel.nodes[0]).own is not None):
        if own:
            links += [OwnOpProgram(program, kernel) for kernel in kernels]
        else:
            links.append(load(_part(program, tuple(kernels))))
    return ChainedProgram(program, links)


def _part(program: HtpProgram, kernels: tuple[Kernel, ...]) -> HtpProgram:
    """Kernels in a row as a program: its inputs come from other kernels, and other kernels read its outputs."""
    source = program.source
    written = {name for kernel in kernels for name in kernel.outputs}
    inside = {kernel.name for kernel in kernels}
    read_later = {name for kernel in program.kernels if kernel.name not in inside for name in kernel.inputs}
    read_later.update(source.output_names)
    read = {name for kernel in kernels for name in kernel.inputs} - written - set(source.statics)
    nodes = tuple(node for kernel in kernels for node in kernel.nodes)
    touched = {name for node in nodes for name in (*node.inputs, *node.outputs) if name is not None}

    def spec_of(spec: TensorSpec) -> TensorSpec:
        if spec.name in read:
            return dataclasses.replace(spec, kind=TensorKind.APP_WRITE)
        if spec.name in written and spec.name in read_later:
            return dataclasses.replace(spec, kind=TensorKind.APP_READ)
        return spec

    part = QnnProgram(
        source.name,
        {name: spec_of(spec) for name, spec in source.tensors.items() if name in touched},
        {name: data for name, data in source.statics.items() if name in touched},
        nodes,
        source.options,
    )
    units = assign_units(HtpProgram(part, program.soc, kernels))
    return measure_buffers(mark_steps(units))


class ChainedRun:
    """One execution of programs that follow one another."""

    def __init__(self, runs: Sequence[tuple[Run, int]]) -> None:
        """``runs`` with how many steps each has."""
        self._steps = [(run, step) for run, steps in runs for step in range(steps)]

    def step(self, index: int) -> None:
        """Compute one step of one of them."""
        run, step = self._steps[index]
        run.step(step)


class ChainedProgram:
    """Programs that run one after the other, and the arrays between them."""

    def __init__(self, program: HtpProgram, links: Sequence[LoadedProgram]) -> None:
        self._links = list(links)
        self._ends = {spec.name for spec in (*program.inputs, *program.outputs)}
        written = {name for kernel in program.kernels for name in kernel.outputs}
        self._between = [program.tensors[name] for name in written - self._ends]
        self.steps = sum(link.steps for link in self._links)
        self.spill_fill_bytes = spill_fill_bytes(program)
        self.vtcm_peak_bytes = vtcm_peak_bytes(program)

    def bind(self, arrays: Arrays) -> ChainedRun:
        """Bind every input and output; arrays in between are made here, once."""
        between = {spec.name: np.empty(spec.shape, spec.dtype.numpy) for spec in self._between}
        bound = {**arrays, **between}
        return ChainedRun([(link.bind(bound), link.steps) for link in self._links])

    def update(self, arrays: Arrays) -> None:
        """Use other data for updateable tensors."""
        for link in self._links:
            if isinstance(link, UpdateableProgram):
                link.update(arrays)

    def close(self) -> None:
        """Give back what all of them hold."""
        for link in self._links:
            link.close()


class OwnOpProgram:
    """One operator of a package. It has as many steps as it is computed in pieces."""

    spill_fill_bytes = 0
    vtcm_peak_bytes: int | None = None

    def __init__(self, program: HtpProgram, kernel: Kernel) -> None:
        own = op_of(kernel.nodes[0]).own
        assert own is not None
        self._own = own
        self._node = program.source.resolved(kernel.nodes[0])
        self._compute = own.function(self._node)
        self._half = program.options.precision is FloatPrecision.FLOAT16
        self._constants = dict(program.statics)
        self._pieces = list(_pieces(self._node, own))
        self.steps = len(self._pieces)

    def bind(self, arrays: Arrays) -> OwnOpRun:
        """Bind inputs and outputs."""
        inputs = [None if spec is None else self._array(spec, arrays) for spec in self._node.inputs]
        outputs = [self._array(spec, arrays) for spec in self._node.outputs]
        return OwnOpRun((self._own, self._compute), self._pieces, inputs, outputs, half=self._half)

    def _array(self, spec: TensorSpec, arrays: Arrays) -> Array:
        array = self._constants.get(spec.name) if spec.kind.is_static else arrays.get(spec.name)
        if array is None or array.dtype != spec.dtype.numpy or array.shape != spec.shape:
            given_array = "no array" if array is None else f"array {array.dtype}{list(array.shape)}"
            raise InvalidArgument(
                f"{given_array} is bound to {spec}; expected {spec.dtype.numpy}{list(spec.shape)}",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )
        return array

    def update(self, arrays: Arrays) -> None:
        """Use other data for its updateable inputs in what is bound from now on."""
        self._constants.update((name, array) for name, array in arrays.items() if name in self._constants)

    def close(self) -> None:
        """Nothing to give back."""


_Window = tuple[slice, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OpPiece:
    """A part of an operator's results: the node as it would be for these alone, and its part of each tensor."""

    node: Node
    inputs: tuple[_Window, ...]
    outputs: tuple[_Window, ...]


def _pieces(node: Node, own: OwnOp) -> Iterator[OpPiece]:
    axes = op_of(node).tile(node)
    whole = (slice(None),)
    if not axes or len(node.outputs) != 1:
        yield OpPiece(node, whole * len(node.inputs), whole * len(node.outputs))  # type: ignore[arg-type]
        return
    axis = axes[0]
    size = node.outputs[0].shape[axis.axis]
    ends = np.linspace(0, size, min(own.operator.pieces, size) + 1).astype(int).tolist()
    for begin, end in itertools.pairwise(ends):
        rows = slice(begin, end)
        specs, windows = [], []
        for spec, cut in zip(node.inputs, axis.inputs, strict=True):
            windows.append(whole if cut is None else _along(cut, rows))
            specs.append(spec if spec is None or cut is None else _shorter(spec, cut, end - begin))
        output = _shorter(node.outputs[0], axis.axis, end - begin)
        smaller = dataclasses.replace(node, inputs=tuple(specs), outputs=(output,))
        yield OpPiece(smaller, tuple(windows), (_along(axis.axis, rows),))


def _along(axis: int, rows: slice) -> _Window:
    return (*(slice(None),) * axis, rows)


def _shorter(spec: TensorSpec, axis: int, size: int) -> TensorSpec:
    return dataclasses.replace(spec, shape=(*spec.shape[:axis], size, *spec.shape[axis + 1 :]))


class OwnOpRun:
    """One execution of an operator of a package, piece by piece."""

    def __init__(
        self,
        operator: tuple[OwnOp, Compute],
        pieces: Sequence[OpPiece],
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        *,
        half: bool,
    ) -> None:
        self._own, self._compute = operator
        self._pieces = pieces
        self._inputs = inputs
        self._outputs = outputs
        self._half = half

    def step(self, index: int) -> None:
        """Call the function and store its results; whatever it does wrong is this execution's failure."""
        piece, own = self._pieces[index], self._own
        with error_context(node=piece.node.name):
            arrays = [
                np.zeros(0) if array is None or spec is None else self._read(spec, array[window])
                for spec, array, window in zip(piece.node.inputs, self._inputs, piece.inputs, strict=True)
            ]
            results = _called(own, lambda: self._compute(piece.node, arrays))
            numbers = _checked_results(own, piece.node, results, half=self._half)
            for array, window, stored in zip(self._outputs, piece.outputs, numbers, strict=True):
                array[window] = stored

    def _read(self, spec: TensorSpec, array: Array) -> Array:
        """A copy of an input: the user's function may keep it or write to it."""
        if self._own.operator.stored or not (spec.dtype.is_float or spec.dtype.is_fixed_point):
            return np.array(array)
        if spec.quant is not None:
            return spec.quant.dequantize(array).astype(np.float32)
        # Data directly from the client or from a constant is not rounded yet.
        return half_rounded(array) if self._half else np.array(array, np.float32)


def _called(own: OwnOp, call: Callable[[], Any]) -> Any:
    """The results of the operator's function. Raises ExecutionError if it fails or takes too long."""
    limit_s = own.operator.time_limit_s
    try:
        return call_within(limit_s, call)
    except CallTookTooLong:
        _fail(own, f"took longer than {limit_s:g} s; give it a longer time_limit_s, or cut it with split_axis")
    except CallFailed as failure:
        error = failure.error
        _fail(own, f"raised {type(error).__name__}: {error}", error)


def _checked_results(own: OwnOp, node: Node, results: Any, *, half: bool) -> list[Array]:
    if isinstance(results, np.ndarray) and len(node.outputs) == 1:
        results = (results,)
    if not isinstance(results, tuple | list):
        _fail(own, f"gives {shown(results)}; expected a tuple of {len(node.outputs)} arrays")
    if len(results) != len(node.outputs):
        _fail(own, f"gives {len(results)} results; expected {len(node.outputs)}")
    return [
        _stored(own, index, spec, result, half=half)
        for index, (spec, result) in enumerate(zip(node.outputs, results, strict=True))
    ]


def _stored(own: OwnOp, index: int, spec: TensorSpec, result: Any, *, half: bool) -> Array:
    try:
        array = np.asarray(result)
    except Exception as error:
        _fail(own, f"gives {shown(result)} as result {index}; expected an array", error)
    if array.shape != spec.shape:
        _fail(own, f"gives result {index} in shape {list(array.shape)}; expected {list(spec.shape)}")
    dtype = spec.dtype
    if own.operator.stored:
        if array.dtype != dtype.numpy:
            _fail(own, f"gives result {index} as {array.dtype}; expected {dtype.numpy}, as it is stored")
        return half_rounded(array).astype(dtype.numpy) if half and dtype.is_float else array
    if dtype.is_float or dtype.is_fixed_point:
        if array.dtype.kind not in "biuf":
            _fail(own, f"gives result {index} as {array.dtype}; expected real numbers")
        if dtype.is_float:
            return half_rounded(array).astype(dtype.numpy) if half else array.astype(dtype.numpy)
        if spec.quant is None or np.isnan(array).any():
            _fail(own, f"gives result {index} for {spec}, which cannot hold it: no encoding, or NaN")
        return spec.quant.quantize(array, *dtype.integer_range).astype(dtype.numpy)
    if array.dtype.kind not in "biu":
        _fail(own, f"gives result {index} as {array.dtype}; expected integers for {spec}")
    stored = array.astype(dtype.numpy)
    if not np.array_equal(stored, array):
        _fail(own, f"gives result {index} with numbers that {dtype.short} does not hold")
    return stored


def _fail(own: OwnOp, problem: str, cause: BaseException | None = None) -> NoReturn:
    raise ExecutionError(f"operator {own.title} {problem}") from cause
