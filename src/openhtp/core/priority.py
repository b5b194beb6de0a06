"""The eight priorities of graphs and contexts, and the thread priorities that the HTP runs them at."""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument


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
