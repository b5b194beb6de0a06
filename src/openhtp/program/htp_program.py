"""The program for one SoC: kernels in running order, steps after which it may yield, and the buffers between.

The compiler groups ops once: the engine computes the steps, the cost model prices the kernels. The chip runs a
kernel as one piece; nothing inside a kernel can be waited for or observed.
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
from openhtp.program.placement import Placed
from openhtp.program.qnn_program import QnnProgram


@dataclass(frozen=True, slots=True)
class NativeTensor:
    """An input or output in the HMX weight layout, and which half of the cache it is: ``key`` or ``value``."""

    name: str
    side: str

    @property
    def half(self) -> Side:
        """The side as a member of the layout's enum."""
        return Side[self.side.upper()]


@dataclass(frozen=True, slots=True)
class MaskInput:
    """The attention mask, and the range of stored numbers that let a position take part."""

    name: str
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKv:
    """Native caches of one graph: ``index`` says where new tokens go, ``tokens`` of them come at a time."""

    index: str
    tokens: int
    context: int
    caches: tuple[NativeTensor, ...]
    outputs: tuple[NativeTensor, ...] = ()
    mask: MaskInput | None = None
    strict: bool = False

    @property
    def last_index(self) -> int:
        """The highest position at which a pass still has room."""
        return self.context - round_up(self.tokens)

    def place(self, index: int) -> int:
        """The position of new tokens: positions are taken in whole blocks."""
        return -(-index // BLOCK) * BLOCK


Array = npt.NDArray[Any]


class Unit(enum.Enum):
    """Units that a kernel can keep busy: the matrix unit, the vector threads, the transfers to and from DDR."""

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
    """An op of a kernel. ``sources`` names the graph's nodes that it stands for, the computing one first.

    ``rounds`` is off where the next op of the kernel takes the result unrounded from the accumulator.
    """

    work: Work
    sources: tuple[str, ...]
    clamp: Clamp | None = None
    rounds: bool = True


@dataclass(frozen=True, slots=True)
class Kernel:
    """Ops that run as one piece, each on the result of the one before. The first gives the kernel its name.

    ``kind`` names its row of the cost model, None where no published network has such a kernel.
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
        """Tensors that it reads, constants too, without those that it makes for itself."""
        own = {name for node in self.nodes for name in node.outputs}
        read = dict.fromkeys(name for node in self.nodes for name in node.inputs if name is not None)
        return tuple(name for name in read if name not in own)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that other kernels read: the result of its last node."""
        return self.nodes[-1].outputs

    @property
    def sources(self) -> tuple[str, ...]:
        """The graph's nodes that it stands for."""
        return tuple(name for node in self.nodes for name in node.sources)


@dataclass(frozen=True, slots=True)
class Step:
    """Kernels ``begin`` to ``end`` (not included), after which the program may yield.

    Where its last kernel is computed strip by strip, it may yield between the tiles, too: ``rows`` are the ends of
    all tiles but the last, in rows of the kernel's result.
    """

    begin: int
    end: int
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor between kernels: its bytes on the chip, the kernel that makes it and the last one that needs it.

    Tensors that the client writes exist from kernel 0 on; tensors that it reads are kept to the last kernel.
    """

    tensor: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class HtpProgram:
    """A portable program made ready for one SoC. Tensors, static data and options are those of ``source``.

    ``placed`` says where its data lies in VTCM, if a file had that already.
    """

    source: QnnProgram
    soc: SocSpec
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...] = ()
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)
    native_kv: NativeKv | None = None
    placed: Placed | None = field(default=None, repr=False)

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
        """The client's choices for the graph."""
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
        """The kernel that makes each tensor, and the kernels that read it."""
        return DefUse(self.kernels, self.source.output_names)
