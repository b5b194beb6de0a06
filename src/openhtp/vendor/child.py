"""The child process that runs ``service.py``: started, asked, and buried."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from openhtp.core import interpreter
from openhtp.core.errors import DeviceLost, TimedOut
from openhtp.vendor import wire

CLOSE_TIMEOUT_S = 5.0
_LAST_WORDS_BYTES = 500


class Child:
    """One child process. ``end()`` ends it; so does forgetting it, or the end of the client."""

    def __init__(self, library: Path) -> None:
        ours, theirs = socket.socketpair()
        # The library prints as it pleases; its last words are wanted when it dies.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            self.process = subprocess.Popen(
                interpreter.command("-m", "openhtp.vendor.service", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=_environment(library.parent),
                # An interrupt at the terminal is for the client; the child ends when the socket closes.
                start_new_session=True,
            )
        self._connection: Connection = Connection(ours.detach())
        self.end = weakref.finalize(self, _end, self.process, self._connection, self._output)

    def ask(
        self,
        verb: str,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        timeout_s: float,
        descriptor: int | None = None,
    ) -> wire.Answer:
        """Send a request and wait for its answer."""
        try:
            self._connection.send((verb, tuple(arguments), dict(options)))
            if descriptor is not None:
                reduction.send_handle(self._connection, descriptor, self.process.pid)
            if not self._connection.poll(timeout_s):
                raise TimedOut(f"{verb}: no answer from the vendor process within {timeout_s:g} s; it was ended")
            return wire.decode(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise DeviceLost(f"{verb}: {self._epitaph()}") from error

    def _epitaph(self) -> str:
        """How the process ended, and the last it printed."""
        try:
            code = self.process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"the vendor process {self.process.pid} does not talk any more"
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        words = self._output.read().decode("utf-8", "replace").strip()
        return f"the vendor process {self.process.pid} {how}" + (f"; it last printed: {words}" if words else "")


def _end(process: subprocess.Popen[bytes], connection: Connection, output: IO[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()
    output.close()


def _environment(folder: Path) -> dict[str, str]:
    """The child's environment: the library finds its parts, and the DSP its skeleton, beside it."""
    environment = interpreter.environment()
    for name, separator in (("LD_LIBRARY_PATH", ":"), ("ADSP_LIBRARY_PATH", ";")):
        before = environment.get(name)
        environment[name] = f"{folder}{separator}{before}" if before else str(folder)
    return environment
