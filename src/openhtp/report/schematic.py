"""From a compiled program to its schematic: every op that the chip runs, when, on what, and what it moves."""

from __future__ import annotations

import math

from openhtp.core.tensor import TensorSpec
from openhtp.cost.model import OpTime, estimate
from openhtp.program.htp_program import HtpProgram, Kernel
from openhtp.trace.schematic import (
    FIRST_NODE,
    INPUT,
    OUTPUT,
    SYSTEM,
    Engine,
    HtpOp,
    QnnOp,
    Region,
    Role,
    Schematic,
)

# No public table says what clock a corner means; these are the clocks at which parts were seen to run (estimates).
_CLOCK_HZ = {68: 1_200_000_000, 69: 1_400_000_000, 73: 1_500_000_000, 75: 1_800_000_000}
_NEWER_CLOCK_HZ = 2_100_000_000


def schematic_of(program: HtpProgram, *, core: int = 0) -> Schematic:
    """The program op by op. All times are modelled."""
    soc = program.soc
    clock_hz = _CLOCK_HZ.get(soc.arch, _NEWER_CLOCK_HZ)
    told = estimate(program)
    nodes = _nodes(program)
    threads = min(program.options.hvx_threads or soc.hvx, soc.hvx)
    maker = _Maker(program, {node.name: node.number for node in nodes}, clock_hz, threads, core)
    for kernel, time in zip(program.kernels, told.ops, strict=True):
        maker.add(kernel, time)
    return Schematic(
        graph=program.name,
        soc=soc.name,
        clock_hz=clock_hz,
        launch_cycles=round(told.launch_us * clock_hz / 1e6),
        cores=max(soc.cores, core + 1),
        hvx_threads=threads,
        vtcm_bytes=soc.vtcm_bytes,
        nodes=nodes,
        ops=tuple(maker.ops),
        regions=maker.regions(),
    )


def _nodes(program: HtpProgram) -> tuple[QnnOp, ...]:
    """The nodes of the graph, numbered in its order, behind those that stand for no node."""
    found = [QnnOp(SYSTEM, "", "SystemService"), QnnOp(INPUT, "Input", "Input"), QnnOp(OUTPUT, "Output", "Output")]
    for number, node in enumerate(program.source.nodes, start=FIRST_NODE):
        found.append(QnnOp(number, node.name, node.op, (node.name,)))
    return tuple(found)


class _Maker:
    """Puts ops on the timeline, one kernel behind the other."""

    def __init__(
        self, program: HtpProgram, numbers: dict[str, int], clock_hz: int, threads: int, core: int
    ) -> None:
        self.ops: list[HtpOp] = []
        self._program = program
        self._numbers = numbers
        self._clock_hz = clock_hz
        self._threads = threads
        self._core = core
        self._at = 0
        self._dma_free = 0
        self._spans: list[tuple[int, int]] = []
        self._makers: dict[str, int] = {}

    def add(self, kernel: Kernel, time: OpTime) -> None:
        """The ops of one kernel: what it fetches, then what it computes."""
        owner = self._numbers.get(kernel.name, SYSTEM)
        begin, whole = self._at, self._cycles(time.us)
        written = self._program.tensors[kernel.outputs[0]]
        inputs = tuple(self._makers[name] for name in kernel.inputs if name in self._makers)
        read = self._nbytes(kernel.inputs)
        if time.memory_us > 0:
            inputs += (self._fetch(kernel, owner, time, begin),)
        overhead = max(0, min(whole - 1, self._cycles(time.overhead_us)))
        computing = []
        if time.hmx_us > 0:
            computing.append((Engine.HMX, 0, self._cycles(time.hmx_us)))
        if time.hvx_us > 0:
            computing += [(Engine.HVX, thread, self._cycles(time.hvx_us)) for thread in range(self._threads)]
        if not computing and whole:
            computing.append((Engine.HVX, 0, whole - overhead))
        for engine, thread, cycles in computing:
            cycles = min(cycles, whole - overhead)
            self._append(
                kernel,
                owner,
                written,
                inputs,
                engine=engine,
                thread=thread,
                start=begin + overhead,
                cycles=cycles,
                vtcm_read=read // len(computing),
                vtcm_write=self._nbytes(kernel.outputs) // len(computing),
            )
        self._at = begin + whole
        self._spans.append((begin, self._at))
        for name in kernel.outputs:
            if self.ops:
                self._makers[name] = self.ops[-1].id

    def regions(self) -> tuple[Region, ...]:
        """Where tensors lie in VTCM, as long as there is room."""
        found, limit = [], self._program.soc.vtcm_bytes
        for buffer in self._program.buffers:
            if not self._spans or buffer.nbytes > limit:
                continue
            start, end = self._spans[buffer.first][0], self._spans[buffer.last][1]
            found.append(Region(buffer.tensor, self._core, 0, buffer.nbytes, start, end))
        return tuple(found)

    def _fetch(self, kernel: Kernel, owner: int, time: OpTime, begin: int) -> int:
        constants = [name for name in kernel.inputs if name in self._program.statics]
        nbytes = self._nbytes(constants) or self._nbytes(kernel.inputs)
        cycles = self._cycles(time.memory_us)
        start = max(self._dma_free, begin - cycles)
        self._dma_free = start + cycles
        self._append(
            kernel,
            owner,
            self._program.tensors[(constants or kernel.inputs)[0]],
            (),
            name="DramToTcm",
            engine=Engine.DMA,
            role=Role.READ,
            start=start,
            cycles=cycles,
            dram_read=nbytes,
            vtcm_write=nbytes,
        )
        return self.ops[-1].id

    def _append(
        self,
        kernel: Kernel,
        owner: int,
        tensor: TensorSpec,
        inputs: tuple[int, ...],
        *,
        engine: Engine,
        start: int,
        cycles: int,
        name: str = "",
        role: Role = Role.COMPUTE,
        thread: int = 0,
        dram_read: int = 0,
        vtcm_read: int = 0,
        vtcm_write: int = 0,
    ) -> None:
        quant = tensor.quant
        self.ops.append(
            HtpOp(
                serial=len(self.ops) + 1,
                name=name or kernel.op,
                owner=owner,
                engine=engine,
                role=role,
                thread=thread,
                core=self._core,
                start=start,
                cycles=cycles,
                inputs=inputs,
                dims=tensor.shape,
                dtype=tensor.dtype.name,
                step_size=float(getattr(quant, "scale", 0.0)),
                zero_offset=int(getattr(quant, "offset", 0)),
                dram_read=dram_read,
                vtcm_read=vtcm_read,
                vtcm_write=vtcm_write,
            )
        )

    def _cycles(self, us: float) -> int:
        return math.ceil(us * self._clock_hz / 1e6)

    def _nbytes(self, names: tuple[str, ...] | list[str]) -> int:
        return sum(self._program.tensors[name].nbytes for name in names)
