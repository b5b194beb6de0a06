"""How the elements of a tensor lie in the client's memory; the value is the API's data format number."""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.checks import member_of, shown
from openhtp.core.errors import InvalidArgument

_PREFIX = "QNN_TENSOR_DATA_FORMAT_"


class DataFormat(enum.IntEnum):
    """Row by row, or in the tiles that the matrix unit reads (``core/hmx_layout.py``)."""

    DENSE = 0
    HMX_WEIGHT_LAYOUT = 8

    @classmethod
    def parse(cls, value: DataFormat | str | int) -> DataFormat:
        """Accept a member, its name in any case with or without ``QNN_TENSOR_DATA_FORMAT_``, or its number."""
        if isinstance(value, str) and value.upper().removeprefix(_PREFIX) == "FLAT_BUFFER":
            return cls.DENSE
        found = member_of(cls, value, _PREFIX)
        if found is not None:
            return found
        names = ", ".join(item.name.lower() for item in cls)
        raise InvalidArgument(
            f"data format {shown(value)} is not supported; expected one of {names}",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM,
        )

    @property
    def qnn_name(self) -> str:
        """As the API spells it."""
        return _PREFIX + ("FLAT_BUFFER" if self is DataFormat.DENSE else self.name)
