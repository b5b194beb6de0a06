"""Kinds of memory that a client may register, by the API's words."""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.checks import member_of, shown, whole_number
from openhtp.core.errors import InvalidArgument, UnsupportedFeature

_MOST = 2**31 - 1


class MemType(enum.IntEnum):
    """The value is the API's number."""

    ION = 1
    CUSTOM = 2
    DMA_BUF = 3

    @classmethod
    def check_descriptor(cls, fd: object, mem_type: object) -> int | None:
        """The descriptor, if one is given and the two go together."""
        if mem_type is not None:
            kind = cls._parse(mem_type)
            if kind is cls.CUSTOM:
                raise UnsupportedFeature(
                    "mem_type is custom, which is not given by a descriptor; give a size alone, or ion or dma_buf",
                    st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE,
                )
            if fd is None:
                raise InvalidArgument(
                    f"mem_type is {kind.name.lower()} but there is no descriptor; give it as fd",
                    st.QNN_MEM_ERROR_INVALID_ARGUMENT,
                )
        if fd is None:
            return None
        number = whole_number(fd)
        if number is None or not 0 <= number <= _MOST:
            raise InvalidArgument(
                f"fd is {shown(fd)}; expected the number of an open descriptor", st.QNN_MEM_ERROR_INVALID_ARGUMENT
            )
        return number

    @classmethod
    def _parse(cls, value: object) -> MemType:
        found = member_of(cls, value, "QNN_MEM_TYPE_")
        if found is not None:
            return found
        raise InvalidArgument(
            f"mem_type {shown(value)} is unknown; expected ion or dma_buf", st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE
        )
