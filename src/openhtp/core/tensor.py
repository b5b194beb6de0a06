"""What a tensor is, without its data: name, shape, type, encoding, and its part in the graph."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from openhtp.core import status as st
from openhtp.core.checks import member_of, shown
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import Encoding

MAX_RANK = 8


class TensorKind(enum.IntEnum):
    """How a tensor is provided and read; the value is the API's tensor type number."""

    APP_WRITE = 0
    APP_READ = 1
    APP_READWRITE = 2
    NATIVE = 3
    STATIC = 4
    NULL = 5
    UPDATEABLE_STATIC = 6
    UPDATEABLE_NATIVE = 7
    UPDATEABLE_APP_WRITE = 8
    UPDATEABLE_APP_READ = 9
    UPDATEABLE_APP_READWRITE = 10
    OPTIONAL_APP_WRITE = 11
    OPTIONAL_APP_READ = 12
    OPTIONAL_APP_READWRITE = 13

    @property
    def is_input(self) -> bool:
        """Whether the client provides the data at execution."""
        return self in _INPUTS

    @property
    def is_output(self) -> bool:
        """Whether the client receives the data after execution."""
        return self in _OUTPUTS

    @property
    def is_static(self) -> bool:
        """Whether its data is the graph's; that of an updateable one may be exchanged later."""
        return self in _STATICS

    @property
    def is_native(self) -> bool:
        """Whether it lies between nodes, and nobody outside sees it."""
        return self in _NATIVES

    @property
    def is_updateable(self) -> bool:
        """Whether its encoding may be exchanged later, and its data if it is static."""
        return TensorKind.UPDATEABLE_STATIC <= self <= TensorKind.UPDATEABLE_APP_READWRITE

    @property
    def is_optional(self) -> bool:
        """Whether an execution may leave it out."""
        return self >= TensorKind.OPTIONAL_APP_WRITE

    @classmethod
    def parse(cls, value: TensorKind | str | int) -> TensorKind:
        """Accept a member, its name in any case with or without ``QNN_TENSOR_TYPE_``, or its number."""
        tensor_kind = member_of(cls, value, "QNN_TENSOR_TYPE_")
        if tensor_kind is not None:
            return tensor_kind
        names = ", ".join(kind.name.lower() for kind in cls)
        raise InvalidArgument(
            f"tensor kind {shown(value)} is unknown; expected one of {names}",
            st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM,
        )


_INPUTS = (
    TensorKind.APP_WRITE,
    TensorKind.APP_READWRITE,
    TensorKind.UPDATEABLE_APP_WRITE,
    TensorKind.UPDATEABLE_APP_READWRITE,
    TensorKind.OPTIONAL_APP_WRITE,
    TensorKind.OPTIONAL_APP_READWRITE,
)
_NATIVES = (TensorKind.NATIVE, TensorKind.UPDATEABLE_NATIVE)
_STATICS = (TensorKind.STATIC, TensorKind.UPDATEABLE_STATIC)
_OUTPUTS = (
    TensorKind.APP_READ,
    TensorKind.APP_READWRITE,
    TensorKind.UPDATEABLE_APP_READ,
    TensorKind.UPDATEABLE_APP_READWRITE,
    TensorKind.OPTIONAL_APP_READ,
    TensorKind.OPTIONAL_APP_READWRITE,
)


def batched(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """The shape of ``batch`` pieces one after the other; a scalar has no dimension to grow in."""
    return (shape[0] * batch, *shape[1:]) if shape else shape


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without data. ``dynamic`` marks dimensions whose size an execution may lower.

    ``sparse_elements`` makes it a sparse tensor in which at most so many elements are specified. ``data_format``
    says how the client's memory holds it; the shape is the logical one all the same.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    quant: Encoding | None = None
    kind: TensorKind = TensorKind.NATIVE
    dynamic: tuple[bool, ...] = field(default=())
    sparse_elements: int | None = None
    data_format: DataFormat = DataFormat.DENSE

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor takes in client memory."""
        return self.elements * self.dtype.itemsize

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension may vary between executions."""
        return any(self.dynamic)

    @property
    def free(self) -> tuple[bool, ...]:
        """For every dimension, whether an execution may lower it."""
        return self.dynamic or (False,) * self.rank

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an execution may have this shape: the tensor's own, or smaller in its dynamic dimensions."""
        return shape == self.shape or (
            len(shape) == self.rank
            and all(
                1 <= size <= most if free else size == most
                for size, most, free in zip(shape, self.shape, self.free, strict=True)
            )
        )

    def __str__(self) -> str:
        tiled = "" if self.data_format is DataFormat.DENSE else f" {self.data_format.name.lower()}"
        return f"{self.name}: {self.dtype.short}{list(self.shape)}{tiled}"
