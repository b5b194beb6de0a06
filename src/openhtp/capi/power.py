"""The performance infrastructure: power votes by configuration number."""

from __future__ import annotations

import ctypes
import itertools
import logging
from typing import Any

from openhtp.abi import memory
from openhtp.abi.power import dcvs_of
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.entries import answers
from openhtp.capi.native_calls import natives
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.option_numbers import PowerOption

log = logging.getLogger("openhtp.capi")

_numbers = itertools.count(1)
_votes: dict[int, dict[int, Any]] = {}
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


@answers("create_id")
def create_power_config_id(device: int, core: int, out: int) -> None:
    """A number under which votes are made."""
    handles.require_place(out, "power configuration", 4)
    number = next(_numbers)
    _votes[number] = {}
    memory.write_number(out, number, 4)


def _standing(number: int) -> dict[int, Any]:
    found = _votes.get(number)
    if found is None:
        raise QnnError(
            f"power configuration {number} does not exist", st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT
        )
    return found


@answers("destroy_id")
def destroy_power_config_id(number: int) -> None:
    """Take back all votes of a number."""
    _standing(number)
    del _votes[number]


@answers("set_power")
def set_power_config(number: int, configs: int) -> None:
    """Vote; all of the list or none of it."""
    standing = _standing(number)
    given: dict[int, Any] = {}
    places = memory.pointers(configs, "the power configuration")
    if not places:
        raise InvalidArgument("the power configuration is empty")
    for place in places:
        config = memory.structure(struct("PowerConfig"), place, "the power configuration")
        if config.option == PowerOption.DCVS_V3:
            given[config.option] = _dcvs(config.of.dcvs)
        elif config.option in list(PowerOption):
            given[config.option] = config.of.number
        else:
            raise QnnError(
                f"power option {config.option} is unknown", st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED_CONFIG
            )
    standing.update(given)


def _dcvs(body: Any) -> Any:
    try:
        vote = dcvs_of(body)
    except ValueError as error:
        raise InvalidArgument(f"the DCVS vote names what there is not: {error}") from error
    log.log(
        logging.INFO - 5, "DCVS vote: %s", " ".join(f"{_WORDS[name]} {getattr(body, name)} " for name in _CORNERS)
    )
    return vote


@answers("set_memory")
def set_memory_config(device: int, core: int, configs: int) -> None:
    """How memory grows: accepted, as there is nothing that grows in steps."""
    memory.pointers(configs, "the memory configuration")
