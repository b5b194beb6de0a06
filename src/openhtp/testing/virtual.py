"""A device whose time only moves when something waits for it: timeouts and queues, tested without waiting."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.device.clock import VirtualClock
from openhtp.device.config import DeviceConfig
from openhtp.device.core import DeviceCore, ledger_of
from openhtp.device.jobs import Job
from openhtp.device.runner import ModelledRunner
from openhtp.device.target import EmulatedChip
from openhtp.engine.modelled import ModelledEngine
from openhtp.engine.ort import OrtEngine
from openhtp.engine.protocol import Engine
from openhtp.hw.catalog import find_soc
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.local_link import LocalLink
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.device import Device
from openhtp.sched.policy import policy_named
from openhtp.sched.scheduler import Scheduler


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
