"""The process that Genie runs in: ``python -m openhtp.genie.host FD``.

Genie's calls cannot be interrupted, it ends the process where it meets what it did not expect, and its libraries
are found when the process starts. So none of that happens in the caller's process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from openhtp.core.errors import QnnError
from openhtp.core.threads import OwnThread
from openhtp.genie.calls import GenieLibrary
from openhtp.genie.dialog import Answer, Dialog
from openhtp.genie.messages import END, STOP, HostCall, HostOpening, HostWord, error_words
from openhtp.planning import load_scenario
from openhtp.planning.live import LiveStage
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.device import Device
from openhtp.tracing import trace

_CALLS = msgspec.msgpack.Decoder(HostCall)
_OPENING = msgspec.msgpack.Decoder(HostOpening)


class GenieHost:
    """Reads calls on a thread of its own, and makes them one after another."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._calls: queue.SimpleQueue[HostCall | None] = queue.SimpleQueue()
        self._dialog: Dialog | None = None

    def serve(self) -> None:
        """Do what is asked for until the caller has no more to ask."""
        opening = _OPENING.decode(self._connection.recv_bytes())
        with contextlib.ExitStack() as stack:
            try:
                neighbours = None
                if opening.scenario is not None:
                    neighbours = stack.enter_context(NpuNeighbours(Path(opening.scenario), opening.soc))
                self._dialog = stack.enter_context(self._opened(opening))
                # Last, so that the trace ends while the graphs whose steps it names are there.
                if opening.trace is not None:
                    stack.enter_context(trace(opening.trace))
                # Their executions would line up while the graphs are loaded, and the first answer wait for all.
                if neighbours is not None:
                    neighbours.begin()
            except Exception as error:
                self._say(HostWord(error=error_words(error), is_last=True))
                return
            OwnThread(self._read, name="openhtp-genie-calls").start()
            self._say(HostWord(is_last=True))
            while (call := self._calls.get()) is not None:
                self._do(call, self._dialog)

    @contextlib.contextmanager
    def _opened(self, opening: HostOpening) -> Iterator[Dialog]:
        library = GenieLibrary(Path(opening.library), opening.depth, self._log)
        dialog = Dialog(library, opening.config, profiled=opening.profiled)
        try:
            yield dialog
        finally:
            with contextlib.suppress(QnnError):  # the error before it was reported
                dialog.free()

    def _read(self) -> None:
        """Calls as they come; the caller's end is one, too."""
        while True:
            try:
                call = _CALLS.decode(self._connection.recv_bytes())
            except (EOFError, OSError):
                call = HostCall(END)
            if call.method == STOP or call.method == END:
                assert self._dialog is not None
                with contextlib.suppress(QnnError):  # no query runs
                    self._dialog.stop()
            if call.method == END:
                self._calls.put(None)
                return
            if call.method != STOP:
                self._calls.put(call)

    def _do(self, call: HostCall, dialog: Dialog) -> None:
        try:
            if call.method == "query":
                result = dialog.query(
                    call.arguments[0], lambda piece: self._say(HostWord(number=call.number, piece=piece))
                )
            else:
                result = getattr(dialog, call.method)(*call.arguments)
        except Exception as error:
            self._say(HostWord(number=call.number, error=error_words(error), is_last=True))
            return
        answer = result if isinstance(result, Answer) else None
        content = result if isinstance(result, dict) else None
        self._say(HostWord(number=call.number, answer=answer, content=content, is_last=True))

    def _log(self, level: int, line: str) -> None:
        self._say(HostWord(line=(level, line)))

    def _say(self, word: HostWord) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more; the reading thread sees that, too
            self._connection.send_bytes(msgspec.msgpack.encode(word))


class NpuNeighbours:
    """Runs a scenario's clients beside Genie's contexts, on a thread of its own.

    Only clients and events of the scenario count: the device is the one that Genie has.
    """

    def __init__(self, scenario: Path, soc: str) -> None:
        self._scenario = load_scenario(scenario)
        self._soc = soc
        self._backend = Backend()
        self._stage = LiveStage(self._scenario, open_device=self._open)
        self._thread: OwnThread | None = None
        self._ends = False

    def __enter__(self) -> NpuNeighbours:
        self._stage.__enter__()
        return self

    def begin(self) -> None:
        """Let them run from now on, until the block ends."""
        self._thread = OwnThread(self._play, name="openhtp-genie-neighbours")
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._ends = True
        self._stage.stop()
        if self._thread is not None:
            self._thread.join()
        self._stage.close()
        self._backend.free()

    def _open(self) -> Device:
        return self._backend.create_device(soc=self._soc, host="thread", npu="shared")

    def _play(self) -> None:
        while not self._ends:
            self._stage.play()


def main() -> None:
    """Serve the caller at the other end of a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides what an interrupt means
    GenieHost(Connection(int(sys.argv[1]))).serve()
    # The dialog is freed, and the vendor's libraries are not always fit to be unloaded.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
