"""In which number format a kernel is computed: it decides the rate of the matrix unit and the bytes that move."""

from __future__ import annotations

import enum
import functools

from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec


class NumberFormat(enum.Enum):
    """Bits of weights (w) and activations (a); ``float`` is half precision, as the HTP computes."""

    FLOAT = "float"
    W8A8 = "w8a8"
    W8A16 = "w8a16"

    @property
    def activation_bytes(self) -> int:
        """Bytes of one element of an activation."""
        return 1 if self is NumberFormat.W8A8 else 2

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return 2 if self is NumberFormat.FLOAT else 1

    @classmethod
    def parse(cls, value: NumberFormat | str) -> NumberFormat:
        """Accept a member or its value in any case."""
        if isinstance(value, cls):
            return value
        for member in cls:
            if isinstance(value, str) and value.lower() == member.value:
                return member
        raise InvalidArgument(f"precision {shown(value)} is unknown; expected float, w8a8 or w8a16")


def precision_of(tensors: tuple[TensorSpec, ...]) -> NumberFormat | None:
    """The format that tensors of one kernel tell; None if they are all integers, which are of no precision."""
    found = None
    for spec in tensors:
        if spec.dtype.is_fixed_point:
            return _fixed(spec.dtype.bits)
        if spec.dtype.is_float:
            found = NumberFormat.FLOAT
    return found


@functools.cache
def _fixed(bits: int) -> NumberFormat:
    return NumberFormat.W8A8 if bits <= 8 else NumberFormat.W8A16
