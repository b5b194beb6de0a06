"""One SoC's HTP: units, memory, the features of its architecture, and the systems that its clients run on."""

from __future__ import annotations

from dataclasses import dataclass

from openhtp.core.units import KIB, MIB

# Feature: the first architecture that has it.
_VTCM_SHARING = 73
_VTCM_WINDOWING = 79
_BYTE_VTCM = 81
_SEVERAL_DOMAINS = 73

# Measured on a v75 part: DMA from DDR into VTCM. Used where nothing was measured for the SoC itself.
DEFAULT_STREAM_GBS = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SocSpec:
    """What one SoC's HTP has. ``estimated`` names the fields that no public source states.

    ``stream_gbs`` is the rate at which weights were seen to stream from DDR (a lower bound of the DMA's);
    ``invoke_us`` the shortest whole invocation seen. ``same_die`` names the SoC that it is, renumbered.
    """

    name: str
    marketing: str
    arch: int
    soc_model: int
    vtcm_mb: int
    hvx: int
    hmx: int
    cores: int
    fp16: bool
    ddr_gbs: float | None = None
    stream_gbs: float | None = None
    invoke_us: int | None = None
    same_die: str = ""
    estimated: tuple[str, ...] = ()

    @property
    def arch_name(self) -> str:
        """``v75``."""
        return f"v{self.arch}"

    @property
    def vtcm_bytes(self) -> int:
        """VTCM of one core."""
        return self.vtcm_mb * MIB

    @property
    def has_vtcm_sharing(self) -> bool:
        """Whether two clients may hold parts of the VTCM at once (overmap)."""
        return self.arch >= _VTCM_SHARING

    @property
    def may_have_vtcm_windowing(self) -> bool:
        """Whether chips of this architecture can share VTCM across process domains; only some do."""
        return self.arch >= _VTCM_WINDOWING

    @property
    def vtcm_granule_bytes(self) -> int:
        """Requests for VTCM must be a multiple of this."""
        return 64 * KIB if self.arch >= _BYTE_VTCM else MIB

    @property
    def process_domains(self) -> int:
        """How many process domains a client can have: about four, by public reports; no source has it per SoC."""
        return 4 if self.arch >= _SEVERAL_DOMAINS else 1

    @property
    def dma_gbs(self) -> float:
        """Bandwidth between VTCM and DDR for saving and restoring; an estimate where none was measured."""
        return self.stream_gbs if self.stream_gbs is not None else DEFAULT_STREAM_GBS


ANY_PLATFORM = "any"
"""The platform of a user who names none. It has what any platform has."""
PLATFORMS = (ANY_PLATFORM, "android", "linux", "qnx", "windows")
