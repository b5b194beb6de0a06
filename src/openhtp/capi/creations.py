"""Contexts from a list of binaries: made side by side, and told of one by one."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from openhtp.abi import memory
from openhtp.abi.numbers import VERSION_1
from openhtp.abi.structs import struct
from openhtp.capi import configs, handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.client_memory import ClientBinary
from openhtp.capi.context import ContextHeld, is_kept, parents
from openhtp.capi.device import DeviceHeld
from openhtp.capi.entries import answers, null
from openhtp.capi.graph import GraphHeld
from openhtp.capi.signals import SignalHeld
from openhtp.core.enumerations import NotifyType
from openhtp.core.errors import InvalidArgument
from openhtp.options import CONTEXT
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.graph import Graph

_TELL = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_uint64,
)


@dataclass(slots=True)
class _ListedContext:
    """One context of a list, and whom to tell of it."""

    binary: ClientBinary
    options: dict[str, Any]
    notify: int
    param: int
    made: ContextHeld | None = None


def _wanted(place: int, shared: dict[str, Any]) -> _ListedContext:
    given = memory.structure(struct("ContextParams"), place, "a context of the list")
    if given.version != VERSION_1:
        raise InvalidArgument(f"a context of the list has version {given.version}; expected 1")
    if given.notify:
        memory.check_code(given.notify, "the notify function")
    options = configs.read(CONTEXT, given.config or 0)
    binary = ClientBinary(given.binary or 0, given.size, is_kept=is_kept({**shared, **options}))
    return _ListedContext(binary, options, given.notify or 0, given.notify_param or 0)


@answers("contextCreateFromBinaryListAsync")
def context_create_from_binary_list_async(
    backend: int, device: int, params: int, config: int, signal: int
) -> None:
    """Begin to make a context from each binary; each graph and each context is told of."""
    of, on = parents(backend, device)
    shared = configs.read(CONTEXT, config)
    cut = handles.find_or_none(SignalHeld, signal)
    wanted = [_wanted(place, shared) for place in memory.pointers(params, "the list of contexts")]
    if not wanted:
        raise null("the list of contexts")
    for one in wanted:
        one.binary.take()

    def notify(
        context: Context | None, graph: Graph | None, name: str | None, kind: NotifyType, place: Any, status: int
    ) -> None:
        _tell((of, on), wanted[place], context, graph, name, kind, status)

    on.device().create_contexts_from_binaries(
        [one.binary for one in wanted],
        notify=notify,
        signal=None if cut is None else cut.signal,
        configs=[one.options for one in wanted],  # type: ignore[misc]
        **shared,
    )


def _tell(
    made_with: tuple[BackendHeld, DeviceHeld],
    one: _ListedContext,
    context: Context | None,
    graph: Graph | None,
    name: str | None,
    kind: NotifyType,
    status: int,
) -> None:
    if context is not None and one.made is None:
        one.made = ContextHeld(*made_with, context, one.options)
        one.made.binary = one.binary.source
        handles.add(one.made)
    shown = None
    if graph is not None and one.made is not None:
        shown = handles.add(GraphHeld(one.made, graph))
    if one.notify:
        _TELL(one.notify)(
            None if one.made is None else one.made.handle,
            shown,
            None if name is None else name.encode(),
            int(kind),
            one.param,
            status,
        )
