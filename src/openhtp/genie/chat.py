"""A dialog with Genie, on our library or on the vendor's, from a program in Python."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from openhtp.capi.device import NAME_VARIABLE, SOC_VARIABLE, TRANSPORT_VARIABLE
from openhtp.core import interpreter
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import DeviceLost, InvalidArgument, QnnError, WrongState
from openhtp.genie.calls import LogDepth
from openhtp.genie.dialog import Answer
from openhtp.genie.libraries import linked_folder, require_genie
from openhtp.genie.messages import END, STOP, HostCall, HostOpening, HostWord, error_from
from openhtp.genie.settings import GenieBundle
from openhtp.genie.vendor_bundle import compiled_by_vendor
from openhtp.runtime.objects.backend import FAULTS_VARIABLE

log = logging.getLogger("openhtp.genie")

_WORDS = msgspec.msgpack.Decoder(HostWord)
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}
# A process that was told to end frees a dialog and its contexts first.
_PATIENCE_S = 60.0
_LAST_WORDS = 2000
# Before a line that Genie prints; the checker of configurations has none.
_TAG = re.compile(r"^\[([A-Z]+)\]\s*")
_LINES_SHOWN = 3


class Chat:
    """An unmodified ``libGenie.so`` in a process of its own, with the bundle that it answers from.

    ::

        with Chat("tiny", asynchronous=True) as chat:
            for piece in chat.query("It was a fine", tokens=64):
                print(piece, end="")

    Args:
        bundle: the folder of an exported bundle, or its ``genie_config.json``.
        library: ``libGenie.so`` or its folder; that of the package ``onnxruntime-qnn`` unless given.
        soc: the chip; the one that the binaries were made for, or SM8650, unless given.
        asynchronous: have Genie queue the parts of a pass without waiting (``allow-async-enqueue``).
        host: where the NPU lives: on a ``thread`` of Genie's process, or in a ``process`` of its own.
        device: share the device of this name with other processes.
        faults: what calls of Genie are to meet (as in ``OPENHTP_FAULTS``).
        neighbour: a scenario whose clients run on the same NPU meanwhile.
        trace: file to which everything on the NPU is written at the end.
        vendor: run on the vendor's library instead of ours.
        profiled: have Genie measure its calls, for ``profile``.
        depth: how much of Genie's log goes to the logger ``openhtp.genie``; nothing unless given. An error has
            the lines of its call in any case.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        *,
        library: str | os.PathLike[str] | None = None,
        soc: str | None = None,
        asynchronous: bool = False,
        host: str = "thread",
        device: str | None = None,
        faults: str | None = None,
        neighbour: str | os.PathLike[str] | None = None,
        trace: str | os.PathLike[str] | None = None,
        vendor: bool = False,
        profiled: bool = False,
        depth: LogDepth | None = None,
    ) -> None:
        """Start Genie with a bundle, and wait until it can be asked."""
        self._answer: Answer | None = None
        self._busy = False
        self._told = depth is not None
        # Errors in Genie's log: all that is left of a process that Genie itself ends.
        self._heard: deque[str] = deque(maxlen=_LINES_SHOWN)
        emulated = {"faults": faults, "neighbour": neighbour, "trace": trace, "device": device}
        _check_place(host, vendor, [name for name, value in emulated.items() if value is not None])
        genie, settings = require_genie(library), GenieBundle.at(bundle)
        chip = settings.chip(soc)
        variables = {
            SOC_VARIABLE: chip,
            FAULTS_VARIABLE: faults or "",
            NAME_VARIABLE: device or "",
            TRANSPORT_VARIABLE: "inprocess" if host == "thread" and device is None else "rpc",
        }
        with contextlib.ExitStack() as stack:
            if vendor:
                settings = stack.enter_context(compiled_by_vendor(settings, chip))
            else:
                genie = stack.enter_context(linked_folder(genie)) / genie.name
            self._process = _HostProcess(interpreter.environment() | variables)
            stack.callback(self._process.end)
            opening = HostOpening(
                library=str(genie),
                config=settings.config(asynchronous=asynchronous),
                depth=depth or LogDepth.ERROR,
                profiled=profiled,
                soc=chip,
                trace=None if trace is None else str(Path(trace).absolute()),
                scenario=None if neighbour is None else str(Path(neighbour).absolute()),
            )
            self._process.send(opening)
            self._drain()
            self._stack = stack.pop_all()

    # Asking

    def query(self, prompt: str, *, tokens: int | None = None) -> Iterator[str]:
        """Ask, and get the answer piece by piece. The answer ends when the caller stops listening."""
        if not isinstance(prompt, str) or not prompt:
            raise InvalidArgument(f"prompt is {shown(prompt)}; expected a text")
        if self._busy:
            raise WrongState("a query is being answered already; read it to its end first")
        if tokens is not None:
            if whole_number(tokens) is None or tokens < 1:
                raise InvalidArgument(f"tokens is {shown(tokens)}; expected a number of tokens, at least 1")
            self._ask("limit", tokens)
        self._send(HostCall("query", [prompt]))
        return self._pieces()

    def ask(self, prompt: str, *, tokens: int | None = None) -> Answer:
        """Ask, and wait for the whole answer."""
        for _ in self.query(prompt, tokens=tokens):
            pass
        return self.answer

    def ask_tokens(self, prompt: Sequence[int], *, tokens: int | None = None) -> Answer:
        """Ask by token numbers, and wait for those of the answer."""
        if tokens is not None:
            self._ask("limit", tokens)
        word = self._ask("query_tokens", list(prompt))
        assert word.answer is not None
        return word.answer

    @property
    def answer(self) -> Answer:
        """The last answer, with how long it took."""
        if self._answer is None:
            raise WrongState("nothing was asked yet, or its answer was not read to the end")
        return self._answer

    def _pieces(self) -> Iterator[str]:
        self._busy, self._answer = True, None
        ended = False
        try:
            while not ended:
                word = self._next()
                ended = word.is_last
                if word.error is not None:
                    raise self._process.explained(error_from(word.error))
                self._answer = word.answer
                if word.piece:
                    yield word.piece
        finally:
            if not ended:  # the listener has gone, or was interrupted
                with contextlib.suppress(OSError, DeviceLost):
                    self._process.send(HostCall(STOP))
                    while not self._next().is_last:
                        pass
            self._busy = False

    # Between queries

    def reset(self) -> None:
        """Forget what was said."""
        self._ask("reset")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the dialog into a folder, which is made if there is none."""
        path = Path(folder).absolute()
        path.mkdir(parents=True, exist_ok=True)
        self._ask("save", str(path))

    def restore(self, folder: str | os.PathLike[str]) -> None:
        """Go on where a saved dialog ended."""
        self._ask("restore", str(Path(folder).absolute()))

    def stop_at(self, sequences: Sequence[str]) -> None:
        """End answers where one of these texts appears; none: never."""
        self._ask("stop_at", list(sequences))

    def use_adapter(self, name: str) -> None:
        """Answer with a LoRA adapter of the bundle."""
        self._ask("use_adapter", name)

    def set_priority(self, priority: str) -> None:
        """Have Genie's contexts run at another priority: low, normal, normal_high or high."""
        self._ask("set_priority", priority)

    def set_policy(self, policy: str) -> None:
        """Have Genie vote for clocks: burst, balanced, power_saver and so on."""
        self._ask("set_policy", policy)

    def profile(self) -> dict[str, Any]:
        """What Genie measured of its own calls; the chat must be ``profiled``."""
        return self._ask("profile").content or {}

    def close(self) -> None:
        """End the dialog and its process. A trace is written by then."""
        self._stack.close()

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Number of the process that Genie runs in."""
        return self._process.pid

    # Talking to the process

    def _ask(self, method: str, *arguments: Any) -> HostWord:
        if self._busy:
            raise WrongState(f"{method} while a query is being answered; read the answer to its end first")
        self._send(HostCall(method, list(arguments)))
        return self._drain()

    def _send(self, call: HostCall) -> None:
        try:
            self._process.send(call)
        except OSError as error:
            raise self._lost() from error

    def _drain(self) -> HostWord:
        while not (word := self._next()).is_last:
            pass
        if word.error is not None:
            raise self._process.explained(error_from(word.error))
        return word

    def _next(self) -> HostWord:
        """What the process says next; lines of its log are passed on."""
        while True:
            try:
                word = self._process.receive()
            except (EOFError, OSError) as error:
                raise self._lost() from error
            if word.line is None:
                return word
            level, line = word.line
            if level == LogDepth.ERROR:
                self._heard.append(line)
            if self._told:
                log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)

    def _lost(self) -> DeviceLost:
        heard = "; ".join(dict.fromkeys(self._heard))
        words = self._process.last_words() + (f"; its log says: {heard}" if heard else "")
        return DeviceLost(f"the process that Genie runs in has ended{words}")


def _check_place(host: str, vendor: bool, emulated: Sequence[str]) -> None:
    """Whether Genie can run there, with what only an emulated NPU has."""
    if host not in ("thread", "process"):
        raise InvalidArgument(f"host is {shown(host)}; expected thread or process")
    if vendor and emulated:
        raise InvalidArgument(f"vendor with {', '.join(emulated)}; the vendor's library has no such thing")


def _reason(line: str) -> str:
    """What a printed line says of an error; empty if nothing. The last clause is the cause of those before it."""
    tag = _TAG.match(line)
    if tag is not None:
        return line[tag.end() :].strip().strip('"') if tag[1] == "ERROR" else ""
    return "" if line.endswith(":") else line.rpartition(" - ")[2].strip()


class _HostProcess:
    """The process, the socket to it, and what it and its libraries print."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._log = os.memfd_create("openhtp-genie-log", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                interpreter.command("-m", "openhtp.genie.host", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={name: value for name, value in environment.items() if value},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt typed at the caller is not meant for Genie
            )
        self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: HostOpening | HostCall) -> None:
        self._connection.send_bytes(msgspec.msgpack.encode(message))

    def receive(self) -> HostWord:
        return _WORDS.decode(self._connection.recv_bytes())

    def explained(self, error: QnnError) -> QnnError:
        """The error with what Genie printed of it: not all of its lines go to its log."""
        told = [line for line in map(_reason, self._printed().splitlines()) if line]
        news = [line for line in dict.fromkeys(told[-_LINES_SHOWN:]) if line not in error.message]
        return type(error)("; ".join([error.message, *news]), error.status)

    def _printed(self) -> str:
        size = os.fstat(self._log).st_size
        return os.pread(self._log, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode(errors="replace")

    def last_words(self) -> str:
        """How the process ended, and the end of what it printed."""
        code = self._process.wait(_PATIENCE_S)
        text = "; ".join(line for line in map(_reason, self._printed().splitlines()) if line)
        by = f", by {signal.Signals(-code).name}" if code < 0 else f", with status {code}"
        return f"{by}; it wrote: {text}" if text else by

    def end(self) -> None:
        """End the process, by force if it does not end by itself."""
        with contextlib.suppress(OSError):
            self.send(HostCall(END))
        try:
            self._process.wait(_PATIENCE_S)
        except BaseException as error:
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            self._connection.close()
            os.close(self._log)
