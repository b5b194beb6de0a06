"""Puts a device together from a SoC's name and a few switches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from openhtp.device.clock import WallClock
from openhtp.device.core import DeviceCore
from openhtp.device.jobs import Job
from openhtp.device.runner import BesideRunner, InlineRunner, Runner
from openhtp.device.side_by_side import SideBySideRunner
from openhtp.device.target import EmulatedChip, Target
from openhtp.hw.catalog import find_soc
from openhtp.options import DEVICE, Values
from openhtp.sched.policy import policy_named
from openhtp.sched.resources import DeviceResources, resources_of
from openhtp.sched.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Which HTP is emulated and how it behaves where chips and platforms differ.

    ``platform="windows"`` gives all graphs one thread priority, as there the operating system decides.
    ``parallel_graphs`` lets two graphs of one priority run side by side; ``vtcm_windowing`` lets clients of
    different process domains share VTCM (some chips from v79 on). Units and VTCM are the SoC's unless given.
    """

    soc: str = "SM8650"
    policy: str = "strict"
    platform: str = "linux"
    threads: int = 1
    parallel_graphs: bool = False
    vtcm_windowing: bool = False
    cores: int | None = None
    hmx: int | None = None
    hvx: int | None = None
    vtcm_bytes: int | None = None
    sharing: bool | None = None
    # Off only to measure what they cost: a program then runs in one piece.
    yield_points: bool = True

    @classmethod
    def chosen(cls, options: Values) -> DeviceConfig:
        """What a client chose of a device's options; the others are about how it is reached."""
        return cls(
            **{field.name: options[field.name] for field in dataclasses.fields(cls) if field.name in options}
        )

    def check(self) -> None:
        """Raise for values that no device has."""
        DEVICE.read({name: value for name, value in dataclasses.asdict(self).items() if name in DEVICE})

    def resources(self) -> DeviceResources:
        """What the scheduler has to give."""
        return resources_of(
            find_soc(self.soc),
            cores=self.cores,
            hmx=self.hmx,
            hvx=self.hvx,
            vtcm_bytes=self.vtcm_bytes,
            sharing=self.sharing,
            windowing=self.vtcm_windowing,
            parallel_graphs=self.parallel_graphs,
            flat_priorities=self.platform == "windows",
        )


def build_core(config: DeviceConfig) -> DeviceCore:
    """An emulated HTP on the wall clock, computing on ONNX Runtime's CPU kernels."""
    from openhtp.engine.ort import OrtEngine  # a third of a second that only a device that computes must pay

    engine = OrtEngine(threads=config.threads, yield_points=config.yield_points)
    clock, resources = WallClock(), config.resources()
    at_once = resources.graphs_at_once

    def make_runner(jobs: dict[int, Job]) -> Runner:
        return SideBySideRunner(jobs, clock.now, at_once) if at_once > 1 else InlineRunner(jobs, clock.now)

    return DeviceCore(
        scheduler=Scheduler(resources, policy_named(config.policy)),
        clock=clock,
        target=EmulatedChip(engine, find_soc(config.soc)),
        make_runner=make_runner,
    )


def build_beside(
    config: DeviceConfig, target: Target, submit: Callable[[Callable[[], Callable[[], None]]], None]
) -> DeviceCore:
    """A device that computes elsewhere: ``submit`` runs work there, and then what it returned on the loop."""
    clock = WallClock()
    return DeviceCore(
        scheduler=Scheduler(config.resources(), policy_named(config.policy)),
        clock=clock,
        target=target,
        make_runner=lambda jobs: BesideRunner(jobs, clock.now, submit),
    )
