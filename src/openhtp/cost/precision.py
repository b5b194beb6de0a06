"""In which number format a kernel is computed: it decides the rate of the matrix unit and the bytes that move."""

from __future__ import annotations

import enum
import functools

from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec


class Precision(enum.Enum):
    """Bits of weights (w) and activations (a); ``float`` is half precision, as the HTP computes."""

    FLOAT = "float"
    W8A8 = "w8a8"
    W8A16 = "w8a16"

    @property
    def activation_bytes(self) -> int:
        """Bytes of one element of an activation."""
        return 1 if self is Precision.W8A8 else 2

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return 2 if self is Precision.FLOAT else 1

    @classmethod
    def parse(cls, value: Precision | str) -> Precision:
        """Accept a member or its value in any case."""
        if isinstance(value, cls):
            return value
        for member in cls:
            if isinstance(value, str) and value.lower() == member.value:
                return member
        raise InvalidArgument(f"precision {shown(value)} is unknown; expected float, w8a8 or w8a16")


def precision_of(tensors: tuple[TensorSpec, ...]) -> Precision | None:
    """The format that tensors of one kernel tell; None if they are all integers, which are of no precision."""
    found = None
    for spec in tensors:
        if spec.dtype.is_fixed_point:
            return _fixed(spec.dtype.bits)
        if spec.dtype.is_float:
            found = Precision.FLOAT
    return found


@functools.cache
def _fixed(bits: int) -> Precision:
    return Precision.W8A8 if bits <= 8 else Precision.W8A16
