"""An order of magnitude of energy, for comparing settings with one another.

No public source states the energy of an HTP, so there is no number in joules here, only a class: the next class is
twice the energy. What counts is the ratio of arithmetic to movement, taken from the energies of a 45 nm process
that M. Horowitz published ("Computing's energy problem", ISSCC 2014); newer processes scale both sides down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from openhtp.core.precision import NumberFormat

MAC_PJ = {NumberFormat.W8A8: 0.23, NumberFormat.W8A16: 0.5, NumberFormat.FLOAT: 1.5}
"""One multiply-accumulate: multiplier and adder; 8 by 16 bits lies between the two that are published."""

DDR_PJ_PER_BYTE = 160.0
"""A word of 32 bits from DRAM is 640 pJ at best."""

_VOLTAGE_AT_REST = 0.6
"""Of the highest corner's, estimated: energy goes with the square of the voltage, and that with the clock."""

CLASS_0_PJ = 1e6
"""Up to a microjoule of that process is class 0."""


def energy_class_of(picojoules: float) -> int:
    """The class of an energy: one higher for twice as much."""
    return math.ceil(math.log2(max(1.0, picojoules / CLASS_0_PJ)))


def energy_pj(macs: Mapping[NumberFormat, int], moved_bytes: float, core: float = 1.0) -> float:
    """Energy of one run whose core clock is at this part of its highest; in the units of that process."""
    voltage = _VOLTAGE_AT_REST + (1.0 - _VOLTAGE_AT_REST) * core
    arithmetic = sum(count * MAC_PJ[form] for form, count in macs.items())
    return arithmetic * voltage**2 + moved_bytes * DDR_PJ_PER_BYTE
