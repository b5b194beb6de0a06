"""From a compiled program to its schematic: every op that the chip runs, when, on what, and what it moves.

All of it is read off the program's schedule (``cost.schedule_of``); here ops get numbers, names, and the nodes and
ops that they belong to and wait for.
"""

from __future__ import annotations

from typing import Any

from openhtp.core.tensor import TensorSpec
from openhtp.cost import estimate, schedule_of
from openhtp.hw.clocks import FULL, Clocks
from openhtp.program.htp_program import HtpProgram, Kernel, Unit
from openhtp.program.placement import RangeRole
from openhtp.program.schedule import Activity, Schedule, ScheduledOperation
from openhtp.records.schematic import (
    FIRST_NODE,
    INPUT,
    OUTPUT,
    SYSTEM,
    ChipEngine,
    HtpOp,
    OpRole,
    QnnOp,
    Region,
    Schematic,
)

_MOVES = {
    Activity.LOAD: ("DramToTcm", OpRole.READ),
    Activity.FILL: ("DramToTcm", OpRole.READ),
    Activity.WEIGHTS: ("DramToTcm", OpRole.READ),
    Activity.STORE: ("TcmToDram", OpRole.WRITE),
    Activity.SPILL: ("TcmToDram", OpRole.WRITE),
    Activity.CHECKPOINT: ("DmaCheckpointWait", OpRole.WAIT),
}
# The owners of transfers that do not belong to their kernel.
_OWNERS = {Activity.LOAD: INPUT, Activity.STORE: OUTPUT, Activity.CHECKPOINT: SYSTEM}
_ENGINES = {Unit.HMX: ChipEngine.HMX, Unit.HVX: ChipEngine.HVX, Unit.DMA: ChipEngine.DMA}


def schematic_of(program: HtpProgram, *, core: int = 0, clocks: Clocks = FULL) -> Schematic:
    """The program op by op. All times are modelled.

    A graph that is spread over several cores, from ``core`` on, has a share of every op on each of them.
    """
    schedule = schedule_of(program, clocks=clocks)
    nodes = _nodes(program)
    cores = range(core, core + program.options.num_cores)
    maker = _Maker(program, schedule, {node.name: node.number for node in nodes}, cores)
    for operation in schedule.operations:
        maker.add(operation)
    return Schematic(
        graph=program.name,
        soc=program.soc.name,
        clock_hz=round(schedule.mhz * 1e6),
        launch_cycles=round(estimate(program).launch_us * schedule.mhz),
        cores=max(program.soc.cores, cores.stop),
        hvx_threads=schedule.hvx_threads,
        vtcm_bytes=schedule.placed.vtcm_bytes,
        nodes=nodes,
        ops=tuple(maker.ops),
        regions=maker.regions(),
    )


def _nodes(program: HtpProgram) -> tuple[QnnOp, ...]:
    """The nodes of the graph, numbered in its order, behind those that stand for no node."""
    nodes = [QnnOp(SYSTEM, "", "SystemService"), QnnOp(INPUT, "Input", "Input"), QnnOp(OUTPUT, "Output", "Output")]
    numbers = {node.name: number for number, node in enumerate(program.source.nodes, start=FIRST_NODE)}
    homes = {source: numbers.get(kernel.name) for kernel in program.kernels for source in kernel.sources}
    for node in program.source.nodes:
        number, home = numbers[node.name], homes.get(node.name)
        into = None if home == number else home
        nodes.append(QnnOp(number, node.name, node.op, (node.origin or node.name,), into))
    return tuple(nodes)


class _Maker:
    """Turns operations into ops, and knows which op made each tensor."""

    def __init__(self, program: HtpProgram, schedule: Schedule, numbers: dict[str, int], cores: range) -> None:
        self.ops: list[HtpOp] = []
        self._program = program
        self._schedule = schedule
        self._numbers = numbers
        self._cores = cores
        self._constants: dict[str, int] = {}
        self._fetched: dict[int, int] = {}
        # The last op that computed something of a kernel, or brought something in for it.
        self._computed: dict[int, int] = {}
        self._loaded: dict[int, int] = {}
        self._makers = {name: at for at, kernel in enumerate(program.kernels) for name in kernel.outputs}

    def add(self, operation: ScheduledOperation) -> None:
        """One operation; what runs on HVX runs on all its threads."""
        kernel = self._program.kernels[operation.kernel]
        if operation.activity is not Activity.COMPUTE:
            self._add_move(operation, kernel)
            return
        threads = self._schedule.hvx_threads if operation.unit is Unit.HVX else 1
        inputs = self._inputs(operation.kernel, kernel)
        for thread in range(threads):
            self._append(
                operation,
                name=kernel.op,
                owner=self._numbers.get(kernel.name, SYSTEM),
                role=OpRole.COMPUTE,
                tensor=self._result(kernel),
                inputs=inputs,
                thread=thread,
                threads=threads,
            )
        self._computed[operation.kernel] = self.ops[-1].id

    def regions(self) -> tuple[Region, ...]:
        """The ranges of VTCM in use, with their times."""
        times = self._schedule.kernels
        regions: list[Region] = []
        for placement in self._schedule.placed.placements:
            kernel = self._program.kernels[placement.maker]
            role = placement.role
            name = kernel.outputs[0] if role is RangeRole.RESULT else f"{kernel.name} ({role.value})"
            start, end = times[placement.first].start, times[placement.last].end
            cores = len(self._cores)
            offset, nbytes = placement.offset // cores, placement.nbytes // cores
            regions += [Region(name, core, offset, nbytes, start, end) for core in self._cores]
        return tuple(regions)

    def _add_move(self, operation: ScheduledOperation, kernel: Kernel) -> None:
        name, role = _MOVES[operation.activity]
        owner = _OWNERS.get(operation.activity, self._numbers.get(kernel.name, SYSTEM))
        tensor = self._result(kernel)
        inputs: tuple[int, ...] = ()
        if operation.activity is Activity.WEIGHTS:
            constants = [name for name in kernel.inputs if name in self._program.statics]
            inputs = tuple(self._constant(name, owner) for name in constants)
            tensor = self._program.tensors[constants[0]] if constants else tensor
        elif role is OpRole.WRITE and operation.kernel in self._computed:
            inputs = (self._computed[operation.kernel],)
        self._append(operation, name=name, owner=owner, role=role, tensor=tensor, inputs=inputs)
        if operation.activity is Activity.WEIGHTS:
            self._fetched[operation.kernel] = self.ops[-1].id
        elif role is OpRole.READ:
            self._loaded[operation.kernel] = self.ops[-1].id

    def _inputs(self, number: int, kernel: Kernel) -> tuple[int, ...]:
        """The ops whose results a compute op reads: other kernels, weights, and the last data brought in."""
        makers = (self._makers[name] for name in kernel.inputs if name in self._makers)
        ops = [self._computed[maker] for maker in makers if maker != number and maker in self._computed]
        ops += [brought_in[number] for brought_in in (self._fetched, self._loaded) if number in brought_in]
        return tuple(dict.fromkeys(ops))

    def _constant(self, name: str, owner: int) -> int:
        if name not in self._constants:
            spec = self._program.tensors[name]
            serial = len(self.ops) + 1
            op = HtpOp(
                serial=serial,
                name="$Const",
                owner=owner,
                engine=ChipEngine.NONE,
                role=OpRole.CONSTANT,
                core=self._cores[0],
                **_typed(spec),
            )
            self.ops.append(op)
            self._constants[name] = op.id
        return self._constants[name]

    def _append(
        self,
        operation: ScheduledOperation,
        *,
        name: str,
        owner: int,
        role: OpRole,
        tensor: TensorSpec,
        inputs: tuple[int, ...],
        thread: int = 0,
        threads: int = 1,
    ) -> None:
        """One op on each core; cores and threads have equal shares of what it moves."""
        waits, parts = operation.activity is Activity.CHECKPOINT, threads * len(self._cores)
        for core in self._cores:
            self.ops.append(
                HtpOp(
                    serial=len(self.ops) + 1,
                    name=name,
                    owner=owner,
                    engine=ChipEngine.NONE if waits else _ENGINES[operation.unit],
                    role=role,
                    thread=thread,
                    core=core,
                    start=max(0, operation.start),
                    cycles=operation.end - max(0, operation.start),
                    inputs=inputs,
                    dram_read=operation.ddr_read // parts,
                    dram_write=operation.ddr_written // parts,
                    vtcm_read=operation.vtcm_read // parts,
                    vtcm_write=operation.vtcm_written // parts,
                    **_typed(tensor),
                )
            )

    def _result(self, kernel: Kernel) -> TensorSpec:
        return self._program.tensors[kernel.outputs[0]]


def _typed(spec: TensorSpec) -> dict[str, Any]:
    """Shape, type and encoding of the tensor that an op makes."""
    return {
        "dims": spec.shape,
        "dtype": spec.dtype.name,
        "step_size": float(getattr(spec.quant, "scale", 0.0)),
        "zero_offset": int(getattr(spec.quant, "offset", 0)),
    }
