"""Puts a device together from what was chosen of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import MIB
from openhtp.device.clock import WallClock
from openhtp.device.config import DeviceConfig
from openhtp.device.core import DeviceCore
from openhtp.device.jobs import Job
from openhtp.device.runner import BesideRunner, InlineRunner, Runner, SideBySideRunner
from openhtp.device.target import EmulatedChip
from openhtp.hw.catalog import find_soc
from openhtp.memory.ledger import Ledger
from openhtp.sched.policy import policy_named
from openhtp.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from openhtp.device.library_target import LibraryTarget


def build_core(config: DeviceConfig) -> DeviceCore:
    """An HTP on the wall clock: emulated, computing on ONNX Runtime's CPU kernels, or the vendor's library."""
    if config.library is not None:
        from openhtp.device.library_target import LibraryTarget  # with all its bindings

        return build_library_core(config, LibraryTarget(config.library, find_soc(config.soc)))
    from openhtp.engine.ort import OrtEngine  # a third of a second that only a device that computes must pay

    engine = OrtEngine(threads=config.threads, yield_points=config.yield_points)
    clock, resources = WallClock(), config.resources()
    at_once = resources.graphs_at_once

    def make_runner(jobs: dict[int, Job]) -> Runner:
        return SideBySideRunner(jobs, clock.now, at_once) if at_once > 1 else InlineRunner(jobs, clock.now)

    return DeviceCore(
        scheduler=Scheduler(resources, policy_named(config.policy)),
        clock=clock,
        arch=find_soc(config.soc).arch,
        target=EmulatedChip(engine, find_soc(config.soc)),
        make_runner=make_runner,
        make_ledger=lambda: ledger_of(config),
    )


def ledger_of(config: DeviceConfig) -> Ledger:
    """The memory that a client of the device can have."""
    soc = find_soc(config.soc)
    return Ledger(
        limit=SESSION_LIMIT_BYTES if config.domain_mb is None else config.domain_mb * MIB,
        most=soc.process_domains if config.process_domains is None else config.process_domains,
        vtcm_bytes=config.resources().vtcm_bytes,
    )


def build_library_core(config: DeviceConfig, target: LibraryTarget) -> DeviceCore:
    """A device that computes with the vendor's library, on the thread that calls it."""
    clock = WallClock()
    return DeviceCore(
        scheduler=Scheduler(config.resources(), policy_named(config.policy)),
        clock=clock,
        arch=find_soc(config.soc).arch,
        target=target,
        make_runner=lambda jobs: BesideRunner(jobs, clock.now, target.thread),
        make_ledger=lambda: ledger_of(config),
        library=target,
    )
