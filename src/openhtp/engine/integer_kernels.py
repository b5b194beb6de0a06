"""How ONNX Runtime's kernels add up products on this processor, and which weights suit them.

Sums of products of 8-bit numbers fit 32 bits. Kernels for older processors add pairs of products in 16 bits first,
where extreme numbers do not fit; the engine avoids those numbers there.
"""

from __future__ import annotations

import ctypes
import platform
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_HARDWARE_CAPABILITIES = 16  # an entry of the auxiliary vector
_DOT_PRODUCT = 1 << 20  # asimddp, of AArch64
_LARGEST_IN_PAIRS = 64  # two products of 255 with it fit 16 bits


class IntegerKernels(StrEnum):
    """What becomes of pairs of products.

    * EXACT: they are added in 32 bits (VNNI on x86, dot product on AArch64).
    * SATURATES: unsigned by signed numbers, in 16 bits, cut off at the ends (other x86).
    * WRAPS: signed by signed numbers, in 16 bits, where twice -128 by -128 does not fit (other AArch64). Unsigned
      activations are moved to signed ones by the kernels, so that 0 becomes -128.
    """

    EXACT = "exact"
    SATURATES = "saturates"
    WRAPS = "wraps"


@cache
def integer_kernels() -> IntegerKernels:
    """The kernels that the runtime chooses on this processor; on an unknown one, those that need most care."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        return IntegerKernels.EXACT if "vnni" in _processor_words() else IntegerKernels.SATURATES
    has_dot_product = machine in ("aarch64", "arm64") and _capabilities() & _DOT_PRODUCT
    return IntegerKernels.EXACT if has_dot_product else IntegerKernels.WRAPS


@cache
def rounds_products_alone() -> bool:
    """Whether plain kernels of the runtime round a product of floats before they add it to something.

    Compilers make one instruction of both for every ARM processor, and the runtime lets them. On x86, its plain
    kernels are compiled for the oldest processors, which have no such instruction.
    """
    return platform.machine() in ("x86_64", "AMD64")


def _processor_words() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _capabilities() -> int:
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(ask(_HARDWARE_CAPABILITIES))


def takes_signed(levels: npt.NDArray[Any]) -> bool:
    """Whether products with these signed weights are exact; those with unsigned ones are so everywhere."""
    if integer_kernels() is IntegerKernels.EXACT or not levels.size:
        return True
    lowest, highest = int(np.min(levels)), int(np.max(levels))
    if integer_kernels() is IntegerKernels.WRAPS:
        return lowest > -128
    return lowest >= -_LARGEST_IN_PAIRS and highest <= _LARGEST_IN_PAIRS
