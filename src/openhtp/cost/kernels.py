"""What the chip runs as one piece: a program's nodes, grouped as the HTP's compiler is known to group them.

Three groups matter for time. A Sigmoid that only feeds the product with its own input is one look-up. A chain of
transposes and reshapes is one movement. Arithmetic with constants, one after the other, is one pass. Everything
else is a kernel by itself (clamps were fused before, by our own compiler).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.cost import geometry
from openhtp.cost.kinds import kind_of_op
from openhtp.cost.precision import Precision, precision_of
from openhtp.ops import find_op
from openhtp.program.program import Program, ProgramNode

_IMAGE_CHANNELS = 4
_IMAGE_SIDE = 32
_REARRANGING = frozenset({"Transpose", "Reshape"})
_CONSTANT_KINDS = frozenset({"affine", "image_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One piece of work, in elements and multiply-accumulates; bytes follow from the precision.

    Paddings are ratios of what the unit processes to what was asked for, for elements of one byte and of two.
    ``precision`` is what the tensors say, None where they are integers. ``edge`` counts elements that the client
    wrote or will read.
    """

    name: str
    op: str
    kind: str
    nodes: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    weights: int = 0
    macs: int = 0
    taps: int = 1
    edge: int = 0
    packed: int = 0
    vector_padding: tuple[float, float] = (1.0, 1.0)
    row_padding: tuple[float, float] = (1.0, 1.0)
    channel_padding: float = 1.0
    precision: Precision | None = None
    calibrated: bool = True


@dataclass(slots=True)
class _Draft:
    """A kernel being put together: the node that gives it its kind, and the last of its nodes."""

    first: ProgramNode
    kind: str
    last: OpCall
    nodes: list[str] = field(default_factory=list)
    calibrated: bool = True


def kernels_of(program: Program) -> tuple[Kernel, ...]:
    """The kernels of a program, in running order."""
    grouping = _Grouping(program)
    return tuple(_finish(draft, program.statics) for draft in grouping.drafts())


class _Grouping:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._statics = program.statics
        self._readers: dict[str, list[ProgramNode]] = {}
        for node in program.nodes:
            for spec in node.call.inputs:
                if spec is not None and spec.name not in self._statics:
                    self._readers.setdefault(spec.name, []).append(node)
        self._taken: set[str] = set()
        self._normed: set[str] = set()

    def drafts(self) -> list[_Draft]:
        # What a draft takes along is skipped when its turn comes.
        return [self._draft(node) for node in self._program.nodes if node.call.name not in self._taken]

    def _draft(self, node: ProgramNode) -> _Draft:
        kind = self._kind(node.call)
        nearest = "fully_connected" if node.work.macs else "unary"
        draft = _Draft(node, kind or nearest, node.call, list(node.sources), calibrated=kind is not None)
        if node.call.op == "Sigmoid":
            self._take_product(draft)
        elif node.call.op in _REARRANGING:
            self._take_rearranging(draft)
        elif draft.kind in _CONSTANT_KINDS:
            self._take_constants(draft)
        if draft.kind == "image_norm":
            self._normed.add(draft.last.outputs[0].name)
        return draft

    def _kind(self, call: OpCall) -> str | None:
        if call.op in geometry.CONVOLUTIONS:
            return geometry.conv_kind(call)
        if call.op.startswith("DepthWiseConv"):
            return "depthwise"
        if call.op == "FullyConnected":
            return "fully_connected"
        if call.op == "MatMul":
            factors = [spec.name for spec in call.inputs[:2] if spec is not None]
            return "fully_connected" if any(name in self._statics for name in factors) else "matmul"
        if call.op == "Transpose" and geometry.keeps_order(call):
            return "reshape"
        if find_op(call.op).affine_by_constant and self._constants(call):
            return "image_norm" if self._is_image_norm(call) else "affine"
        return kind_of_op(call.op)

    def _constants(self, call: OpCall) -> list[TensorSpec]:
        return [spec for spec in call.inputs if spec is not None and spec.name in self._statics]

    def _is_image_norm(self, call: OpCall) -> bool:
        """Whether each colour of an input image gets its own number, as networks for photographs begin."""
        shape = call.outputs[0].shape
        source = next(spec for spec in call.inputs if spec is not None and spec.name not in self._statics)
        per_channel = 1 < self._constants(call)[0].elements <= _IMAGE_CHANNELS
        image = len(shape) == 4 and min(shape[1], shape[3]) <= _IMAGE_CHANNELS
        return image and per_channel and (source.kind.is_input or source.name in self._normed)

    def _only_reader(self, call: OpCall) -> ProgramNode | None:
        readers = self._readers.get(call.outputs[0].name, [])
        if len(readers) != 1 or readers[0].call.name in self._taken or call.outputs[0].kind.is_output:
            return None
        return readers[0]

    def _take(self, draft: _Draft, node: ProgramNode) -> None:
        self._taken.add(node.call.name)
        draft.nodes += node.sources
        draft.last = node.call

    def _take_product(self, draft: _Draft) -> None:
        reader = self._only_reader(draft.last)
        source = draft.first.call.inputs[0]
        if reader is None or reader.call.op != "ElementWiseMultiply" or source is None:
            return
        if source.name in [spec.name for spec in reader.call.inputs if spec is not None]:
            draft.kind = "silu"
            self._take(draft, reader)

    def _take_rearranging(self, draft: _Draft) -> None:
        while (reader := self._only_reader(draft.last)) is not None and reader.call.op in _REARRANGING:
            if reader.call.op == "Transpose" and not geometry.keeps_order(reader.call):
                draft.kind = "transpose"
            self._take(draft, reader)
        source = draft.first.call.inputs[0]
        if draft.kind == "transpose" and source is not None and _is_image(source.shape):
            draft.kind = "image_layout"

    def _take_constants(self, draft: _Draft) -> None:
        if draft.kind == "image_norm":
            self._normed.add(draft.last.outputs[0].name)
        while (reader := self._only_reader(draft.last)) is not None and self._kind(reader.call) == draft.kind:
            if not find_op(reader.call.op).affine_by_constant:
                return
            self._take(draft, reader)
            self._normed |= {draft.last.outputs[0].name} if draft.kind == "image_norm" else set()


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[0] == 1 and shape[1] <= _IMAGE_CHANNELS and shape[2] >= _IMAGE_SIDE


def _finish(draft: _Draft, statics: Mapping[str, object]) -> Kernel:
    call = draft.first.call
    written = draft.last.outputs
    activations = [spec for spec in call.inputs if spec is not None and spec.name not in statics]
    constants = [spec for spec in call.inputs if spec is not None and spec.name in statics]
    elements = sum(spec.elements for spec in written)
    # Only the rows that are looked up leave a table.
    weights = elements if call.op == "Gather" and constants else sum(spec.elements for spec in constants)
    size = geometry.size_of(draft.kind, call, draft.first.work.macs)
    return Kernel(
        name=call.name,
        op=call.op,
        kind=draft.kind,
        nodes=tuple(draft.nodes),
        read=sum(spec.elements for spec in activations),
        written=elements if draft.calibrated else max(elements, draft.first.work.vector_ops // 8),
        weights=weights,
        edge=sum(spec.elements for spec in activations if spec.kind.is_input)
        + sum(spec.elements for spec in written if spec.kind.is_output),
        vector_padding=geometry.vector_padding(tuple(spec.shape for spec in written)),
        macs=size.macs if draft.calibrated else draft.first.work.macs,
        taps=size.taps,
        packed=size.packed,
        row_padding=size.row_padding,
        channel_padding=size.channel_padding,
        precision=precision_of((*activations, *written)),
        calibrated=draft.calibrated,
    )
