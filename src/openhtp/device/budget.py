"""How many pieces of shared memory a client may have: each takes descriptors, and a process has only so many."""

from __future__ import annotations

import resource

from openhtp.core import status as st
from openhtp.core.errors import OutOfMemory

# Where the system sets no limit.
MAX_DESCRIPTORS = 1 << 20


class Pieces:
    """The pieces of one client. How large they are counts in its process domains (``memory/ledger.py``)."""

    def __init__(self, owner: str) -> None:
        self.held = 0
        self._owner = owner

    def take(self) -> None:
        """One more. Raises OutOfMemory, and counts nothing, if there are too many."""
        most = most_pieces()
        if self.held >= most:
            raise OutOfMemory(
                f"{self._owner} holds {self.held} pieces of shared memory, and may hold {most}."
                " Free contexts or memory, use larger pieces, or raise the limit of open files (ulimit -n)",
                st.QNN_CONTEXT_ERROR_MEM_ALLOC,
            )
        self.held += 1

    def give_back(self) -> None:
        """One less."""
        self.held -= 1


def most_pieces() -> int:
    """How many pieces of memory a session may have: two descriptors each, half of all for one client."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (MAX_DESCRIPTORS if descriptors == resource.RLIM_INFINITY else descriptors) // 4
