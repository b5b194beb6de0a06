"""What loading is: stored graphs are made ready, or stored again with what makes them ready quickly."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openhtp.core.errors import InvalidArgument, error_context
from openhtp.device.target import PreparingTarget, Target
from openhtp.engine.protocol import LoadedProgram
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.packed import GraphInfo, PackedGraph
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc.shm import SharedBuffer

log = logging.getLogger(__name__)

Work = Callable[[], Callable[[], None]]
# Told how many are done, of how many, and which one is next.
Advance = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Ready:
    """A graph that can run. ``program`` is what it was made from, None if that was a prepared form."""

    info: GraphInfo
    loaded: LoadedProgram
    program: QnnProgram | None


def make_ready(target: Target, data: memoryview, places: Sequence[int], advance: Advance) -> list[Ready]:
    """Make graphs of a binary ready, all or none; they share its bytes. ``advance`` may raise to end it early."""
    binary = read_binary(data)
    names = binary.graph_names
    if not places or len(set(places)) != len(places) or not all(0 <= place < len(names) for place in places):
        raise InvalidArgument(f"graphs {list(places)} of a binary of {len(names)}; expected some, each once")
    ready: list[Ready] = []
    try:
        for done, place in enumerate(places):
            advance(done, len(places), names[place])
            with error_context(graph=names[place]):
                ready.append(_make_ready(target, binary.packed(names[place])))
    except BaseException:
        close_all(ready)
        raise
    return ready


def close_all(ready: Sequence[Ready]) -> None:
    """Give back what nobody wants any more."""
    for made in ready:
        made.loaded.close()


def _make_ready(target: Target, packed: PackedGraph) -> Ready:
    """From the prepared form if that can be used, else from the program."""
    info = packed.info()
    loaded = target.load_packed(packed, info) if isinstance(target, PreparingTarget) else None
    if loaded is not None:
        return Ready(info, loaded, None)
    program = packed.program()
    return Ready(info, target.load(program), program)


def pack_ready(target: Target, program: QnnProgram | None) -> SharedBuffer | None:
    """The program and its prepared form as a binary. None if the target makes none, or there is no program."""
    if program is None or not isinstance(target, PreparingTarget):
        return None
    packed = target.pack(program)
    return None if packed is None else SharedBuffer.holding(pack_graphs([packed], BinaryInfo()))


class Loader:
    """One thread for a runner beside the loop. What its work returns is then called on the loop's thread."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="openhtp-loader", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Run ``work`` off the loop's thread. It must turn its own failures into what it returns."""
        self._queue.put(work)

    def close(self) -> None:
        """Let the thread end after what it is doing now."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                self._post(work())
            except Exception:
                log.exception("slow work failed")
            del work  # and what it holds, before the next is waited for
