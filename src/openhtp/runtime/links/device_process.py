"""The process of a device: how it is started and reached, what it wrote before it died, and how it ends."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from openhtp.core import interpreter, status as st
from openhtp.core.errors import ResourceError
from openhtp.device.config import DeviceConfig
from openhtp.device.op_packages import folders_of_modules
from openhtp.rpc import channel, rendezvous

# How many bytes of a dead device's output are shown.
_LAST_WORDS = 2000
# A device without clients ends by itself. After this time it is killed.
_PATIENCE_S = 5
# A dying process has ended this long after its sockets closed.
_MOMENT_S = 0.5
# How the C library is tuned (glibc; other libraries ignore it).
_TUNABLES, _LARGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
# Where libraries are searched, on this processor and on the DSP, and the separator of the folders.
_LIBRARY_PATHS = {"LD_LIBRARY_PATH": ":", "ADSP_LIBRARY_PATH": ";"}
# Where the systems of boards and phones have what the DSP loads.
_BOARD_FOLDERS = (
    "/usr/lib/rfsa/adsp",
    "/vendor/lib/rfsa/adsp",
    "/system/lib/rfsa/adsp",
    "/vendor/dsp/cdsp",
    "/dsp",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """How a device process is started; a named one that already runs keeps what it was started with."""

    config: DeviceConfig = field(default_factory=DeviceConfig)
    name: str | None = None
    keep: bool = False
    allow_faults: bool = False
    # Of this client's process domains on it.
    pd_session: Literal["unsigned", "signed"] = "unsigned"
    # Where packages are that its clients may use: a named device loads no others.
    op_packages: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise for values that no device process would start with."""
        self.config.check()
        if self.name is not None:
            rendezvous.socket_path(self.name)

    def arguments(self) -> list[str]:
        """Options of the device's command line."""
        words = ["--config", json.dumps(dataclasses.asdict(self.config))]
        if self.keep:
            words.append("--keep")
        if self.allow_faults:
            words.append("--allow-faults")
        if self.op_packages:
            words += ["--op-packages", json.dumps({"packages": self.op_packages, "folders": folders_of_modules()})]
        return words


class Serving(Protocol):
    """The server behind a link: a process, or a share in a thread of this process."""

    def last_words(self) -> str:
        """The server's output before it died."""

    def end(self) -> None:
        """The link has gone."""

    def leave_to_parent(self) -> None:
        """In the child of a fork: the server is the parent's."""


class DeviceProcess:
    """A device process that was started here, and its log."""

    def __init__(self, words: list[str], fd: int, environment: dict[str, str]) -> None:
        command = interpreter.command("-m", "openhtp.device", *words)
        # Several threads may ask for the last words while one closes the log.
        self._lock = threading.Lock()
        self._log: int | None = os.memfd_create("openhtp-device-log", os.MFD_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,  # the vendor's library prints as it pleases
                stderr=self._log,
                env=environment,
                pass_fds=(fd,),
                start_new_session=True,  # an interrupt typed at the client is not meant for the device
            )
        except OSError as error:
            self._close_log()
            raise ResourceError(
                f"cannot start the device process: {error}", st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL
            ) from error

    def last_words(self) -> str:
        """How the device died, and the end of its output."""
        with self._lock:
            if self._log is None:
                return ""
            size = os.fstat(self._log).st_size
            tail = os.pread(self._log, _LAST_WORDS, max(0, size - _LAST_WORDS))
            ended_by = self._ended_by()
        text = tail.decode(errors="replace").strip()
        return f"{ended_by}; it wrote: {text}" if text else ended_by

    def _ended_by(self) -> str:
        """The signal that ended the process, if any. Its sockets close a moment before that can be known."""
        try:
            code = self._process.wait(_MOMENT_S)
        except subprocess.TimeoutExpired:
            return ""
        return f", ended by {signal.Signals(-code).name}" if code < 0 else ""

    def end(self) -> None:
        """Wait for its end: it has nobody left to serve. (The starter of a named device ended long ago.)"""
        try:
            self._process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_log()

    def leave_to_parent(self) -> None:
        """In the child of a fork: the device is the parent's child, so this process must not wait for it."""
        self._process.returncode = 0
        self._lock = threading.Lock()

    def _close_log(self) -> None:
        with self._lock:
            if self._log is not None:
                os.close(self._log)
                self._log = None


def environment(library: str | None = None) -> dict[str, str]:
    """The environment of a device.

    Its allocator asks for large pages, as the system takes most of the time that filling fresh memory costs. The
    vendor's library finds its parts in its own folder, and the DSP its skeleton where the layout has it.
    """
    variables = interpreter.environment()
    chosen = [words for words in variables.get(_TUNABLES, "").split(":") if words]
    if not any(words.startswith(_LARGE_PAGES) for words in chosen):
        variables[_TUNABLES] = ":".join([*chosen, f"{_LARGE_PAGES}=1"])
    if library is not None:
        folders = {"LD_LIBRARY_PATH": [Path(library).parent], "ADSP_LIBRARY_PATH": dsp_folders(Path(library))}
        for name, separator in _LIBRARY_PATHS.items():
            variables[name] = separator.join(filter(None, (*map(str, folders[name]), variables.get(name))))
    return variables


def dsp_folders(library: Path) -> list[Path]:
    """Where the DSP finds its part: beside the library (wheel), in folders by architecture (SDK), on the board.

    The variable replaces what the DSP would search by itself, so that is named, too.
    """
    sdk = library.parent.parent.glob("hexagon-v*/unsigned")
    newest_last = sorted(sdk, key=lambda folder: (len(folder.parent.name), folder.parent.name))
    return [library.parent, *newest_last, *(Path(folder) for folder in _BOARD_FOLDERS if os.path.isdir(folder))]


def connect(options: DeviceOptions) -> tuple[socket.socket, DeviceProcess | None]:
    """A control socket to the wanted device, and its process if it had to be started."""
    name = options.name
    if name is None:
        ours, theirs = channel.socket_pair()
        with theirs:
            try:
                return ours, _start(options, ["--fd", str(theirs.fileno())], theirs.fileno())
            except BaseException:
                ours.close()
                raise
    process = None
    with rendezvous.locked():
        sock = rendezvous.connect(name)
        if sock is None:
            # The door is opened here and handed over, so there is no waiting for the device to be ready. This
            # client stands before it when the device begins, so a device whose starter dies sees that and ends.
            with rendezvous.listen(name) as listener:
                door = listener.fileno()
                try:
                    sock = rendezvous.connect(name)
                    process = _start(options, ["--name", name, "--listen-fd", str(door)], door)
                except BaseException:
                    if sock is not None:
                        sock.close()
                    rendezvous.socket_path(name).unlink(missing_ok=True)
                    raise
    if sock is None:
        raise ResourceError(f"device {name!r} cannot be reached", st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION)
    return sock, process


def _start(options: DeviceOptions, words: list[str], fd: int) -> DeviceProcess:
    return DeviceProcess([*words, *options.arguments()], fd, environment(options.config.library))
