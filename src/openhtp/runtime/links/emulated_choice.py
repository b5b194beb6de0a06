"""Where an emulated NPU lives, decided once, when a device is made: in its own process, or on a thread of ours."""

from __future__ import annotations

import dataclasses
import os

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.options import OptionValues
from openhtp.options.device import TRANSPORTS
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.rpc_link import RpcLink
from openhtp.runtime.objects.device import Connect


def chosen_host(chosen: OptionValues) -> str:
    """``process`` or ``thread``, by either of the words for it."""
    by_transport = None if chosen.transport is None else TRANSPORTS[chosen.transport]
    if chosen.host and by_transport and chosen.host != by_transport:
        raise InvalidArgument(
            f"host={chosen.host!r} and transport={chosen.transport!r} contradict each other; give one of them",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    host: str = chosen.host or by_transport or "process"
    return host


def emulated_connect(options: DeviceOptions, chosen: OptionValues) -> Connect:
    """How to reach the NPU that is wanted."""
    shared = chosen.npu == "shared"
    if chosen_host(chosen) == "process":
        # A name that only this process knows makes its devices clients of one process.
        reached = options
        if shared and options.name is None:
            name = f"npu-of-{os.getpid()}-{options.config.soc}"
            reached = dataclasses.replace(options, name=name, allow_faults=True)
        return lambda on_lost: RpcLink(reached, on_lost, shares_budget=shared)
    if options.name is not None:
        raise InvalidArgument(
            f"device {options.name!r} is shared with other processes, so its host is a process; leave out host",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    from openhtp.runtime.links.thread_link import ThreadLink  # with all that a device needs

    return lambda on_lost: ThreadLink(options, on_lost, shared=shared)
