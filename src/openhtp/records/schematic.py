"""What a graph is on the chip, op by op: what optrace, linting, QHAS and Netron's graph are made of.

Made from a compiled program and its modelled schedule; times are cycles of the core's clock, counted from the
begin of the graph. ``OpId`` numbers are those of the QNN nodes: 0 stands for what belongs to none, 2 and 3 for
what brings the graph's inputs in and its outputs out.
"""

from __future__ import annotations

import enum
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

SYSTEM, INPUT, OUTPUT, FIRST_NODE = 0, 2, 3, 4


class ChipEngine(enum.Enum):
    """The engine of an op; NONE if the op only waits or marks."""

    HMX = "HMX"
    HVX = "HVX"
    DMA = "DMA"
    NONE = ""


class OpRole(enum.Enum):
    """The purpose of an op: it computes, moves data, or orders the others."""

    COMPUTE = "compute"
    READ = "dma_read"
    WRITE = "dma_write"
    SET = "dma_set"
    WAIT = "dma_wait"
    SYNC = "sync"
    CONSTANT = "constant"


class QnnOp(Struct, frozen=True):
    """A node of the graph. ``framework`` names the nodes of the model that it was made from.

    ``into`` is the node whose ops compute it too, if it was fused away.
    """

    number: int
    name: str
    type: str
    framework: tuple[str, ...] = ()
    into: int | None = None


class HtpOp(Struct, frozen=True, kw_only=True):
    """One op as the chip runs it: on a thread of an engine, from ``start`` for ``cycles``; bytes that it moves.

    ``inputs`` are the ops whose results it reads, ``after`` those that the sequencer has come before it.
    """

    serial: int
    name: str
    owner: int
    engine: ChipEngine
    role: OpRole
    thread: int = 0
    core: int = 0
    start: int = 0
    cycles: int = 0
    inputs: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    dtype: str = ""
    step_size: float = 0.0
    zero_offset: int = 0
    dram_read: int = 0
    dram_write: int = 0
    vtcm_read: int = 0
    vtcm_write: int = 0
    after: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The cycle after its last."""
        return self.start + self.cycles

    @property
    def id(self) -> int:
        """The op's number in reports: serial above, OpId below."""
        return self.serial << 32 | self.owner

    @property
    def executed(self) -> bool:
        """Whether it takes part in a run; constants only lie there."""
        return self.role is not OpRole.CONSTANT


class Region(Struct, frozen=True):
    """Bytes of VTCM that a tensor holds for a while."""

    tensor: str
    core: int
    offset: int
    nbytes: int
    start: int
    end: int


class Schematic(Struct, frozen=True, kw_only=True):
    """A graph on a SoC. ``clock_hz`` turns cycles into time; both are modelled."""

    graph: str
    soc: str
    clock_hz: int
    launch_cycles: int
    cores: int
    hvx_threads: int
    vtcm_bytes: int
    nodes: tuple[QnnOp, ...]
    ops: tuple[HtpOp, ...]
    regions: tuple[Region, ...] = ()

    @property
    def executed(self) -> tuple[HtpOp, ...]:
        """Ops that take part in a run, by their begin."""
        executed_ops = (op for op in self.ops if op.executed)
        return tuple(sorted(executed_ops, key=lambda op: (op.start, op.serial)))

    @property
    def cycles(self) -> int:
        """The cycles from the first begin to the last end."""
        ops = self.executed
        return max(op.end for op in ops) - ops[0].start if ops else 0

    @property
    def by_number(self) -> dict[int, QnnOp]:
        """Nodes by OpId."""
        return {node.number: node for node in self.nodes}


class OpTrace(Struct, frozen=True, kw_only=True):
    """The log of a run's ops: when they ran, at the clocks of that run. Names are the schematic's.

    ``schematic`` is the digest of both together.
    """

    schematic: str
    clock_hz: int
    launch_cycles: int
    cores: int
    hvx_threads: int
    ops: tuple[HtpOp, ...]
    regions: tuple[Region, ...] = ()

    @classmethod
    def of(cls, digest: str, schematic: Schematic) -> OpTrace:
        """The part of a schematic that changes with the clocks."""
        return cls(schematic=digest, **{name: getattr(schematic, name) for name in _WITH_THE_CLOCKS})

    def applied_to(self, schematic: Schematic) -> Schematic:
        """The schematic of a preparation, as this run went."""
        return replace(schematic, **{name: getattr(self, name) for name in _WITH_THE_CLOCKS})


_WITH_THE_CLOCKS = ("clock_hz", "launch_cycles", "cores", "hvx_threads", "ops", "regions")


def label(node: QnnOp) -> str:
    """How listings call a node: ``conv1:OpId_21``."""
    if node.number == SYSTEM:
        return "OpId_0"
    if node.number in (INPUT, OUTPUT):
        return f"{node.name} OpId_{node.number}"
    return f"{node.name}:OpId_{node.number}"


# The leading op of every instant: the one of highest rank among those that run. Matrix ops come before
# vector ops, these before ops that read from DDR, ops that write there, checkpoints and syncs. Linting's main
# thread, QHAS' dominant path and idle cycles are all read off this one timeline.


_RANK_OF_ROLE = {OpRole.READ: 2, OpRole.WRITE: 3, OpRole.SET: 4, OpRole.WAIT: 4, OpRole.SYNC: 5}


@dataclass(frozen=True, slots=True)
class Stretch:
    """From ``start`` to ``end`` nothing changes: ``op`` leads (None: no op runs)."""

    start: int
    end: int
    op: HtpOp | None

    @property
    def cycles(self) -> int:
        """How long."""
        return self.end - self.start


def rank(op: HtpOp) -> int:
    """0 has the most to say."""
    if op.role is OpRole.COMPUTE:
        return 0 if op.engine is ChipEngine.HMX else 1
    return _RANK_OF_ROLE.get(op.role, 5)


def dominant_path(ops: Iterable[HtpOp]) -> list[Stretch]:
    """The timeline of one core from first begin to last end, without holes; equal neighbours are joined."""
    path: list[Stretch] = []
    for start, end, running in instants(ops):
        op = min(running, key=lambda each: (rank(each), each.start, each.serial), default=None)
        if path and path[-1].op is op:
            path[-1] = Stretch(path[-1].start, end, op)
        else:
            path.append(Stretch(start, end, op))
    return path


def instants(ops: Iterable[HtpOp]) -> Iterator[tuple[int, int, Sequence[HtpOp]]]:
    """Stretches of time in which the same ops run, and those ops. Ops without length take no part."""
    waiting = sorted((op for op in ops if op.cycles > 0), key=lambda op: (op.start, op.serial), reverse=True)
    running: list[tuple[int, int, HtpOp]] = []
    at = waiting[-1].start if waiting else 0
    while waiting or running:
        while waiting and waiting[-1].start <= at:
            op = waiting.pop()
            heapq.heappush(running, (op.end, op.serial, op))
        ends = [running[0][0]] if running else []
        begins = [waiting[-1].start] if waiting else []
        until = min(ends + begins)
        yield at, until, [op for _, _, op in running]
        at = until
        while running and running[0][0] <= at:
            heapq.heappop(running)


def dominant_cycles(schematic: Schematic) -> dict[int, int]:
    """For how many cycles each op led on its core."""
    cycles: dict[int, int] = defaultdict(int)
    for core in sorted({op.core for op in schematic.executed}):
        for stretch in dominant_path(op for op in schematic.executed if op.core == core):
            if stretch.op is not None:
                cycles[stretch.op.id] += stretch.cycles
    return cycles
