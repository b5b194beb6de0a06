"""The choices that a device offers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import ANY_PLATFORM
from openhtp.options import DEVICE, OptionValues
from openhtp.sched.resources import DeviceResources, resources_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Which HTP is emulated and how it behaves where chips and platforms differ.

    ``platform="windows"`` gives all graphs one thread priority, as there the operating system decides.
    ``parallel_graphs`` lets two graphs of one priority run side by side; ``vtcm_windowing`` lets clients of
    different process domains share VTCM (some chips from v79 on). Units, VTCM and process domains are the SoC's
    unless given. ``library`` is the path of the vendor's library to compute with; None for the emulator's engine.
    """

    soc: str = "SM8650"
    library: str | None = None
    policy: str = "strict"
    platform: str = ANY_PLATFORM
    threads: int = 1
    parallel_graphs: bool = False
    vtcm_windowing: bool = False
    process_domains: int | None = None
    domain_mb: int | None = None
    device_id: int = 0
    cores: int | None = None
    hmx: int | None = None
    hvx: int | None = None
    vtcm_bytes: int | None = None
    sharing: bool | None = None
    # Switched off only to measure what yield points cost: a program then runs in one piece.
    yield_points: bool = True

    @classmethod
    def chosen(cls, options: OptionValues) -> DeviceConfig:
        """The device's part of a client's options; the other options say how the device is reached."""
        return cls(
            **{field.name: options[field.name] for field in dataclasses.fields(cls) if field.name in options}
        )

    def check(self) -> None:
        """Raise for values that no device has."""
        DEVICE.read({name: value for name, value in dataclasses.asdict(self).items() if name in DEVICE})

    def resources(self) -> DeviceResources:
        """The resources that the scheduler hands out."""
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
