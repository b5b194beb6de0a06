"""A dialog with Genie, on our library or on the vendor's, from a program in Python."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from openhtp.capi.device import NAME_VARIABLE, SOC_VARIABLE, TRANSPORT_VARIABLE
from openhtp.core import interpreter, tidying
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import DeviceLost, InvalidArgument, QnnError, WrongState
from openhtp.core.files import Descriptor, write_file
from openhtp.core.latches import Latch
from openhtp.core.threads import Errands, OwnThread, finish
from openhtp.genie.calls import LogDepth
from openhtp.genie.dialog import Answer
from openhtp.genie.libraries import linked_folder, require_genie
from openhtp.genie.messages import END, STOP, HostCall, HostOpening, HostWord, error_from
from openhtp.genie.settings import GenieBundle
from openhtp.runtime.instruments.device_queries import library_binary
from openhtp.runtime.objects.backend import FAULTS_VARIABLE, Backend

log = logging.getLogger("openhtp.genie")

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}
HostWords = queue.SimpleQueue[HostWord | None]
"""What the process says to one call. None: it has ended."""

_WORDS = msgspec.msgpack.Decoder(HostWord)
# A process that is asked to end frees a dialog and its contexts first.
_PATIENCE_S = 60.0
_LAST_WORDS = 2000
# Before a line that Genie prints; the checker of configurations has none.
_TAG = re.compile(r"^\[([A-Z]+)\]\s*")
_LINES_SHOWN = 3
# The last words of a Genie that leaves a query by an error while its own threads still wait for executions.
_THREADS_LEFT = "terminate called without an active exception"
_UNDER_WAY = (inspect.GEN_RUNNING, inspect.GEN_SUSPENDED)
# The first answer also includes work that a process does only once.
_TIMES = 3


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
        # An answer that is dropped before its end is stopped, so no reference to it is kept here.
        self._answering: Callable[[], Generator[str] | None] = lambda: None
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
        tidying.start()
        with contextlib.ExitStack() as stack:
            if vendor:
                settings = stack.enter_context(_compiled_by_vendor(settings, chip))
            else:
                genie = stack.enter_context(linked_folder(genie)) / genie.name
            opening = HostOpening(
                library=str(genie),
                config=settings.config(asynchronous=asynchronous),
                depth=depth or LogDepth.ERROR,
                profiled=profiled,
                soc=chip,
                trace=None if trace is None else str(Path(trace).absolute()),
                scenario=None if neighbour is None else str(Path(neighbour).absolute()),
            )
            hear = _Hearing(self._heard, told=depth is not None)
            self._process = HostProcess.started(interpreter.environment() | variables, hear)
            try:
                self._result(self._process.begin(opening))
                self._end = weakref.finalize(self, tidying.post, (self._process.end, ()))
                self._end.atexit = False  # by then it ends with our end of the socket
                self._folders = stack.pop_all()
            except BaseException:
                tidying.post((self._process.end, ()))
                raise

    # Asking

    def query(self, prompt: str, *, tokens: int | None = None) -> Iterator[str]:
        """Ask, and get the answer piece by piece. The answer ends when the caller stops listening."""
        if not isinstance(prompt, str) or not prompt:
            raise InvalidArgument(f"prompt is {shown(prompt)}; expected a text")
        if self._is_busy:
            raise WrongState("a query is being answered already; read it to its end first")
        if tokens is not None and (whole_number(tokens) is None or tokens < 1):
            raise InvalidArgument(f"tokens is {shown(tokens)}; expected a number of tokens, at least 1")
        pieces = self._pieces(prompt, tokens)
        self._answering = weakref.ref(pieces)
        return pieces

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

    @property
    def _is_busy(self) -> bool:
        """Whether somebody reads an answer; one that an exception ended is at its end."""
        pieces = self._answering()
        return pieces is not None and inspect.getgeneratorstate(pieces) in _UNDER_WAY

    def _pieces(self, prompt: str, tokens: int | None) -> Generator[str]:
        """Nothing is asked before somebody reads."""
        self._answer = None
        if tokens is not None:
            self._result(self._process.call("limit", tokens))
        words = self._process.call("query", prompt)
        ended = False
        try:
            while not ended:
                word = self._next(words)
                ended = word.is_last
                if word.error is not None:
                    raise self._process.explained(error_from(word.error))
                self._answer = word.answer
                if word.piece:
                    yield word.piece
        finally:
            if not ended:  # the listener has gone, or was interrupted
                self._process.stop()

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
        """Genie's measurements of its own calls; the chat must be ``profiled``."""
        return self._ask("profile").content or {}

    def close(self) -> None:
        """End the dialog and its process. A trace is written by then."""
        self._process.end()
        self._end.detach()
        self._folders.close()

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
        if self._is_busy:
            raise WrongState(f"{method} while a query is being answered; read the answer to its end first")
        return self._result(self._process.call(method, *arguments))

    def _result(self, words: HostWords) -> HostWord:
        """The result of a call."""
        try:
            while not (word := self._next(words)).is_last:
                pass
        except BaseException:
            self._process.stop()  # it may be computing a query by tokens, whose caller has gone
            raise
        if word.error is not None:
            raise self._process.explained(error_from(word.error))
        return word

    def _next(self, words: HostWords) -> HostWord:
        word = words.get()
        if word is None:
            raise self._lost()
        return word

    def _lost(self) -> DeviceLost:
        heard = "; ".join(dict.fromkeys(self._heard))
        words = self._process.last_words() + (f"; its log says: {heard}" if heard else "")
        return DeviceLost(f"the process that Genie runs in has ended{words}; begin another chat to go on")


class _Hearing:
    """Takes the lines of Genie's log, on the thread that reads them."""

    def __init__(self, errors: deque[str], *, told: bool) -> None:
        self._errors = errors
        self._told = told

    def __call__(self, level: int, line: str) -> None:
        if level == LogDepth.ERROR:
            self._errors.append(line)
        if self._told:
            log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


def _check_place(host: str, vendor: bool, emulated: Sequence[str]) -> None:
    """Whether Genie can run there, with what only an emulated NPU has."""
    if host not in ("thread", "process"):
        raise InvalidArgument(f"host is {shown(host)}; expected thread or process")
    if vendor and emulated:
        raise InvalidArgument(f"vendor with {', '.join(emulated)}; the vendor's library has no such thing")


class HostProcess:
    """The process, the socket to it, and what it and its libraries print. ``started`` makes one.

    A thread of ours reads its words and sorts them by the calls that they belong to. So an interrupted caller
    leaves neither half a message behind nor an answer that the next call would take for its own.
    """

    @classmethod
    def started(cls, environment: dict[str, str], hear: Callable[[int, str], object]) -> HostProcess:
        """Start it; ``hear`` is given the lines of its log, with their levels, on a thread of ours."""
        return finish(
            functools.partial(cls, environment, hear), name="openhtp-genie-start", discard=HostProcess.end
        )

    def __init__(self, environment: dict[str, str], hear: Callable[[int, str], object]) -> None:
        self._hear = hear
        self._numbers = itertools.count()
        self._answers: dict[int, HostWords] = {}
        self._has_ended = Latch()
        self._sending = Errands("openhtp-genie-calls")
        self._log = Descriptor(os.memfd_create, "openhtp-genie-log", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                interpreter.command("-m", "openhtp.genie.host", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=self._log.number,
                stderr=self._log.number,
                env={name: value for name, value in environment.items() if value},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt typed at the caller is not meant for Genie
            )
        self._connection = Connection(ours.detach())
        self._reader = OwnThread(self._read, name="openhtp-genie-words")
        self._reader.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    # Calls and words

    def begin(self, opening: HostOpening) -> HostWords:
        """Have it load what a chat needs; the first call."""
        return self._ask(lambda number: opening)

    def call(self, method: str, *arguments: object) -> HostWords:
        """Have it call a method of the dialog, after the calls before it."""
        return self._ask(lambda number: HostCall(method, list(arguments), number))

    def stop(self) -> None:
        """Have it end the query that runs, if one does."""
        self._send(HostCall(STOP))

    def _ask(self, message_of: Callable[[int], HostOpening | HostCall]) -> HostWords:
        number = next(self._numbers)
        words = self._answers[number] = HostWords()
        self._send(message_of(number))
        if self._has_ended.is_open:  # perhaps before this call reached it
            words.put(None)
        return words

    def _send(self, message: HostOpening | HostCall) -> None:
        self._sending.post(functools.partial(self._write, msgspec.msgpack.encode(message)))

    def _write(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the reading thread sees
            self._connection.send_bytes(message)

    def _read(self) -> None:
        try:
            while True:
                word = _WORDS.decode(self._connection.recv_bytes())
                if word.line is not None:
                    self._hear(*word.line)
                    continue
                queue_of = self._answers.pop if word.is_last else self._answers.get
                words = queue_of(word.number, None)
                if words is not None:
                    words.put(word)
        except (EOFError, OSError):
            return
        finally:
            self._has_ended.unlock()
            for words in list(self._answers.values()):
                words.put(None)

    # Its end

    def explained(self, error: QnnError) -> QnnError:
        """The error with what Genie printed of it: not all of its lines go to its log."""
        reasons = [line for line in map(_reason, self._printed().splitlines()) if line]
        news = [line for line in dict.fromkeys(reasons[-_LINES_SHOWN:]) if line not in error.message]
        return type(error)("; ".join([error.message, *news]), error.status)

    def _printed(self) -> str:
        fd = self._log.number
        if fd < 0:
            return ""
        size = os.fstat(fd).st_size
        return os.pread(fd, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode(errors="replace")

    def last_words(self) -> str:
        """How the process ended, and the end of what it printed."""
        code = finish(functools.partial(self._process.wait, _PATIENCE_S), name="openhtp-genie-wait")
        text = "; ".join(line for line in map(_reason, self._printed().splitlines()) if line)
        by = f", by {signal.Signals(-code).name}" if code < 0 else f", with status {code}"
        if _THREADS_LEFT in text:
            by = f"{by}: an execution that Genie had queued failed, most likely because the device was lost"
        return f"{by}; it wrote: {text}" if text else by

    def end(self) -> None:
        """End the process, by force if it does not end by itself. Again does nothing."""
        finish(self._end, name="openhtp-genie-end")

    def _end(self) -> None:
        self._send(HostCall(END))
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._connection.close()
        self._log.close()


def _reason(line: str) -> str:
    """The error in a printed line; empty if there is none. The last clause is the cause of those before it."""
    tag = _TAG.match(line)
    if tag is not None:
        return line[tag.end() :].strip().strip('"') if tag[1] == "ERROR" else ""
    return "" if line.endswith(":") else line.rpartition(" - ")[2].strip()


@contextlib.contextmanager
def _compiled_by_vendor(bundle: GenieBundle, soc: str) -> Iterator[GenieBundle]:
    """The bundle with binaries that the vendor's library compiled; they are removed with the block.

    Graphs do not share weights in them: the vendor's simulator cannot load what it saved with sharing.
    """
    with TemporaryDirectory(prefix="openhtp-genie-vendor-") as folder:
        parts = []
        with Backend(library="vendor") as backend:
            device = backend.create_device(soc=soc)
            for path in bundle.parts:
                with device.create_context_from_binary(path) as context:
                    parts.append(Path(folder) / path.name)
                    write_file(parts[-1], library_binary(context))
        yield bundle.with_parts(parts)


class ComparedAnswer(msgspec.Struct, frozen=True):
    """Where a question was asked, and the quickest of its answers, which must all be the same."""

    where: str
    answer: Answer


def compare_settings(
    bundle: str | os.PathLike[str], prompt: str, tokens: int, *, vendor: bool, **options: Any
) -> list[ComparedAnswer]:
    """Ask everywhere, several times each on our library: neighbours on the machine disturb single runs."""
    settings: list[tuple[str, dict[str, Any]]] = [("ours", {}), ("ours, asynchronous", {"asynchronous": True})]
    if vendor:
        settings.append(("the vendor's simulator", {"vendor": True}))
    rows = []
    for where, chosen in settings:
        with Chat(bundle, **options, **chosen) as chat:
            answers = []
            for _ in range(1 if "vendor" in chosen else _TIMES):
                answers.append(chat.ask(prompt, tokens=tokens))
                chat.reset()
        odd = next((answer for answer in answers if answer.text != answers[0].text), None)
        rows.append(ComparedAnswer(where, odd or max(answers, key=lambda answer: answer.pieces_per_s)))
    return rows
