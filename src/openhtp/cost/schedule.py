"""The timeline of a program in full: every tile on every unit and every transfer, in cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openhtp.compiler.sizes import sizes_of
from openhtp.core.precision import NumberFormat
from openhtp.cost.rates import fitted_parameters
from openhtp.cost.running import PricedRun, Tuning
from openhtp.hw.clocks import FULL, Clocks
from openhtp.program.htp_program import HtpProgram, Unit
from openhtp.program.placement import Move
from openhtp.program.schedule import Activity, KernelTime, Schedule, ScheduledOperation

_READS = (Move.LOAD, Move.FILL)
_WRITES = (Move.STORE, Move.SPILL)


def schedule_of(program: HtpProgram, precision: NumberFormat | None = None, clocks: Clocks = FULL) -> Schedule:
    """When everything of a program happens on the SoC that it is compiled for. All times are modelled.

    Args:
        program: a graph compiled for a SoC.
        precision: what a float graph would be computed in; left out, the program's own types decide.
        clocks: how fast the units go, by the votes in force; burst mode unless given.
    """
    soc, options = program.soc, program.options
    known = program.placed if precision is None else None
    run = PricedRun.of(sizes_of(program), soc, precision, fitted_parameters(), clocks, Tuning.of(program), known)
    drawing = _Drawing(run, clocks.core_mhz(soc.arch))
    kernels: list[KernelTime] = []
    operations: list[ScheduledOperation] = []
    for number in range(len(run.kernels)):
        kernels.append(drawing.kernel(number))
        operations += drawing.operations(number)
    operations.sort(key=lambda each: (each.start, each.kernel, each.tile or 0))
    return Schedule(
        soc=soc.name,
        mhz=clocks.core_mhz(soc.arch),
        cycles=kernels[-1].end if kernels else 0,
        hvx_threads=min(soc.hvx, options.hvx_threads or soc.hvx),
        kernels=tuple(kernels),
        operations=tuple(operations),
        placed=run.placed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipeline:
    """Tiles that follow each other ``every`` so often. The DMA reads for them and writes their results in turn.

    Where a tile is computed faster than written, the DMA would wait after the first read: the next comes earlier.
    """

    start: float
    every: float
    tiles: int
    read: float
    compute: float
    write: float

    @property
    def _earlier(self) -> float:
        return max(0.0, self.write - self.compute) if self.tiles > 1 and self.read > 0 else 0.0

    def starts_at(self, tile: int) -> float:
        """When the first stage of a tile begins."""
        return self.start + tile * self.every - (self._earlier if tile else 0.0)

    def write_at(self, ready: float) -> float:
        """When a result that is ready is written: not while the DMA reads for a later tile.

        Both fit into the time of one tile, so that there is always room right behind such a read.
        """
        if self.read <= 0 or self.every <= 0:
            return ready
        first = self.start - self._earlier
        # Rounding must not move what ends with a tile into that tile's time.
        tile, since = divmod(ready - first + self.every * (_ROUNDING - 1.0), self.every)
        if tile >= self.tiles:
            return ready
        if since < self.read:
            return first + tile * self.every + self.read
        if since + self.write > self.every * _ROUNDING and tile + 1 < self.tiles:
            return first + (tile + 1) * self.every + self.read
        if self._earlier and tile + 1 == self.tiles:
            return first + self.tiles * self.every  # the result of the tile before is written first
        return ready


_ROUNDING = 1.0 + 1e-9
"""A tile that fills its time exactly still fits."""


class _Drawing:
    """A run as operations. The DMA has several queues, so its operations may overlap; HMX and HVX have one."""

    def __init__(self, run: PricedRun, mhz: float) -> None:
        self._run = run
        self._mhz = mhz
        self._begin, self._end = run.line.begin[0], run.line.end[0]
        self._own, self._fetched = run.line.own[0], run.line.fetched[0]
        self._moved: list[dict[Move, int]] = [{} for _ in run.kernels]
        for each in run.placed.transfers:
            moved = self._moved[each.at]
            moved[each.move] = moved.get(each.move, 0) + each.nbytes

    def kernel(self, number: int) -> KernelTime:
        size, busy = self._run.kernels[number], self._run.busy
        start, end = self._cycles(self._begin[number]), self._cycles(self._end[number])
        units = {
            Unit.HMX: busy.hmx[0, number],
            Unit.HVX: busy.hvx[0, number],
            Unit.DMA: busy.dma[0, number] + busy.weights[0, number],
        }
        return KernelTime(
            index=number,
            name=size.name,
            op=size.op,
            kind=size.kind,
            nodes=size.nodes,
            start=start,
            end=end,
            tiles=self._run.placed.tiles[number],
            busy={unit: self._cycles(us) for unit, us in units.items() if us > 0},
            overhead=self._cycles(busy.overhead[0, number]),
            waited=max(0, self._cycles(self._start(number)) - start),
            ddr_read=self._ddr_bytes(number, *_READS, Move.WEIGHTS),
            ddr_written=self._ddr_bytes(number, *_WRITES),
        )

    def _ddr_bytes(self, number: int, *moves: Move) -> int:
        moved, tuning = self._moved[number], self._run.tuning
        return sum(tuning.over_the_bus(move, moved.get(move, 0)) for move in moves)

    def operations(self, number: int) -> Iterator[ScheduledOperation]:
        moved, busy = self._moved[number], self._run.busy
        weights = busy.weights[0, number]
        if weights > 0:
            came = self._fetched[number]
            whole, ddr = moved[Move.WEIGHTS], self._ddr_bytes(number, Move.WEIGHTS)
            yield self._operation(number, None, Unit.DMA, Activity.WEIGHTS, came - weights, came, whole, ddr)
        start = self._start(number)
        if self._cycles(start) > self._cycles(self._begin[number]):
            yield self._operation(number, None, Unit.DMA, Activity.CHECKPOINT, self._begin[number], start)
        yield from self._tiles(number, start + busy.overhead[0, number])

    def _start(self, number: int) -> float:
        """When the kernel's own work begins: after the one before it, or once enough of its weights are here."""
        return float(max(self._begin[number], self._end[number] - self._own[number]))

    def _tiles(self, number: int, start: float) -> Iterator[ScheduledOperation]:
        size, form = self._run.kernels[number], self._run.formats[number]
        busy, moved, count = self._run.busy, self._moved[number], self._run.placed.tiles[number]
        read, written = size.read * form.activation_bytes, size.written * form.activation_bytes
        bytes_moved = sum(moved.get(move, 0) for move in (*_READS, *_WRITES))
        per_byte = busy.dma[0, number] / bytes_moved if bytes_moved else 0.0
        hmx, hvx = busy.hmx[0, number], busy.hvx[0, number]
        stages = [
            (Unit.DMA, Activity.of(move), moved.get(move, 0) * per_byte, moved.get(move, 0)) for move in _READS
        ]
        stages += [(Unit.HMX, Activity.COMPUTE, hmx, 0), (Unit.HVX, Activity.COMPUTE, hvx, 0)]
        stages += [
            (Unit.DMA, Activity.of(move), moved.get(move, 0) * per_byte, moved.get(move, 0)) for move in _WRITES
        ]
        pipeline = _Pipeline(
            start=start,
            every=max(hmx, hvx, busy.dma[0, number]) / count,
            tiles=count,
            read=sum(moved.get(move, 0) for move in _READS) * per_byte / count,
            compute=(hmx + hvx) / count,
            write=sum(moved.get(move, 0) for move in _WRITES) * per_byte / count,
        )
        for tile in range(count):
            at = pipeline.starts_at(tile)
            is_written = False
            for unit, activity, us, nbytes in stages:
                if us <= 0:
                    continue
                computes = activity is Activity.COMPUTE
                if activity in (Activity.STORE, Activity.SPILL) and not is_written:
                    at, is_written = pipeline.write_at(at), True
                ddr = self._ddr_bytes(number, Move(activity.value)) if nbytes else 0
                first_reader = computes and (unit is Unit.HMX or hmx <= 0)
                yield self._operation(
                    number,
                    tile,
                    unit,
                    activity,
                    at,
                    at + us / count,
                    _part(nbytes, tile, count),
                    _part(ddr, tile, count),
                    read // count if first_reader else 0,
                    written // count if unit is Unit.HVX and computes else 0,
                )
                at += us / count

    def _operation(
        self,
        kernel: int,
        tile: int | None,
        unit: Unit,
        activity: Activity,
        start: float,
        end: float,
        nbytes: int = 0,
        ddr: int = 0,
        vtcm_read: int = 0,
        vtcm_written: int = 0,
    ) -> ScheduledOperation:
        """``nbytes`` go from or to VTCM by the DMA, of which ``ddr`` go over the bus."""
        leaves = activity in (Activity.STORE, Activity.SPILL)
        return ScheduledOperation(
            kernel=kernel,
            tile=tile,
            unit=unit,
            activity=activity,
            start=self._cycles(start),
            end=self._cycles(end),
            ddr_read=0 if leaves else ddr,
            ddr_written=ddr if leaves else 0,
            # What the DMA reads from DDR it writes to VTCM, and the other way round.
            vtcm_read=vtcm_read + (nbytes if leaves else 0),
            vtcm_written=vtcm_written + (0 if leaves else nbytes),
        )

    def _cycles(self, us: float) -> int:
        return round(float(us) * self._mhz)


def _part(nbytes: int, tile: int, count: int) -> int:
    """Of ``nbytes`` bytes, those of one of ``count`` tiles."""
    return (nbytes * (tile + 1)) // count - (nbytes * tile) // count
