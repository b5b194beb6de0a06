"""How much is logged and how much is profiled: the API's levels."""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument


class LogLevel(enum.IntEnum):
    """The API's levels."""

    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4
    DEBUG = 5

    @classmethod
    def parse(cls, value: LogLevel | str | int) -> LogLevel:
        """Accept a member, its name in any case, or its number."""
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        number = whole_number(value)
        if number is not None and number in cls._value2member_map_:
            return cls(number)
        names = ", ".join(level.name.lower() for level in cls)
        raise InvalidArgument(
            f"log level {shown(value)}; expected one of {names}", st.QNN_LOG_ERROR_INVALID_ARGUMENT
        )


class ProfileLevel(enum.IntEnum):
    """How much is collected: times, cycles of every op, or what each op waits for and what runs beside it."""

    BASIC = 1
    DETAILED = 2
    LINTING = 7001

    @classmethod
    def parse(cls, value: ProfileLevel | str | int) -> ProfileLevel:
        """Accept a member, its name in any case, or its number."""
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        number = whole_number(value)
        if number is not None and number in cls._value2member_map_:
            return cls(number)
        raise InvalidArgument(
            f"profile level {shown(value)}; expected basic, detailed, linting or optrace",
            st.QNN_PROFILE_ERROR_INVALID_ARGUMENT,
        )
