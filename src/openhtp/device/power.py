"""Power votes of all clients, the resulting clocks, and how long the device polls for requests.

This module is given the time and never asks for it. A perf profile's vote is lowered some time after its client's
last work. Every later call first lowers the votes that were due, so no timer has to run.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, InvalidHandle, UnsupportedFeature
from openhtp.core.telling import warn_once
from openhtp.core.units import US
from openhtp.hw.clocks import Clocks, StandingVote, power_up_ns, resolve
from openhtp.hw.perf_profiles import PerfProfile, find_perf_profile
from openhtp.hw.power import (
    DEFAULT_HMX_TIMEOUT_US,
    FIRST_ARCH_WITH_HMX_VOTES,
    MAX_HMX_TIMEOUT_US,
    MAX_LATENCY_US,
    MAX_RPC_POLLING_US,
    DcvsVote,
    HmxVote,
    check_us,
)
from openhtp.records.trace import ClocksChanged
from openhtp.rpc.looking import UNASKED_NS
from openhtp.rpc.messages import SetPowerConfig

log = logging.getLogger(__name__)

# Power configs that one client may have.
MAX_CONFIGS = 256

# Called when clocks have changed.
OnChange = Callable[[ClocksChanged], None]


@dataclass(slots=True)
class Config:
    """The votes under one power config id."""

    number: int
    session: int
    core: int
    standing: StandingVote
    profile: PerfProfile | None = None
    # When the profile's vote is lowered, unless work comes first.
    lower_at: int | None = None
    # None: no vote; 0: no polling at all.
    rpc_polling_us: int | None = None
    rpc_control_latency_us: int = 0
    adaptive_polling_us: int = 0
    hmx_timeout_us: int | None = None

    def describe(self) -> dict[str, object]:
        """What other clients may know of this config."""
        dcvs, hmx = self.standing.dcvs, self.standing.hmx
        return {
            "config": self.number,
            "session": self.session,
            "core": self.core,
            "perf_profile": None if self.profile is None else self.profile.name,
            "core_corner": None if dcvs is None or dcvs.core is None else dcvs.core[1].name.lower(),
            "bus_corner": None if dcvs is None or dcvs.bus is None else dcvs.bus[1].name.lower(),
            "hmx_corner": None if hmx is None or hmx.corners is None else hmx.corners[1].name.lower(),
            "rpc_polling_us": self.rpc_polling_us,
            "rpc_control_latency_us": self.rpc_control_latency_us,
            "adaptive_polling_us": self.adaptive_polling_us,
            "hmx_timeout_us": DEFAULT_HMX_TIMEOUT_US if self.hmx_timeout_us is None else self.hmx_timeout_us,
        }


class SystemLatency:
    """The latency that is requested of this machine's processors, as a DSP's driver does on a phone.

    While the file is open, the kernel keeps the processors out of any sleep that takes longer to end. Only users
    who may write the file can ask.
    """

    def __init__(self, path: str = "/dev/cpu_dma_latency") -> None:
        self._path = path
        self._file: int | None = None
        self.us: int | None = None

    def ask(self, us: int | None) -> None:
        """Ask for another latency; None for none."""
        if us is None and self._file is not None:
            os.close(self._file)
            self._file = self.us = None
        if us in (None, self.us):
            return
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            os.pwrite(self._file, struct.pack("=i", us), 0)
        except OSError as error:
            warn_once(log, ("rpc latency",), f"this system takes no RPC control latency: {error}", logging.INFO)
        else:
            self.us = us


class Power:
    """Power configs by number. A vote is changed whole or not at all."""

    def __init__(self, arch: int, cores: int, on_change: OnChange, latency: SystemLatency | None = None) -> None:
        """``latency`` is None where nothing is requested of this machine."""
        self._latency = latency
        self.polling_ns = UNASKED_NS
        self._arch = arch
        self._on_change = on_change
        self._configs: dict[int, Config] = {}
        self._resolved = [resolve(())] * cores
        # When each core was used last, set when executions end; None before the first time.
        self.idle_since: list[int | None] = [None] * cores

    def create(self, number: int, session: int, core: int) -> None:
        """A power config without votes."""
        if not 0 <= core < len(self._resolved):
            raise InvalidArgument(
                f"core {core} does not exist; this device has {len(self._resolved)}",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
            )
        if sum(config.session == session for config in self._configs.values()) >= MAX_CONFIGS:
            raise InvalidArgument(
                f"{MAX_CONFIGS} power configs exist, as many as a client may have; destroy one",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_FAILED,
            )
        self._configs[number] = Config(number, session, core, StandingVote())

    def set(self, session: int, wanted: SetPowerConfig, t: int, *, busy: bool) -> Config:
        """Change the votes under an id; ``busy`` tells whether the device works for the client now."""
        self._expire(t)
        config = self._find(session, wanted.config)
        profile = config.profile
        standing = config.standing
        if wanted.profile is not None:
            profile = find_perf_profile(wanted.profile)
            standing = profile.busy if busy else profile.rest
        if wanted.dcvs is not None:
            profile, standing = None, _with_dcvs(standing, wanted.dcvs)
        if wanted.hmx is not None:
            standing = self._with_hmx(standing, wanted.hmx, config.number)
        fields = {
            name: check_us(name, value, 0, high)
            for name, high in _TIMES.items()
            if (value := getattr(wanted, name)) is not None
        }
        fresh = replace(config, profile=profile, standing=standing, **fields)
        if fields.get("adaptive_polling_us") and not fresh.rpc_polling_us:
            raise InvalidArgument(
                f"adaptive polling needs RPC polling, and power config {config.number} has none; give"
                " rpc_polling_us, before or in the same call",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
            )
        fresh.lower_at = config.lower_at if profile is config.profile else None
        self._configs[config.number] = fresh
        self._settle(fresh.core, t)
        return fresh

    def destroy(self, session: int, number: int, t: int) -> None:
        """Remove all votes under an id."""
        self._expire(t)
        core = self._find(session, number).core
        del self._configs[number]
        self._settle(core, t)

    def forget(self, session: int, t: int) -> None:
        """A client has gone, and its votes with it."""
        self._expire(t)
        gone = [config for config in self._configs.values() if config.session == session]
        for config in gone:
            del self._configs[config.number]
        for core in {config.core for config in gone}:
            self._settle(core, t)

    def has_profile(self, session: int) -> bool:
        """Whether a client's votes depend on whether the device works for it."""
        return any(config.session == session and config.profile is not None for config in self._configs.values())

    def stage(self, session: int, t: int, *, busy: bool) -> None:
        """The device begins to work for a client, or has finished all work for it."""
        self._expire(t)
        for config in self._configs.values():
            profile = config.profile
            if config.session != session or profile is None:
                continue
            if busy:
                config.lower_at = None
                self._stand(config, profile.busy, t)
            elif profile.sustain_us:
                config.lower_at = t + profile.sustain_us * US
            else:
                self._stand(config, profile.rest, t)

    def clocks(self, core: int, t: int) -> Clocks:
        """How fast a core goes now."""
        self._expire(t)
        return self._resolved[core].clocks

    def power_up_ns(self, core: int, t: int, *, in_use: bool) -> int:
        """How long a core's HVX and HMX take to be ready (modelled); call before votes rise for a new job."""
        self._expire(t)
        since = self.idle_since[core]
        own = [config for config in self._configs.values() if config.core == core]
        timeouts = [config.hmx_timeout_us for config in own if config.hmx_timeout_us is not None]
        timeout_us = max(timeouts, default=DEFAULT_HMX_TIMEOUT_US)
        idle_ns = 0 if in_use else None if since is None else t - since
        return power_up_ns(idle_ns, timeout_us * US, (config.standing for config in own))

    def records(self, t: int) -> list[ClocksChanged]:
        """The clocks of all cores with votes, for a recording that begins now."""
        self._expire(t)
        return [self._record(t, core) for core in sorted({config.core for config in self._configs.values()})]

    def describe(self, t: int) -> dict[str, object]:
        """Clocks and votes, as ``Inspect`` reports them. MHz are estimated."""
        self._expire(t)
        records = [self._record(t, core) for core in range(len(self._resolved))]
        cores = [{"core_mhz": r.core_mhz, "hmx_mhz": r.hmx_mhz, "bus_percent": r.bus_percent} for r in records]
        configs = [config.describe() for config in self._configs.values()]
        asked = None if self._latency is None else self._latency.us
        return {"cores": cores, "clocks": "modelled", "configs": configs, "system_latency_us": asked}

    def _find(self, session: int, number: int) -> Config:
        config = self._configs.get(number)
        if config is None or config.session != session:
            raise InvalidHandle(
                f"power config {number} does not exist in this session; create_power_config makes one",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
            )
        return config

    def _with_hmx(self, standing: StandingVote, vote: HmxVote, number: int) -> StandingVote:
        """Add an HMX vote. Without one, the HMX follows the core; a vote for the HMX alone is refused."""
        if self._arch < FIRST_ARCH_WITH_HMX_VOTES:
            raise UnsupportedFeature(
                f"HMX votes need a Hexagon v{FIRST_ARCH_WITH_HMX_VOTES} or newer; this one is v{self._arch}",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED,
            )
        if standing.dcvs is None or not standing.dcvs.votes_core:
            raise InvalidArgument(
                f"an HMX vote needs an HVX vote under the same power config, and config {number} has none;"
                " give dcvs with core corners, before or in the same call",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
            )
        return replace(standing, hmx=None if vote.pick_default else vote)

    def _stand(self, config: Config, standing: StandingVote, t: int) -> None:
        if config.standing != standing:
            config.standing = standing
            self._settle(config.core, t)

    def _expire(self, t: int) -> None:
        """Lower the votes that were due before ``t``, dated at the time they were due."""
        due = [c for c in self._configs.values() if c.lower_at is not None and c.lower_at <= t]
        for config in sorted(due, key=lambda c: c.lower_at or 0):
            at, config.lower_at = config.lower_at or t, None
            if config.profile is not None:
                self._stand(config, config.profile.rest, at)

    def _settle(self, core: int, t: int) -> None:
        """Work out again a core's clocks and how long the device polls."""
        votes = [c.rpc_polling_us for c in self._configs.values() if c.rpc_polling_us is not None]
        self.polling_ns = max(votes) * US if votes else UNASKED_NS
        if self._latency is not None:
            latencies = (c.rpc_control_latency_us for c in self._configs.values() if c.rpc_control_latency_us)
            self._latency.ask(min(latencies, default=None))
        resolved = resolve(c.standing for c in self._configs.values() if c.core == core)
        if resolved != self._resolved[core]:
            self._resolved[core] = resolved
            self._on_change(self._record(t, core))

    def _record(self, t: int, core: int) -> ClocksChanged:
        now, arch = self._resolved[core], self._arch
        clocks = now.clocks
        mhz = round(clocks.core_mhz(arch)), round(clocks.hmx_mhz(arch))
        return ClocksChanged(t, core, *mhz, round(100 * clocks.bus), now.core, now.hmx, now.bus)


_TIMES = {
    "rpc_polling_us": MAX_RPC_POLLING_US,
    "rpc_control_latency_us": MAX_LATENCY_US,
    "adaptive_polling_us": MAX_LATENCY_US,
    "hmx_timeout_us": MAX_HMX_TIMEOUT_US,
}


def _with_dcvs(standing: StandingVote, vote: DcvsVote) -> StandingVote:
    """Put a DCVS vote over the present one. Without a clock for the core, the HMX's own vote goes, too."""
    merged = vote.over(standing.dcvs)
    return StandingVote(dcvs=merged, hmx=standing.hmx if merged.votes_core else None)
