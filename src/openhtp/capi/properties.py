"""Properties that can be asked of a context: how large the buffers are that it needs."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.context import ContextHeld
from openhtp.capi.entries import answers, null
from openhtp.core import status as st
from openhtp.core.errors import QnnError
from openhtp.core.option_numbers import CUSTOM, HtpContextProperty
from openhtp.core.units import MIB
from openhtp.memory.needs import ContextNeeds, needs_of
from openhtp.program.container import PAGE

_VALUE = struct("HtpContextProperty").value.offset
_ANSWERS: dict[int, Callable[[ContextNeeds], int]] = {
    HtpContextProperty.BUFFER_START_ALIGNMENT: lambda needs: PAGE,
    HtpContextProperty.MAX_SPILLFILL_BUFFER_SIZE: lambda needs: needs.largest_spill_fill,
    HtpContextProperty.WEIGHTS_BUFFER_SIZE: lambda needs: needs.weights_bytes,
}


@answers("contextGetProperty")
def context_get_property(context: int, properties: int) -> None:
    """Fill in what is asked for, all or nothing. Graphs must be finalized."""
    held = handles.find(ContextHeld, context)
    wanted: list[tuple[int, int]] = []
    for place in memory.pointers(properties, "the properties"):
        given = memory.structure(struct("Config"), place, "a property")
        if given.option != CUSTOM:
            raise _unknown(f"property {given.option}")
        custom = memory.structure(struct("HtpContextProperty"), given.of.custom or 0, "a property of the HTP's")
        if custom.option not in _ANSWERS:
            raise _unknown(f"HTP property {custom.option}")
        handles.require_place(given.of.custom + _VALUE, "a property's value")
        wanted.append((given.of.custom + _VALUE, custom.option))
    if not wanted:
        raise null("the list of properties")
    binary = held.opened()
    stored = [(binary.packed(name), binary.blobs_of(name)) for name in binary.graph_names]
    needs = needs_of(stored, largest_backup=binary.info.vtcm_mb * MIB)
    for place, option in wanted:
        memory.write_number(place, _ANSWERS[option](needs))


def _unknown(what: str) -> QnnError:
    known = ", ".join(f"{one.name.lower()} ({int(one)})" for one in HtpContextProperty)
    return QnnError(
        f"{what} of a context is unknown; expected one of the HTP's: {known}",
        st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
    )
