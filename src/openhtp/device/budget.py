"""How much memory a session may hold: granted before it is taken, and given back once."""

from __future__ import annotations

import enum
import resource

from openhtp.core import status as st
from openhtp.core.errors import OutOfMemory
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import bytes_in_words

# Where the system sets no limit.
MAX_DESCRIPTORS = 1 << 20


class Use(enum.Enum):
    """What memory is for."""

    WEIGHTS = "weights"
    IO = "io"


class Grant:
    """Memory that counts against a budget until it is given back, however often that is said."""

    __slots__ = ("_budget", "nbytes", "use")

    def __init__(self, budget: Budget, nbytes: int, use: Use) -> None:
        self._budget: Budget | None = budget
        self.nbytes = nbytes
        self.use = use

    def give_back(self) -> None:
        """It is no longer held."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget._take_back(self)


class Budget:
    """What one session may address, and how many pieces of it it may hold."""

    def __init__(self, owner: str, limit: int = SESSION_LIMIT_BYTES) -> None:
        self._owner = owner
        self._limit = limit
        self._pieces = 0
        self._used = dict.fromkeys(Use, 0)

    def take(self, nbytes: int, use: Use, what: str) -> Grant:
        """Count memory. Raises OutOfMemory, and counts nothing, if it is over a limit."""
        if self.used + nbytes > self._limit:
            raise OutOfMemory(
                f"{what} needs {bytes_in_words(nbytes)}, but {self._owner} holds"
                f" {bytes_in_words(self.used)} of {bytes_in_words(self._limit)}; free contexts"
                " or memory, or open another session",
                st.QNN_CONTEXT_ERROR_MEM_ALLOC,
            )
        most = most_pieces()
        if self._pieces >= most:
            raise OutOfMemory(
                f"{self._owner} holds {self._pieces} pieces of shared memory, and may hold {most}."
                " Free contexts or memory, use larger pieces, or raise the limit of open files (ulimit -n)",
                st.QNN_CONTEXT_ERROR_MEM_ALLOC,
            )
        self._pieces += 1
        self._used[use] += nbytes
        return Grant(self, nbytes, use)

    def _take_back(self, grant: Grant) -> None:
        self._pieces -= 1
        self._used[grant.use] -= grant.nbytes

    @property
    def used(self) -> int:
        """Bytes that are held."""
        return sum(self._used.values())

    def by_use(self) -> dict[str, int]:
        """Bytes that are held for each use."""
        return {use.value: nbytes for use, nbytes in self._used.items()}


def most_pieces() -> int:
    """How many pieces of memory a session may have: two descriptors each, half of all for one client."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (MAX_DESCRIPTORS if descriptors == resource.RLIM_INFINITY else descriptors) // 4
