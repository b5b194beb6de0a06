"""Devices to test with: one that stands still, fails or meets faults to order, and one on a virtual clock.

The time of a virtual device only moves when something waits for it: timeouts and queues are tested without
waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from openhtp.compiler.vtcm.place import vtcm_peak_bytes
from openhtp.compiler.vtcm.spill_fill import spill_fill_bytes
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.faults import FaultPlan
from openhtp.core.status import Status
from openhtp.device.clock import VirtualClock
from openhtp.device.config import DeviceConfig
from openhtp.device.core import DeviceCore, ledger_of
from openhtp.device.jobs import Job
from openhtp.device.runner import ModelledRunner
from openhtp.device.target import EmulatedChip
from openhtp.engine.ort import OrtEngine
from openhtp.engine.protocol import Arrays, Engine
from openhtp.hw.catalog import find_soc
from openhtp.program.htp_program import HtpProgram
from openhtp.rpc import messages as ms
from openhtp.runtime.instruments.device_queries import ask, ask_about
from openhtp.runtime.instruments.injecting import injected
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.local_link import LocalLink
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.sched.policy import policy_named
from openhtp.sched.scheduler import Scheduler


def hold(device: Device) -> None:
    """Stop the device from computing; it still takes requests, and timers still run.

    A device that is shared refuses this, unless it was started with ``openhtp device start --allow-faults``: then
    no execution of this client is started, and the others go on.
    """
    ask(device, ms.Inject(hold=True))


def release(device: Device) -> None:
    """Let a held device go on."""
    ask(device, ms.Inject(hold=False))


def fail_next(graph: Graph, status: Status, *, step: int = 0) -> None:
    """Make the next execution of a graph end with ``status`` after a step."""
    ask_about(graph, lambda number: ms.Inject(fail_graph=number, fail_step=step, fail_status=status.code))


def inject(faults: str) -> AbstractContextManager[FaultPlan]:
    """Let calls of this process meet faults while a block runs, as the variable ``OPENHTP_FAULTS`` does for good.

    ::

        with inject("ssr@graphExecute:3, slow@notify:50ms") as plan:
            ...
        assert [met.call for met in plan.met] == [3]

    ``docs/tools.md`` has the points and kinds. Calls are counted from the begin of the block.
    """
    return injected(faults)


def virtual_device(
    backend: Backend,
    *,
    step_ns: int | Callable[[str, int], int] = 1_000_000,
    config: DeviceConfig | None = None,
    compute: bool = True,
) -> Device:
    """A device in this process whose steps take modelled time.

    ``step_ns`` is the time of every step, or a function of (graph name, step). ``execute_async`` works here;
    the device moves on whenever a call waits for it. It computes for real unless ``compute`` is off: then graphs
    are ready at once, run in as many steps as on the chip, and outputs stay as they are.
    """
    chosen = config or DeviceConfig()
    engine: Engine = OrtEngine(threads=chosen.threads) if compute else ModelledEngine()

    def duration(job: Job, step: int) -> int:
        return step_ns if isinstance(step_ns, int) else step_ns(job.graph.name, step)

    core = DeviceCore(
        scheduler=Scheduler(chosen.resources(), policy_named(chosen.policy)),
        clock=VirtualClock(),
        arch=find_soc(chosen.soc).arch,
        target=EmulatedChip(engine, find_soc(chosen.soc)),
        make_runner=lambda jobs: ModelledRunner(jobs, duration),
        make_ledger=lambda: ledger_of(chosen),
    )
    link = LocalLink(core)
    return Device(backend, DeviceOptions(config=chosen), lambda _: link)


# The engine that computes nothing: it shows what runs when, and gives no results. It is ready at once and runs a
# program in the steps that the chip would, each of which may yield. How long a step takes is for its runner to
# say. Outputs keep what is in their memory.


class ModelledRun:
    """One execution, of which only the order of steps is real."""

    __slots__ = ()

    def step(self, index: int) -> None:
        """Compute nothing."""


class ModelledProgram:
    """A program with all its steps."""

    def __init__(self, program: HtpProgram) -> None:
        self._specs = (*program.inputs, *program.outputs)
        self.steps = len(program.steps)
        self.spill_fill_bytes = spill_fill_bytes(program)
        self.vtcm_peak_bytes = vtcm_peak_bytes(program)

    def bind(self, arrays: Arrays) -> ModelledRun:
        """Check that every input and output has an array of a shape that it may have."""
        for spec in self._specs:
            array = arrays.get(spec.name)
            if array is None or array.dtype != spec.dtype.numpy or not spec.accepts(array.shape):
                bound = "none" if array is None else f"{array.dtype}{list(array.shape)}"
                raise InvalidArgument(
                    f"array bound to {spec} is {bound}; expected {spec.dtype.numpy}{list(spec.shape)}",
                    st.QNN_GRAPH_ERROR_INVALID_TENSOR,
                )
        return ModelledRun()

    def close(self) -> None:
        """Nothing to give back."""


class ModelledEngine:
    """Makes programs ready to take time."""

    def load(self, program: HtpProgram) -> ModelledProgram:
        """Ready as it is."""
        return ModelledProgram(program)
