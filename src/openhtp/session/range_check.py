"""Where a float model leaves the range of half precision, in which the HTP computes floats.

A number above 65504 becomes infinite there. Anything divided by it becomes 0, and the result may look fine and be
wrong.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from openhtp.core.threads import OwnThread
from openhtp.core.units import MIB
from openhtp.frontend.branches import all_inputs, plain_session, settled
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.onnx_reader import ModelSource, open_model
from openhtp.frontend.probing import MASK_USES, with_fixed_inputs, with_outputs
from openhtp.session.pending import PendingRun

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
# A model of that size is looked into without being asked: a fraction of a second, once. A node takes about half a
# millisecond, as it is run without optimisations and its values are looked at.
SMALL_BYTES = 32 * MIB
SMALL_NODES = 1000
LARGEST = float(np.finfo(np.float16).max)
_FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")
_HIDE = frozenset((*MASK_USES, "Softmax", "LogSoftmax"))


@dataclass(frozen=True, slots=True)
class Overflow:
    """A value that half precision cannot hold: the node that makes it, and the number farthest from 0."""

    node: str
    op_type: str
    tensor: str
    largest: float

    def __str__(self) -> str:
        return (
            f"node {self.node!r} ({self.op_type}) reaches {self.largest:,.0f}, beyond the {LARGEST:,.0f} of half"
            " precision"
        )


def check_range(
    model: ModelSource,
    samples: Sequence[Mapping[str, Array]],
    *,
    dims: Dims | None = None,
    freeze: Freeze | None = None,
) -> list[Overflow]:
    """All values of a float model beyond half precision on these samples, in running order.

    The model runs on ONNX Runtime's CPU in its own precision. Numbers that only hide positions from a softmax are
    not counted: minus infinity hides them as well.
    """
    data = settled(with_fixed_inputs(model, dims, freeze, may_stay_open=True), samples)
    proto = ModelProto.FromString(data)
    names = float_values(data)
    bounds = _bounds(proto, names, samples) if names else {}
    readers: dict[str, list[Any]] = defaultdict(list)
    for node in proto.graph.node:
        for name in node.input:
            readers[name].append(node)
    overflows = []
    for node in proto.graph.node:
        for name in node.output:
            low, high = bounds.get(name, (0.0, 0.0))
            if high > LARGEST or (low < -LARGEST and not _only_hides(name, readers)):
                overflows.append(Overflow(node.name or name, node.op_type, name, high if high > -low else low))
    return overflows


def float_values(model: bytes) -> list[str]:
    """Names of all floats that a run computes. Values that depend on constants only are not among them."""
    graph = ModelProto.FromString(model).graph
    constants = {tensor.name for tensor in graph.initializer}
    depend = {value.name for value in graph.input} - constants
    for node in graph.node:
        if not depend.isdisjoint(all_inputs(node)):
            depend.update(node.output)
    computed = [name for node in graph.node for name in node.output if name in depend and name]
    session = plain_session(with_outputs(model, computed))
    return [value.name for value in session.get_outputs() if value.type in _FLOATS and value.name in set(computed)]


def _bounds(
    proto: Any, names: Sequence[str], samples: Sequence[Mapping[str, Array]]
) -> dict[str, tuple[float, float]]:
    """Smallest and largest of each value over all samples. Infinities of the model's own are left out."""
    del proto.graph.output[:]
    nodes = []
    for name in names:
        for op in ("ReduceMin", "ReduceMax"):
            nodes.append(helper.make_node(op, [name], [f"{name}/{op}"], keepdims=0))
            proto.graph.output.append(helper.make_empty_tensor_value_info(f"{name}/{op}"))
    measured = ModelProto()
    measured.CopyFrom(proto)
    measured.graph.node.extend(nodes)
    session = plain_session(measured.SerializeToString())
    wanted = {value.name for value in session.get_inputs()}
    runs = [session.run(None, {name: a for name, a in feeds.items() if name in wanted}) for feeds in samples]
    table = np.array([[float(value) for value in run] for run in runs]).reshape(len(samples), -1, 2)
    table[~np.isfinite(table)] = 0.0
    lows, highs = table[:, :, 0].min(axis=0), table[:, :, 1].max(axis=0)
    return {name: (float(low), float(high)) for name, low, high in zip(names, lows, highs, strict=True)}


def _only_hides(name: str, readers: Mapping[str, list[Any]]) -> bool:
    """Whether a value is only used, moved or added to others, as the input of a softmax."""
    waiting, seen = [name], {name}
    while waiting:
        using = readers.get(waiting.pop(), [])
        if not using or any(node.op_type not in _HIDE for node in using):
            return False
        further = {out for node in using if "Softmax" not in node.op_type for out in node.output} - seen
        seen |= further
        waiting += further
    return True


class RangeWatch:
    """Looks at the results of a session until some are infinite or NaN, and says once which node made them so.

    ``first_run`` says whether the first run is checked whatever its results are. None checks it for small models
    in floats, where the check is hardly felt.
    """

    def __init__(
        self, source: ModelSource, dims: Dims | None, freeze: Freeze | None, *, first_run: bool | None
    ) -> None:
        self._source = source
        self._dims = dims
        self._freeze = freeze
        self._first_run = first_run
        self._done = False

    @classmethod
    def off(cls) -> RangeWatch:
        """A watch that looks at nothing."""
        watch = cls(b"", None, None, first_run=False)
        watch._done = True
        return watch

    def follow(self, run: PendingRun, feeds: Mapping[str, npt.ArrayLike], names: Sequence[str]) -> None:
        """Look at a queued run when it is over, if it is the first: a run that is looked at keeps its inputs.

        The watch has a thread of its own, so that no callback waits for it.
        """
        first, self._first_run = self._first_run, False
        if self._done or first is False:
            return
        copies = {name: np.array(array) for name, array in feeds.items()}

        def tell() -> None:
            if run.cancelled() or run.exception() is not None:
                return
            if first is None and not _is_small_and_float(self._source):
                return
            broken = [name for name, array in zip(names, run.result(), strict=True) if not _is_finite(array)]
            self._done = self._tell(copies, broken) or self._done

        run.add_done_callback(lambda _: OwnThread(tell, name="openhtp-range", holds_up_exit=True).start())

    def look(self, feeds: Mapping[str, npt.ArrayLike], names: Sequence[str], results: Sequence[Array]) -> None:
        """Look at the results of one run."""
        if self._done:
            return
        broken = [name for name, array in zip(names, results, strict=True) if not _is_finite(array)]
        first, self._first_run = self._first_run, False
        if broken or first or (first is None and _is_small_and_float(self._source)):
            # A later run may overflow where the first did not.
            self._done = self._tell(feeds, broken) or bool(broken)

    def _tell(self, feeds: Mapping[str, npt.ArrayLike], broken: Sequence[str]) -> bool:
        try:
            arrays = {name: np.asarray(array) for name, array in feeds.items()}
            overflows = check_range(self._source, [arrays], dims=self._dims, freeze=self._freeze)
            only_here = bool(broken) and not overflows and self._is_finite_on_cpu(arrays, broken[0])
        except Exception as error:  # A report must not end a run that is over.
            log.debug("the range of values cannot be checked: %s", error)
            return False
        if overflows:
            what = f"output {broken[0]!r} has infinities or NaNs" if broken else "a run left half precision"
            more = f" (and {len(overflows) - 1} more)" if len(overflows) > 1 else ""
            log.warning("%s: %s%s; quantize the model, or scale its values down", what, overflows[0], more)
        elif only_here:
            log.warning(
                "output %r has infinities or NaNs that full precision does not have: a small number may be 0"
                " in half precision; openhtp run --check names the node",
                broken[0],
            )
        return bool(overflows)

    def _is_finite_on_cpu(self, feeds: Mapping[str, Array], name: str) -> bool:
        """Whether an output has neither infinities nor NaNs in full precision."""
        session = plain_session(with_fixed_inputs(self._source, self._dims, self._freeze, may_stay_open=True))
        wanted = {value.name for value in session.get_inputs()}
        (output,) = session.run([name], {key: array for key, array in feeds.items() if key in wanted})
        return _is_finite(output)


def _is_small_and_float(source: ModelSource) -> bool:
    """Whether checking a run of a model costs little and is of use: quantized values cannot overflow."""
    if isinstance(source, (str, os.PathLike)) and Path(source).stat().st_size > SMALL_BYTES:
        return False
    proto, _, _ = open_model(source)
    return (
        proto.ByteSize() <= SMALL_BYTES
        and len(proto.graph.node) <= SMALL_NODES
        and all(tensor.data_location != TensorProto.EXTERNAL for tensor in proto.graph.initializer)
        and not any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    )


def _is_finite(array: Array) -> bool:
    if array.dtype.kind != "f" or not array.size:
        return True
    # Both pass a NaN on, and neither takes memory.
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))
