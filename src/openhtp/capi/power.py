"""The performance infrastructure: power votes by configuration number, made on the client's device."""

from __future__ import annotations

import ctypes
import itertools
import logging
from typing import Any

from openhtp.abi import memory
from openhtp.abi.power import dcvs_of, hmx_of
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.configs import warn_of_no_effect
from openhtp.capi.device import DeviceHeld, StandingVotes, chosen_soc, default_device, waiting
from openhtp.capi.entries import answers
from openhtp.capi.native_calls import natives
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.option_numbers import PowerOption
from openhtp.hw.catalog import find_soc

log = logging.getLogger("openhtp.capi")

_infrastructure: list[Any] = []
_CORNERS = ("bus_min", "bus_target", "bus_max", "core_min", "core_target", "core_max")
_WORDS = {
    "bus_min": "busVoltageCornerMin",
    "bus_target": "busVoltageCornerTarget",
    "bus_max": "busVoltageCornerMax",
    "core_min": "coreVoltageCornerMin",
    "core_target": "coreVoltageCornerTarget",
    "core_max": "coreVoltageCornerMax",
}


@answers("deviceGetInfrastructure")
def device_get_infrastructure(out: int) -> None:
    """The functions by which power is voted for."""
    handles.require_place(out, "infrastructure")
    if not _infrastructure:
        functions = memory.array(ctypes.c_void_p, 4, natives[0].power_entries, "the power functions")
        _infrastructure.append(struct("Infrastructure")(0, *functions))
    memory.write_number(out, ctypes.addressof(_infrastructure[0]))


# Options that are one number each, by the word that a vote has for them.
_TIMES = {
    PowerOption.RPC_CONTROL_LATENCY: "rpc_control_latency_us",
    PowerOption.RPC_POLLING_TIME: "rpc_polling_us",
    PowerOption.HMX_TIMEOUT_INTERVAL_US: "hmx_timeout_us",
    PowerOption.ADAPTIVE_POLLING_TIME: "adaptive_polling_us",
}
_ANY = 0xFFFFFFFF
_numbers = itertools.count(1)
_configs: dict[int, tuple[DeviceHeld | None, StandingVotes]] = {}


def _voted_on() -> DeviceHeld | None:
    """The device to vote on: a device number says nothing about handles, so it is the device made last."""
    devices = handles.of_kind(DeviceHeld)
    if devices:
        return devices[-1]
    backends = handles.of_kind(BackendHeld)
    return default_device(backends[-1]) if backends else None


@answers("create_id")
def create_power_config_id(device: int, core: int, out: int) -> None:
    """Make a number to vote under; votes before there is a device wait for the first one."""
    handles.require_place(out, "power configuration", 4)
    if device not in (0, _ANY):
        raise InvalidArgument(f"device {device} does not exist; there is one, 0")
    entry = _voted_on()
    chip = find_soc(chosen_soc() if entry is None else entry.soc)
    if core != _ANY and core >= chip.cores:
        raise InvalidArgument(f"core {core} does not exist; {chip.name} has {chip.cores}, from 0 on")
    votes = StandingVotes(0 if core == _ANY else core)
    number = next(_numbers)
    _configs[number] = _standing(votes), votes
    memory.write_number(out, number, 4)


def _standing(votes: StandingVotes) -> DeviceHeld | None:
    """The votes of a number, which now also stand on the present device."""
    entry = _voted_on()
    if entry is None:
        waiting.append(votes)
    else:
        votes.stand_on(entry.device())
    return entry


def _config_of(number: int) -> StandingVotes:
    config = _configs.get(number)
    if config is None:
        raise InvalidArgument(f"power configuration {number} does not exist")
    entry, votes = config
    if entry is not None and entry.is_freed and handles.of_kind(DeviceHeld):
        # The device was another client's of this process: device numbers do not tell clients apart.
        _configs[number] = _standing(votes), votes
    return votes


@answers("destroy_id")
def destroy_power_config_id(number: int) -> None:
    """Take back all votes of a number. A number without votes is answered as the vendor's library does."""
    if number not in _configs:
        log.warning("power configuration %d does not exist, so there is nothing to destroy", number)
        return
    votes = _config_of(number)
    del _configs[number]
    votes.withdraw()


@answers("set_power")
def set_power_config(number: int, configs: int) -> None:
    """Vote; all of the list or none of it."""
    votes = _config_of(number)
    wanted: dict[str, Any] = {}
    places = memory.pointers(configs, "the power configuration")
    if not places:
        raise InvalidArgument("the power configuration is empty")
    for address in places:
        # The length depends on the option, and the entry may lie at the end of a page.
        option = memory.array(ctypes.c_uint32, 1, address, "the power configuration")[0]
        size = _SIZES.get(option, 4)
        body = memory.read(address + 4, size, "the power configuration").ljust(ctypes.sizeof(_BODY), b"\0")
        wanted |= _vote(option, _BODY.from_buffer_copy(body))
    if wanted:
        votes.change(wanted)


def _vote(option: int, body: Any) -> dict[str, Any]:
    if option == PowerOption.DCVS_V3:
        return {"dcvs": _dcvs(body.dcvs)}
    if option == PowerOption.HMX_V2:
        return {"hmx": hmx_of(body.hmx)}
    if option in _TIMES:
        return {_TIMES[PowerOption(option)]: body.number}
    if option == PowerOption.DDR_PERF_MODE:
        warn_of_no_effect("QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DDR_PERF_MODE")
        return {}
    raise QnnError(f"power option {option} is unknown", st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED_CONFIG)


_BODY = struct("PowerBody")
_SIZES = {PowerOption.DCVS_V3: ctypes.sizeof(struct("DcvsV3")), PowerOption.HMX_V2: ctypes.sizeof(struct("HmxV2"))}


def _dcvs(body: Any) -> Any:
    try:
        vote = dcvs_of(body)
    except ValueError as error:
        raise InvalidArgument(f"the DCVS vote has a corner or mode that does not exist: {error}") from error
    log.log(
        logging.INFO - 5, "DCVS vote: %s", " ".join(f"{_WORDS[name]} {getattr(body, name)} " for name in _CORNERS)
    )
    return vote


@answers("set_memory")
def set_memory_config(device: int, core: int, configs: int) -> None:
    """Accept how memory should grow, with a warning: no memory grows in steps here."""
    if memory.pointers(configs, "the memory configuration"):
        warn_of_no_effect("QnnHtpPerfInfrastructure_setMemoryConfig", "here: no memory grows in steps")
