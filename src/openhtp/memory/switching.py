"""Graph switching: whose turn it is, and which graphs are unloaded for the one that is to run.

Graphs of a switching context run one after the other, in the order in which they were asked for. Without a
retention order only the one that runs is loaded. With one, the graphs in it stay for as long as there is room, and
all others go at the next switch. The same for a device and for a plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


def loaded_first(enabled: Sequence[str], retained: Sequence[str]) -> tuple[str, ...]:
    """The graphs that are loaded with their context: those to be retained, otherwise the first enabled one."""
    return tuple(retained) or tuple(enabled[:1])


def to_unload(
    wanted: str, loaded: Collection[str], retained: Sequence[str], sizes: Mapping[str, int], left: int
) -> tuple[str, ...]:
    """Which graphs must go so that ``wanted`` can be loaded into ``left`` bytes and what they give back.

    If even all of them are not enough, all of them: that it does not fit is then for the memory to say.
    """
    if wanted in loaded:
        return ()
    gone = [name for name in loaded if name not in retained]
    left += sum(sizes[name] for name in gone)
    for name in reversed(retained):
        if left >= sizes[wanted]:
            break
        if name in loaded:
            gone.append(name)
            left += sizes[name]
    return tuple(gone)


@dataclass(frozen=True, slots=True)
class Turn:
    """The job that may run next, and the graphs that go before its own is loaded (None: it is loaded)."""

    job: int
    graph: str
    unload: tuple[str, ...] | None


class Turns:
    """The order in which jobs of a switching context run, one at a time."""

    def __init__(self, sizes: Mapping[str, int], retained: Sequence[str]) -> None:
        self.sizes = dict(sizes)
        self.retained = tuple(retained)
        self.loaded: dict[str, None] = {}
        self.running: int | None = None
        self._waiting: deque[tuple[int, str]] = deque()

    @property
    def waiting(self) -> int:
        """Jobs that have not had their turn."""
        return len(self._waiting)

    def asked(self, job: int, graph: str) -> None:
        """A job is there."""
        self._waiting.append((job, graph))

    def ended(self, job: int) -> None:
        """A job is over, whether it ran or not."""
        if self.running == job:
            self.running = None
        else:
            self._waiting = deque(waiting for waiting in self._waiting if waiting[0] != job)

    def next(self, left: int) -> Turn | None:
        """Begin the next turn, unless a job is running; ``left`` bytes are free beside what is loaded."""
        if self.running is not None or not self._waiting:
            return None
        job, graph = self._waiting.popleft()
        self.running = job
        if graph in self.loaded:
            return Turn(job, graph, None)
        return Turn(job, graph, to_unload(graph, self.loaded, self.retained, self.sizes, left))
