"""How much is logged and how much is profiled: the API's levels."""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.checks import member_of, shown
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
        found = member_of(cls, value)
        if found is not None:
            return found
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
        found = member_of(cls, value)
        if found is not None:
            return found
        raise InvalidArgument(
            f"profile level {shown(value)}; expected basic, detailed, linting or optrace",
            st.QNN_PROFILE_ERROR_INVALID_ARGUMENT,
        )
