"""How the elements of a tensor lie in the client's memory; the value is the API's data format number."""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument

_PREFIX = "QNN_TENSOR_DATA_FORMAT_"


class DataFormat(enum.IntEnum):
    """Row by row, or in the tiles that the matrix unit reads (``core/hmx_layout.py``)."""

    DENSE = 0
    HMX_WEIGHT_LAYOUT = 8

    @classmethod
    def parse(cls, value: DataFormat | str | int) -> DataFormat:
        """Accept a member, its name in any case with or without ``QNN_TENSOR_DATA_FORMAT_``, or its number."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            word = value.upper().removeprefix(_PREFIX)
            word = "DENSE" if word == "FLAT_BUFFER" else word
            if word in cls.__members__:
                return cls[word]
        number = whole_number(value)
        if number is not None and number in cls._value2member_map_:
            return cls(number)
        names = ", ".join(item.name.lower() for item in cls)
        raise InvalidArgument(
            f"data format {shown(value)} is not supported; expected one of {names}",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM,
        )

    @property
    def qnn_name(self) -> str:
        """As the API spells it."""
        return _PREFIX + ("FLAT_BUFFER" if self is DataFormat.DENSE else self.name)
