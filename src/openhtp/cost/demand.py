"""How much of what a kernel needs: amounts by name, which ``rates.py`` has a price for."""

from __future__ import annotations

from collections.abc import Mapping

from openhtp.core.kinds import HELPER_KINDS, MATRIX_KINDS, VECTOR_KINDS
from openhtp.cost.number_format import NumberFormat
from openhtp.cost.rates import Padding
from openhtp.cost.sizes import KernelSize

MEGA = 1e6
GIGA = 1e9

AMOUNTS = (*MATRIX_KINDS, *VECTOR_KINDS, *HELPER_KINDS, "weights", "spill", "launch", "edge")
"""Matrix kinds in giga multiply-accumulates, vector kinds in mega elements, the rest in megabytes."""

_BY_WINDOW = frozenset({"depthwise", "pool"})
_BY_COUNT = frozenset({"softmax", "norm", "transpose", "image_layout", "image_norm", "move", "concat", "reshape"})
_BY_LARGER_SIDE = frozenset({"reduce", "gather"})
RESIDENT_SHARE = 0.5
"""Of the VTCM, for the tensors of one kernel: the rest holds weights and the next pieces."""


def demand_of(
    kernel: KernelSize, precision: NumberFormat, vtcm_bytes: int, padding: Padding
) -> Mapping[str, float]:
    """Amounts of one kernel; those that are zero are left out."""
    wide = precision.activation_bytes - 1
    filled = kernel.written * kernel.vector_padding[wide] ** padding.vector / MEGA
    touched = (kernel.read + kernel.written) * precision.activation_bytes
    amounts = {
        "weights": kernel.weights * precision.weight_bytes / MEGA,
        "spill": max(0.0, touched - RESIDENT_SHARE * vtcm_bytes) / MEGA,
        "launch": 0.0 if kernel.kind == "reshape" else 1.0,
        "edge": kernel.edge * precision.activation_bytes / MEGA,
    }
    if kernel.kind in MATRIX_KINDS:
        wasted = kernel.row_padding[wide] ** padding.rows * kernel.channel_padding**padding.channels
        amounts[kernel.kind] = kernel.macs * wasted / GIGA
        amounts["convert"] = filled
        amounts["stem_pack"] = kernel.packed / MEGA
    elif kernel.kind in _BY_WINDOW:
        amounts[kernel.kind] = filled * kernel.taps
    elif kernel.kind in _BY_COUNT:
        amounts[kernel.kind] = kernel.written / MEGA
    elif kernel.kind in _BY_LARGER_SIDE:
        amounts[kernel.kind] = max(kernel.read, kernel.written) / MEGA
    else:
        amounts[kernel.kind] = filled
    return {name: amount for name, amount in amounts.items() if amount}
