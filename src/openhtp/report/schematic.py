"""From a compiled program to its schematic: every op that the chip runs, when, on what, and what it moves.

All of it is read off the program's schedule (``cost.schedule_of``); here ops get numbers, names, and the nodes and
ops that they belong to and wait for.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

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
_BLOCK = 32
"""Channels of a block of the HMX."""
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
    maker.add_services()
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
        # Where the ops of a kernel's first tile are, what they waited for, and where its results were carried out.
        self._first: dict[int, range] = {}
        self._waits: dict[int, list[int]] = {}
        self._carried_out: dict[int, int] = {}
        self._makers = {name: at for at, kernel in enumerate(program.kernels) for name in kernel.outputs}

    def add(self, operation: ScheduledOperation) -> None:
        """One operation; what runs on HVX runs on all its threads."""
        kernel = self._program.kernels[operation.kernel]
        if operation.activity is not Activity.COMPUTE:
            self._add_move(operation, kernel)
            return
        threads = self._schedule.hvx_threads if operation.unit is Unit.HVX else 1
        inputs = self._inputs(operation.kernel, kernel)
        first = len(self.ops)
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
        self._first.setdefault(operation.kernel, range(first, len(self.ops)))

    def add_services(self) -> None:
        """What the system does before each kernel, in the fixed time that a kernel is modelled to cost.

        How that time divides is not known: each service has an equal share of it.
        """
        for number, times in enumerate(self._schedule.kernels):
            services = self._services(number)
            at = times.start + times.waited
            ends = [at + times.overhead * share // len(services) for share in range(1, len(services) + 1)]
            earlier = [*self._waits.get(number, ())]
            for (name, role), end in zip(services, ends, strict=True):
                unit = Unit.HVX if role is OpRole.COMPUTE else None
                makers = [self._computed[maker] for maker in self._sources_of(number) if role is OpRole.SYNC]
                earlier += self._add_service(number, name, role, (at, end), unit, after=tuple(makers))
                at = end
            for index in self._first.get(number, ()):
                self.ops[index] = replace(self.ops[index], after=tuple(earlier))

    def _services(self, number: int) -> list[tuple[str, OpRole]]:
        """Data are brought near, partly empty blocks are filled for matrix ops, and HVX ops are put in order."""
        kernel, times = self._program.kernels[number], self._schedule.kernels[number]
        services = [("SystemService", OpRole.READ)]
        inputs = [self._program.tensors[name] for name in kernel.inputs if name not in self._program.statics]
        if Unit.HMX in times.busy and any(spec.shape and spec.shape[-1] % _BLOCK for spec in inputs[:1]):
            services.append(("BlockZapOp", OpRole.COMPUTE))
        if Unit.HMX not in times.busy and self._sources_of(number):
            services.append(("Sync", OpRole.SYNC))
        return services if times.overhead >= len(services) else []

    def _sources_of(self, number: int) -> list[int]:
        """Kernels whose results a kernel reads."""
        names = self._program.kernels[number].inputs
        makers = dict.fromkeys(self._makers[name] for name in names if name in self._makers)
        return [maker for maker in makers if maker != number and maker in self._computed]

    def _add_service(
        self,
        number: int,
        name: str,
        role: OpRole,
        times: tuple[int, int],
        unit: Unit | None = None,
        after: tuple[int, ...] = (),
    ) -> list[int]:
        """An op of the system's on each core; it belongs to no node. The ids are those of the new ops."""
        first = len(self.ops)
        activity = Activity.CHECKPOINT if unit is None else Activity.COMPUTE
        operation = ScheduledOperation(
            kernel=number, tile=None, unit=unit or Unit.DMA, activity=activity, start=times[0], end=times[1]
        )
        tensor = self._result(self._program.kernels[number])
        self._append(operation, name=name, owner=SYSTEM, role=role, tensor=tensor, inputs=(), after=after)
        return [op.id for op in self.ops[first:]]

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
        after: tuple[int, ...] = ()
        if operation.activity is Activity.FILL:
            sources = self._sources_of(operation.kernel)
            after = tuple(self._carried_out[source] for source in sources if source in self._carried_out)
        elif operation.activity is Activity.CHECKPOINT:
            after = self._checkpoint(operation, self._fetched.get(operation.kernel))
        first = len(self.ops)
        self._append(operation, name=name, owner=owner, role=role, tensor=tensor, inputs=inputs, after=after)
        if operation.activity is Activity.CHECKPOINT:
            self._waits[operation.kernel] = [op.id for op in self.ops[first:]]
        elif operation.activity is Activity.WEIGHTS:
            self._fetched[operation.kernel] = self.ops[-1].id
        elif role is OpRole.READ:
            self._loaded[operation.kernel] = self.ops[-1].id
        elif operation.activity is Activity.SPILL and operation.tile == self._last_tile(operation.kernel):
            self._carried_out[operation.kernel] = self._checkpoint(operation, self.ops[-1].id)[-1]

    def _checkpoint(self, operation: ScheduledOperation, transfer: int | None) -> tuple[int, ...]:
        """Set where enough of a transfer is there: what waits for it goes on at once."""
        after = () if transfer is None else (transfer,)
        times = operation.end, operation.end
        return tuple(self._add_service(operation.kernel, "DmaCheckpointSet", OpRole.SET, times, after=after))

    def _last_tile(self, number: int) -> int:
        return self._schedule.kernels[number].tiles - 1

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
        after: tuple[int, ...] = (),
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
                    after=after,
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
