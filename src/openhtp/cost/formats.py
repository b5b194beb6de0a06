"""In which number format each kernel of a network is computed, and whether a SoC does so."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.compiler.sizes import KernelSize
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.precision import NumberFormat
from openhtp.hw.soc import SocSpec


def precisions_of(kernels: Sequence[KernelSize], asked: NumberFormat | None) -> list[NumberFormat]:
    """The precision of every kernel; kernels of integers count as the rest does."""
    fixed = {k.precision for k in kernels if k.precision not in (None, NumberFormat.FLOAT)}
    if asked is not None and fixed and fixed != {asked}:
        words = " and ".join(sorted(each.value for each in fixed if each))
        raise InvalidArgument(f"the model is quantized already, to {words}; leave the precision out")
    known = [kernel.precision for kernel in kernels if kernel.precision is not None]
    usual = most_common(known) if known else NumberFormat.FLOAT
    if asked is not None and not fixed:
        return [asked] * len(kernels)
    return [kernel.precision or usual for kernel in kernels]


def most_common(precisions: Sequence[NumberFormat]) -> NumberFormat:
    """The precision that most kernels have, which is called that of the network."""
    return max(NumberFormat, key=lambda each: sum(precision is each for precision in precisions))


def verify_offered(soc: SocSpec, precisions: Sequence[NumberFormat]) -> None:
    """Refuse half precision where the SoC has none."""
    if NumberFormat.FLOAT in precisions and not soc.fp16:
        raise UnsupportedFeature(f"{soc.name} has no half precision; quantize the model, or say w8a8 or w8a16")
