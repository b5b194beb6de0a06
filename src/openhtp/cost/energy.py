"""Energy of a run, for comparing settings with one another: modelled, and only ratios mean anything.

No public source states the energy of an HTP. M. Horowitz published the energies of arithmetic and of moving data
in a 45 nm process ("Computing's energy problem", ISSCC 2014); newer processes scale all of them down. Picojoules
here are those of that process. People see a ratio, or a class: the next class is twice the energy.

At a given rate of inferences, power goes with the energy of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from openhtp.compiler.sizes import KernelSize
from openhtp.core.precision import NumberFormat

MAC_PJ = {NumberFormat.W8A8: 0.23, NumberFormat.W8A16: 0.5, NumberFormat.FLOAT: 1.5}
"""One multiply-accumulate, or element of a vector op; 8 by 16 bits lies between the two that are published."""

WIDE_MAC_PJ = 0.85
"""16 by 16 bits: four multipliers of 8 bits, and an adder."""

VTCM_PJ_PER_BYTE = 12.5
"""64 bits of a memory of 1 MB on the chip are 100 pJ."""

DDR_PJ_PER_BYTE = 160.0
"""A word of 32 bits from DRAM is 640 pJ at best."""

_VOLTAGE_AT_REST = 0.6
"""Of the highest corner's, estimated: energy goes with the square of the voltage, and that with the clock."""

_CLASS_0_PJ = 1e6
"""Up to a microjoule of that process is class 0."""


def on_chip_pj(kernels: Sequence[KernelSize], formats: Sequence[NumberFormat]) -> float:
    """Energy of computing and of moving data on the chip, at the highest voltage."""
    return math.fsum(_kernel_pj(kernel, form) for kernel, form in zip(kernels, formats, strict=True))


def _kernel_pj(kernel: KernelSize, form: NumberFormat) -> float:
    product = WIDE_MAC_PJ if kernel.wide_product and form is NumberFormat.W8A16 else MAC_PJ[form]
    moved = (kernel.read + kernel.written) * form.activation_bytes + kernel.weights * weight_bytes(kernel, form)
    # Bytes of a flat cache are read, put in order and written.
    tiled = kernel.retiled * (2 * VTCM_PJ_PER_BYTE + MAC_PJ[NumberFormat.W8A8])
    return kernel.macs * product + kernel.written * MAC_PJ[form] + moved * VTCM_PJ_PER_BYTE + tiled


def weight_bytes(kernel: KernelSize, form: NumberFormat) -> int:
    """Bytes of one weight of a kernel."""
    return 2 if kernel.wide_product else form.weight_bytes


def wide_bytes(kernels: Sequence[KernelSize], formats: Sequence[NumberFormat]) -> int:
    """Bytes by which weights of 16 bits exceed what their format says."""
    pairs = zip(kernels, formats, strict=True)
    return sum(kernel.weights * (weight_bytes(kernel, form) - form.weight_bytes) for kernel, form in pairs)


def energy_pj(on_chip: float, ddr_bytes: float, core: float = 1.0) -> float:
    """Energy of one run whose core clock is at this part of its highest."""
    voltage = _VOLTAGE_AT_REST + (1.0 - _VOLTAGE_AT_REST) * core
    return on_chip * voltage**2 + ddr_bytes * DDR_PJ_PER_BYTE


def energy_class_of(picojoules: float) -> int:
    """The class of an energy: one higher for twice as much."""
    return math.ceil(math.log2(max(1.0, picojoules / _CLASS_0_PJ)))
