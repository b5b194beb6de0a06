"""Wishes of a C client beyond what its chip has: granted as far as it goes, with a warning.

In Python such a wish is an error. Clients in C are written for several chips, and rely on it, since the vendor's
library does so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from openhtp.core.units import MIB
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import SocSpec
from openhtp.options import GRAPH, Whole

log = logging.getLogger("openhtp.capi")


def clipped(options: dict[str, Any], soc: SocSpec) -> dict[str, Any]:
    """A graph's options as the chip can have them.

    Of a chip of which the client has only some VTCM, a graph has no more than that.
    """
    level = GRAPH.option("optimization_level").kind
    assert isinstance(level, Whole)
    step = soc.vtcm_granule_bytes
    rules: dict[str, Callable[[int], int]] = {
        "vtcm_mb": lambda wish: min(wish, soc.vtcm_bytes // MIB),
        "vtcm_bytes": lambda wish: min(-(-wish // step) * step, soc.vtcm_bytes),
        "hvx_threads": lambda wish: min(wish, soc.hvx),
        "optimization_level": lambda wish: min(max(wish, level.low), level.high),
    }
    found = dict(options)
    for name, rule in rules.items():
        if name not in options:
            continue
        found[name] = rule(options[name])
        if found[name] != options[name]:
            log.warning("%s is %d; %s goes by %d", name, options[name], soc.name, found[name])
    if soc.vtcm_mb < find_soc(soc.name).vtcm_mb and not {"vtcm_mb", "vtcm_bytes"} & found.keys():
        found["vtcm_mb"] = soc.vtcm_mb
    return found
