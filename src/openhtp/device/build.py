"""Puts a device together from a SoC's name."""

from __future__ import annotations

from openhtp.device.clock import WallClock
from openhtp.device.core import DeviceCore
from openhtp.device.runner import InlineRunner

from openhtp.engine.ort import OrtEngine
from openhtp.sched.policy import policy_named
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler


def build_core(*, soc: str, policy: str, threads: int) -> DeviceCore:
    """An emulated HTP on the wall clock, computing on ONNX Runtime's CPU kernels."""
    clock = WallClock()
    return DeviceCore(
        scheduler=Scheduler(DeviceResources(), policy_named(policy)),
        clock=clock,
        engine=OrtEngine(threads=threads),
        make_runner=lambda jobs: InlineRunner(jobs, clock.now),
    )
