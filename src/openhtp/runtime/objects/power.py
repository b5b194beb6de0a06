"""Power votes of a client: configs to vote under, and a perf profile for all its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from openhtp.core import status as st, tidying
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import DeviceLost, QnnError, UnsupportedFeature
from openhtp.core.locks import make_lock
from openhtp.hw.perf_profiles import find_perf_profile
from openhtp.hw.power import (
    MAX_HMX_TIMEOUT_US,
    MAX_LATENCY_US,
    MAX_RPC_POLLING_US,
    DcvsVote,
    HmxVote,
    check_us,
    refuse,
)
from openhtp.rpc import messages as ms
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.lifecycle import Life, State

if TYPE_CHECKING:
    from openhtp.runtime.links.link import Link

_V = TypeVar("_V", DcvsVote, HmxVote)

# The platform for which the documents have neither RPC polling nor an RPC latency.
_WITHOUT_RPC_VOTES = "qnx"
_RPC_TIMES = ("rpc_polling_us", "rpc_control_latency_us")
_TIMES = {
    "rpc_control_latency_us": MAX_LATENCY_US,
    "rpc_polling_us": MAX_RPC_POLLING_US,
    "adaptive_polling_us": MAX_LATENCY_US,
    "hmx_timeout_us": MAX_HMX_TIMEOUT_US,
}


@hooked(set="power_vote", set_perf_profile="power_vote", destroy="free")
class PowerConfig:
    """An id under which to vote. Made by ``Device.create_power_config``; ``destroy`` withdraws all its votes.

    Examples:
        >>> import openhtp
        >>> device = openhtp.Backend().create_device()
        >>> power = device.create_power_config()
        >>> power.set(dcvs=openhtp.DcvsVote(core="turbo", bus="turbo"), rpc_polling_us=1000)
        >>> power.destroy()
    """

    def __init__(self, votes: Votes, link: Link, *, core: int) -> None:
        self.core = core
        self._votes = votes
        self._link = link
        self._life = Life("power config", "")
        # How long this client polls the link, under this config.
        self._polling_us: int | None = None
        self._adaptive_us = 0
        message = ms.CreatePowerConfig(core=core)
        self.id = link.request(message, undo=lambda answer: ms.DestroyPowerConfig(config=answer.value)).value

    def set(
        self,
        *,
        dcvs: DcvsVote | Mapping[str, Any] | None = None,
        hmx: HmxVote | Mapping[str, Any] | None = None,
        rpc_control_latency_us: int | None = None,
        rpc_polling_us: int | None = None,
        adaptive_polling_us: int | None = None,
        hmx_timeout_us: int | None = None,
    ) -> None:
        """Change the given votes, or none of them if one is refused.

        Args:
            dcvs: corners of core and bus, sleep, and what DCVS may do; what it leaves out stays.
            hmx: corners of the HMX, on chips from v75 on, and only beside a core vote under this config.
            rpc_control_latency_us: the latency that the link to the device should have.
            rpc_polling_us: how long, up to 10000, callers and device poll before they sleep; 0 for not at all.
                Without a vote they poll for 60.
            adaptive_polling_us: callers sleep until just before the end of executions that take at least this
                long; 0 turns it off. Only while polling.
            hmx_timeout_us: how long an idle HMX stays powered, up to a second.
        """
        self._life.require("use")
        times = {
            name: check_us(name, value, 0, _TIMES[name])
            for name, value in (
                ("rpc_control_latency_us", rpc_control_latency_us),
                ("rpc_polling_us", rpc_polling_us),
                ("adaptive_polling_us", adaptive_polling_us),
                ("hmx_timeout_us", hmx_timeout_us),
            )
            if value is not None
        }
        self._votes.check_platform(times)
        clocks = _vote(DcvsVote, dcvs, "dcvs")
        matrix = _vote(HmxVote, hmx, "hmx")
        if clocks is None and matrix is None and not times:
            refuse("no vote was given; expected at least one of dcvs, hmx, " + ", ".join(_TIMES))
        message = ms.SetPowerConfig(config=self.id, dcvs=clocks, hmx=matrix)
        self._change(msgspec.structs.replace(message, **times))

    def set_perf_profile(self, name: str, **times: int | None) -> None:
        """Vote as a perf profile says, under this config. ``times`` are as in ``set``, the profile's if None."""
        self._life.require("use")
        self._change(self._votes.profile_request(self.id, name, times))

    @property
    def alive(self) -> bool:
        """Whether votes can be changed: the config was not destroyed, and its device did not go away."""
        return self._life.state is State.LIVE

    def destroy(self) -> None:
        """Withdraw all votes of this config."""
        self._life.require("free")
        lost = self._life.state is State.LOST
        self._life.end(State.FREED)
        self._votes.forget(self)
        if lost:
            return
        try:
            self._link.request(ms.DestroyPowerConfig(config=self.id))
        except DeviceLost:
            return  # and its votes with it
        except BaseException:
            # After an interrupt the caller has a freed object, so nobody else will withdraw the votes.
            tidying.post((self._link.tell, (ms.DestroyPowerConfig(config=self.id),)))
            raise

    def _change(self, message: ms.SetPowerConfig) -> None:
        self._link.request(message)
        if message.rpc_polling_us is not None:
            self._polling_us = message.rpc_polling_us
        if message.adaptive_polling_us is not None:
            self._adaptive_us = message.adaptive_polling_us
        self._votes.watch(self._link)

    def __enter__(self) -> PowerConfig:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._life.state is State.LIVE:
            self.destroy()

    def __repr__(self) -> str:
        return f"<PowerConfig {self.id} of core {self.core}, {self._life.state.value}>"


class Votes:
    """All power configs of one device, and the perf profile that was chosen for it."""

    def __init__(self, platform: str = "") -> None:
        self._platform = platform
        # A config that is dropped without being destroyed keeps its votes, as an id in the API does.
        self._configs: dict[int, PowerConfig] = {}
        self._profile: tuple[PowerConfig, ms.SetPowerConfig] | None = None
        self._lock = make_lock("votes")

    def create(self, link: Link, core: object) -> PowerConfig:
        """A config without votes."""
        number = whole_number(core)
        if number is None:
            refuse(f"core is {shown(core)}; expected the number of a core")
        config = PowerConfig(self, link, core=number)
        self._configs[config.id] = config
        return config

    def set_profile(self, link: Link, name: object, **times: int | None) -> None:
        """Vote as a perf profile says, from now on; times that are not given are the profile's."""
        self.profile_request(0, name, times)
        with self._lock:
            config = self._profile[0] if self._profile is not None else self.create(link, 0)
            message = self.profile_request(config.id, name, times)
            try:
                config._change(message)
            except QnnError:
                if self._profile is None:
                    tidying.post((config.destroy, ()))
                raise
            self._profile = config, message

    @property
    def profile(self) -> str | None:
        """The perf profile in force, if one was chosen."""
        return None if self._profile is None else self._profile[1].profile

    def profile_request(self, config: int, name: object, times: Mapping[str, int | None]) -> ms.SetPowerConfig:
        """The request for a perf profile, checked. Its RPC times are left out where the platform has none."""
        self.check_platform(times)
        return _profile(config, name, times, without=() if self._has_rpc_times else _RPC_TIMES)

    def check_platform(self, times: Mapping[str, int | None]) -> None:
        """Refuse times that the device's platform does not have."""
        asked = next((name for name in _RPC_TIMES if whole_number(times.get(name))), None)
        if asked is not None and not self._has_rpc_times:
            raise UnsupportedFeature(
                f"{asked} is {shown(times[asked])}; RPC polling and latency do not exist on {self._platform}",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED_CONFIG,
            )

    @property
    def _has_rpc_times(self) -> bool:
        return self._platform != _WITHOUT_RPC_VOTES

    def watch(self, link: Link) -> None:
        """Have the link poll for as long as the longest vote says."""
        live = [config for config in list(self._configs.values()) if config._life.state is State.LIVE]
        polling_us = max((c._polling_us for c in live if c._polling_us is not None), default=None)
        adaptive_us = max((config._adaptive_us for config in live), default=0)
        link.set_polling(polling_us, adaptive_us)

    def forget(self, config: PowerConfig) -> None:
        """Forget a config that was destroyed."""
        self._configs.pop(config.id, None)
        self.watch(config._link)

    def lose(self) -> None:
        """Forget all votes, because the device process went away."""
        self._end(State.LOST)

    def restore(self, link: Link) -> None:
        """Apply the perf profile to a fresh process. Votes are not repeated: their configs are gone."""
        profile, self._profile = self._profile, None
        self._configs.clear()
        if profile is not None:
            message = profile[1]
            self.set_profile(link, message.profile, **{name: getattr(message, name) for name in _TIMES})

    def free(self) -> None:
        """End all configs, because the device is freed."""
        self._end(State.FREED)

    def leave_to_parent(self) -> None:
        """Leave the votes to the parent, in the child of a fork."""
        self._lock = make_lock("votes")
        self._end(State.FOREIGN)

    def _end(self, state: State) -> None:
        for config in list(self._configs.values()):
            config._life.end(state)


def _profile(
    config: int, name: object, times: Mapping[str, int | None], *, without: Sequence[str]
) -> ms.SetPowerConfig:
    """The request for a perf profile, checked; ``without`` names times of the profile that are left out."""
    profile = find_perf_profile(name)
    unknown = sorted(times.keys() - _TIMES.keys())
    if unknown:
        refuse(f"there is no time {unknown[0]!r}; expected some of {', '.join(_TIMES)}")
    own = {
        "rpc_polling_us": profile.rpc_polling_us,
        "rpc_control_latency_us": profile.rpc_control_latency_us,
    }
    chosen = {
        **{key: value for key, value in own.items() if key not in without},
        **{key: check_us(key, value, 0, _TIMES[key]) for key, value in times.items() if value is not None},
    }
    message = ms.SetPowerConfig(config=config, profile=profile.name)
    return msgspec.structs.replace(message, **chosen)


def _vote(kind: type[_V], vote: object, name: str) -> _V | None:
    """A vote, given as one or as its fields."""
    if vote is None or isinstance(vote, kind):
        return vote
    if not isinstance(vote, Mapping):
        refuse(f"{name} is {shown(vote)}; expected a {kind.__name__}, or a mapping of its fields")
    unknown = sorted(str(field) for field in vote if field not in kind.__dataclass_fields__)
    if unknown:
        known = ", ".join(kind.__dataclass_fields__)
        refuse(f"{name} has no field {unknown[0]!r}; expected some of {known}")
    return kind(**vote)
