"""Stored data as the engine takes it: what is coded in the file comes out here, as quickly as it would be read."""

from __future__ import annotations

import numpy as np

from openhtp.engine.native import native
from openhtp.engine.sessions import aligned_room
from openhtp.program.coding import Coding
from openhtp.program.container import FileSection


def decode(section: FileSection, stored: memoryview) -> memoryview:
    """The data of a section, from what is stored; in memory of its own if that is coded."""
    side = native()
    if side is None or section.record.coding is not Coding.HALF or stored.nbytes % 2:
        return section.decoded(stored)
    halves = np.frombuffer(stored, np.uint16)
    floats = aligned_room(4 * halves.size)
    side.widen(halves.ctypes.data, floats.ctypes.data, halves.size)
    return floats.data
