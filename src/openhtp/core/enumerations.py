"""Words that have numbers in the API: levels, priorities, notifications, memory types and data formats.

``Outcome`` has none there. It says how an execution ended: the scheduler, clients and traces share it.
"""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.checks import member_of, shown, whole_number
from openhtp.core.errors import InvalidArgument, UnsupportedFeature


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
        level = member_of(cls, value)
        if level is not None:
            return level
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
        level = member_of(cls, value)
        if level is not None:
            return level
        raise InvalidArgument(
            f"profile level {shown(value)}; expected basic, detailed, linting or optrace",
            st.QNN_PROFILE_ERROR_INVALID_ARGUMENT,
        )


class NotifyType(enum.IntEnum):
    """What a notification of a context's creation is about."""

    GRAPH_INIT = 0
    CONTEXT_INIT = 1


_MAX_DESCRIPTOR = 2**31 - 1


class MemType(enum.IntEnum):
    """Kinds of memory that a client may register."""

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
        if number is None or not 0 <= number <= _MAX_DESCRIPTOR:
            raise InvalidArgument(
                f"fd is {shown(fd)}; expected the number of an open descriptor", st.QNN_MEM_ERROR_INVALID_ARGUMENT
            )
        return number

    @classmethod
    def _parse(cls, value: object) -> MemType:
        mem_type = member_of(cls, value, "QNN_MEM_TYPE_")
        if mem_type is not None:
            return mem_type
        raise InvalidArgument(
            f"mem_type {shown(value)} is unknown; expected ion or dma_buf", st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE
        )


_FORMAT_PREFIX = "QNN_TENSOR_DATA_FORMAT_"


class DataFormat(enum.IntEnum):
    """How a tensor lies in the client's memory: row by row, or in tiles of the HMX (``core/hmx_layout.py``)."""

    DENSE = 0
    HMX_WEIGHT_LAYOUT = 8

    @classmethod
    def parse(cls, value: DataFormat | str | int) -> DataFormat:
        """Accept a member, its name in any case with or without ``QNN_TENSOR_DATA_FORMAT_``, or its number."""
        if isinstance(value, str) and value.upper().removeprefix(_FORMAT_PREFIX) == "FLAT_BUFFER":
            return cls.DENSE
        data_format = member_of(cls, value, _FORMAT_PREFIX)
        if data_format is not None:
            return data_format
        names = ", ".join(item.name.lower() for item in cls)
        raise InvalidArgument(
            f"data format {shown(value)} is not supported; expected one of {names}",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM,
        )

    @property
    def qnn_name(self) -> str:
        """As the API spells it."""
        return _FORMAT_PREFIX + ("FLAT_BUFFER" if self is DataFormat.DENSE else self.name)


class Outcome(enum.Enum):
    """How a job ended."""

    DONE = "done"
    ABORTED = "aborted"
    TIMED_OUT = "timed_out"
    GONE = "gone"


class Priority(enum.IntEnum):
    """Higher is more urgent. 0, 100, 150 and 200 are the API's numbers.

    The four levels added later have documented names and ranks; the API accepts 0 to 500, so their numbers
    here are chosen inside that range and keep the order.
    """

    LOW = 0
    NORMAL_LOW = 50
    NORMAL = 100
    NORMAL_HIGH = 150
    HIGH = 200
    HIGH_PLUS = 300
    CRITICAL = 400
    CRITICAL_PLUS = 500

    @property
    def thread_priority(self) -> int:
        """Hexagon OS priority of the HMX thread; lower is more urgent."""
        return _THREAD_PRIORITY[self]

    @property
    def hvx_thread_priority(self) -> int:
        """Hexagon OS priority of the HVX threads: right behind the HMX."""
        return self.thread_priority + 1

    @classmethod
    def parse(cls, value: Priority | str | int) -> Priority:
        """Accept a member, a name in any case (``"high"``, ``"QNN_PRIORITY_HIGH"``) or a number.

        A number between two levels counts as the lower of them, as levels are what the device can tell apart.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            word = value.strip().upper().removeprefix("QNN_PRIORITY_").replace("-", "_")
            word = _ALIASES.get(word, word)
            if word in cls.__members__:
                return cls[word]
        else:
            number = whole_number(value)
            if number is not None and 0 <= number <= 500:
                return max(level for level in cls if level <= number)
        names = ", ".join(level.name.lower() for level in cls)
        raise InvalidArgument(
            f"priority {shown(value)} is unknown; expected one of {names}, or a number from 0 to 500",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )


# "medium" is the yielding document's word for a client between low and high.
_ALIASES = {"DEFAULT": "NORMAL", "MEDIUM": "NORMAL"}

_THREAD_PRIORITY = {
    Priority.LOW: 0xC5,
    Priority.NORMAL_LOW: 0xC3,
    Priority.NORMAL: 0xC0,
    Priority.NORMAL_HIGH: 0xBD,
    Priority.HIGH: 0xBB,
    Priority.HIGH_PLUS: 0xB6,
    Priority.CRITICAL: 0xB1,
    Priority.CRITICAL_PLUS: 0xAC,
}
