"""Emulated NPUs on threads of this process: one for each chip that clients share, one for each private device."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.device.config import DeviceConfig

if TYPE_CHECKING:
    from openhtp.device.thread_host import ThreadHost

_lock = threading.Lock()
# By chip: those that clients of this process share, and how many of them there are.
_shared: dict[str, ThreadHost] = {}
_clients: dict[ThreadHost, int] = {}


class NpuLease:
    """A client's part in an NPU of this process. The NPU ends with the last of them."""

    def __init__(self, config: DeviceConfig, *, shared: bool) -> None:
        with _lock:
            self.host = _join(config) if shared else _begin(config)
            _clients[self.host] += 1
        self._given_back = False

    def connect(self) -> socket.socket:
        """A control socket to the NPU."""
        return self.host.connect()

    def last_words(self) -> str:
        """A thread leaves none."""
        return ""

    def end(self) -> None:
        """The client has gone. Twice does nothing."""
        with _lock:
            if self._given_back:
                return
            self._given_back = True
            _clients[self.host] -= 1
            last = not _clients[self.host]
            if last:
                del _clients[self.host]
                if _shared.get(self.host.config.soc) is self.host:
                    del _shared[self.host.config.soc]
        if last:
            self.host.stop()

    def leave_to_parent(self) -> None:
        """In the child of a fork the NPU is the parent's."""
        self._given_back = True


def _begin(config: DeviceConfig, *, shared: bool = False) -> ThreadHost:
    from openhtp.device.thread_host import ThreadHost  # a device's parts are loaded where a device is

    host = ThreadHost(config, shared=shared)
    _clients[host] = 0
    return host


def _join(config: DeviceConfig) -> ThreadHost:
    host = _shared.get(config.soc)
    if host is None:
        host = _shared[config.soc] = _begin(config, shared=True)
    elif host.config != config:
        raise InvalidArgument(
            f"the {config.soc} that this process shares has other settings ({host.config}, not {config});"
            " use the same ones, or npu='private'",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    return host


def leave_to_parent() -> None:
    """In the child of a fork: none of the threads is there, so devices begin anew."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    for host in list(_clients):
        host.leave_to_parent()
    _shared.clear()
    _clients.clear()
