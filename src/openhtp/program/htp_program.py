"""The program for one SoC: kernels in running order, steps at whose ends it may yield, and the buffers between.

One grouping, made once by the compiler: the engine computes the steps, the cost model prices the kernels. A kernel
is what the chip runs as one piece; inside it there is nothing to wait for and nothing to see.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from openhtp.core.hmx_layout import BLOCK, Side, round_up
from openhtp.core.tensor import TensorSpec
from openhtp.hw.soc import SocSpec
from openhtp.ir.def_use import DefUse
from openhtp.ir.graph import QnnNode
from openhtp.ops import Work
from openhtp.options import OptionValues
from openhtp.program.qnn_program import QnnProgram


@dataclass(frozen=True, slots=True)
class NativeTensor:
    """An input or output in the HMX weight layout, and which half of the cache it is: ``key`` or ``value``."""

    name: str
    side: str

    @property
    def half(self) -> Side:
        """The side as the layout knows it."""
        return Side[self.side.upper()]


@dataclass(frozen=True, slots=True)
class MaskInput:
    """The attention mask, and which stored numbers in it let a place take part."""

    name: str
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKv:
    """Native caches of one graph: where new tokens go is in ``index``, ``tokens`` of them come at a time."""

    index: str
    tokens: int
    context: int
    caches: tuple[NativeTensor, ...]
    outputs: tuple[NativeTensor, ...] = ()
    mask: MaskInput | None = None
    strict: bool = False

    @property
    def last_index(self) -> int:
        """The highest place at which a pass still has room."""
        return self.context - round_up(self.tokens)

    def place(self, index: int) -> int:
        """Where new tokens land: places are taken in whole blocks."""
        return -(-index // BLOCK) * BLOCK


Array = npt.NDArray[Any]


class Unit(enum.Enum):
    """What a kernel can keep busy: the matrix unit, the vector threads, the way to DDR."""

    HMX = "HMX"
    HVX = "HVX"
    DMA = "DMA"


@dataclass(frozen=True, slots=True)
class Clamp:
    """A fused activation: results are limited to ``low..high`` before they are rounded."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HtpNode(QnnNode):
    """An op of a kernel. ``sources`` names the nodes of the graph that it stands for, first the one that computes.

    ``rounds`` is off where the result goes on to the next op of the kernel as it is in the accumulator.
    """

    work: Work
    sources: tuple[str, ...]
    clamp: Clamp | None = None
    rounds: bool = True


@dataclass(frozen=True, slots=True)
class Kernel:
    """Ops that run as one piece, each on the result of the one before. The first gives the kernel its name.

    ``kind`` says what it costs like (a row of the cost model), None where no published network told.
    """

    nodes: tuple[HtpNode, ...]
    kind: str | None = None
    units: frozenset[Unit] = frozenset()

    @property
    def name(self) -> str:
        """Name of its first node."""
        return self.nodes[0].name

    @property
    def op(self) -> str:
        """Op of its first node."""
        return self.nodes[0].op

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it reads, constants too; not what it makes for itself."""
        own = {name for node in self.nodes for name in node.outputs}
        read = dict.fromkeys(name for node in self.nodes for name in node.inputs if name is not None)
        return tuple(name for name in read if name not in own)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What others read of it: the result of its last node."""
        return self.nodes[-1].outputs

    @property
    def sources(self) -> tuple[str, ...]:
        """Nodes of the graph that it stands for."""
        return tuple(name for node in self.nodes for name in node.sources)


@dataclass(frozen=True, slots=True)
class Step:
    """Kernels ``begin`` to ``end`` (not included), after which the program may yield.

    Where its last kernel is computed strip by strip, it may yield between the tiles, too: ``rows`` are their ends
    in rows of the kernel's result, but for that of the last one.
    """

    begin: int
    end: int
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor between kernels: its bytes on the chip, the kernel that makes it and the last that needs it.

    What the client writes is there from kernel 0 on, what it reads is kept to the last one.
    """

    tensor: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class HtpProgram:
    """A portable program made ready for one SoC. Tensors, static data and options are those of ``source``."""

    source: QnnProgram
    soc: SocSpec
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...] = ()
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)
    native_kv: NativeKv | None = None

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self.source.name

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Specs of all tensors by name."""
        return self.source.tensors

    @property
    def statics(self) -> Mapping[str, Array]:
        """Constant data by tensor name."""
        return self.source.statics

    @property
    def options(self) -> OptionValues:
        """What the client chose for the graph."""
        return self.source.options

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Tensors that the client writes."""
        return self.source.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensors that the client reads."""
        return self.source.outputs

    @property
    def nodes(self) -> Iterator[HtpNode]:
        """The ops of all kernels, in running order."""
        return (node for kernel in self.kernels for node in kernel.nodes)

    def kernels_of(self, step: Step) -> tuple[Kernel, ...]:
        """The kernels of a step."""
        return self.kernels[step.begin : step.end]

    def def_use(self) -> DefUse[Kernel]:
        """Which kernel makes and which ones read each tensor."""
        return DefUse(self.kernels, self.source.output_names)


_PAGE = 4096


def spill_fill_bytes(program: HtpProgram) -> int:
    """How much of what is alive at once does not fit into the graph's VTCM, at most; in whole pages."""
    vtcm = program.options.vtcm_bytes or program.soc.vtcm_bytes
    changes = [0] * (len(program.kernels) + 2)
    for buffer in program.buffers:
        changes[buffer.first] += buffer.nbytes
        changes[buffer.last + 1] -= buffer.nbytes
    alive = peak = 0
    for change in changes:
        alive += change
        peak = max(peak, alive)
    return -(-max(0, peak - vtcm) // _PAGE) * _PAGE
