"""Options in a list that changes a graph: each by name, also those that are set to what they are by default."""

from __future__ import annotations

import ctypes
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import configs
from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.option_numbers import CUSTOM, HtpGraphOption, Optimization
from openhtp.options import GRAPH

_ROWS = {(row.number.htp, row.number.value, row.number.kind): row for row in GRAPH.rows if row.number is not None}
_SLC = (True, int(HtpGraphOption.OPTIMIZATION), int(Optimization.SLC_ALLOCATOR))


def named_options(address: int, *, finalized: bool) -> dict[str, Any]:
    """All options of a list. One that does not exist is refused: nobody would notice that it has no effect."""
    found: dict[str, Any] = {}
    for place in memory.pointers(address, "the graph's configuration"):
        config = memory.structure(struct("Config"), place, "the graph's configuration")
        key: tuple[bool, int, int | None] = (False, config.option, None)
        body: Any = None
        if config.option == CUSTOM:
            custom = memory.structure(
                struct("HtpGraphConfig"), config.of.custom, "the graph's custom configuration"
            )
            body = custom.of
            kind = body.optimization.type if custom.option == HtpGraphOption.OPTIMIZATION else None
            key = (True, custom.option, kind)
        if finalized and body is not None and key[1] == Optimization.SLC_ALLOCATOR:
            # The documented way to turn it off has the kind where the option belongs, and no kind. Taken for the
            # option of that number, it would be about finalizing, which is over.
            found[_ROWS[_SLC].name] = bool(body.optimization.value)
            continue
        row = _ROWS.get(key)
        if row is None:
            raise _unknown(key)
        alone = (ctypes.c_void_p * 2)(place, None)
        found[row.name] = configs.read(GRAPH, ctypes.addressof(alone)).get(row.name, row.default)
    return found


def _unknown(key: tuple[bool, int, int | None]) -> UnsupportedFeature:
    htp, option, kind = key
    what = f"{'HTP ' if htp else ''}{option}" + ("" if kind is None else f" of kind {kind}")
    return UnsupportedFeature(
        f"graph option {what} is not supported here; see the numbers in docs/options.md",
        st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
    )
