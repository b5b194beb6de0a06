"""Contexts made with functions of the client's: several side by side, or one whose weights the client keeps."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from typing import Any

from openhtp.abi import memory
from openhtp.abi.numbers import VERSION_1
from openhtp.abi.structs import struct
from openhtp.capi import configs, handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.client_memory import ClientBinary
from openhtp.capi.context import ContextHeld, create_from_binary, is_kept, parents
from openhtp.capi.device import DeviceHeld
from openhtp.capi.entries import answers, null
from openhtp.capi.graph import GraphHeld
from openhtp.capi.signals import signal_at
from openhtp.core import status as st
from openhtp.core.enumerations import NotifyType
from openhtp.core.errors import Aborted, InvalidArgument, QnnError, TimedOut
from openhtp.core.latches import Latch
from openhtp.options import CONTEXT
from openhtp.runtime.binaries.data_provider import DataRequest, DmaBufferCallback, DmaData
from openhtp.runtime.calls.long_call import OF_CONTEXT, CallStop, carrying
from openhtp.runtime.calls.notify import Notifier
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.graph import Graph

log = logging.getLogger("openhtp.capi")

_RAW, _DMA = 1, 2
_CODE = 0xFFFF
_PROVIDE = ctypes.CFUNCTYPE(ctypes.c_uint64, struct("DataRequest"), ctypes.c_void_p, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(ctypes.c_uint64, struct("DmaDataMem"), ctypes.c_void_p)
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
    """One context of a list, and the function to notify."""

    binary: ClientBinary
    options: dict[str, Any]
    notify: int
    param: int
    made: ContextHeld | None = None


def _listed_context(address: int, shared: dict[str, Any]) -> _ListedContext:
    params = memory.structure(struct("ContextParams"), address, "a context of the list")
    if params.version != VERSION_1:
        raise InvalidArgument(f"a context of the list has version {params.version}; expected 1")
    if params.notify:
        memory.check_code(params.notify, "the notify function")
    options = configs.read(CONTEXT, params.config or 0)
    binary = ClientBinary(params.binary or 0, params.size, is_kept=is_kept({**shared, **options}))
    return _ListedContext(binary, options, params.notify or 0, params.notify_param or 0)


@answers("contextCreateFromBinaryListAsync")
def context_create_from_binary_list_async(
    backend: int, device: int, params: int, config: int, signal: int
) -> None:
    """Make a context from each binary, side by side; the client is notified of each graph and each context.

    All notifications have been made when this returns: clients use the handles, and free the binaries, right
    after the call. Only a callback that makes this call is notified later, as its own return comes first.
    """
    of, on = parents(backend, device)
    shared = configs.read(CONTEXT, config)
    carried = signal_at(signal)
    wanted = [_listed_context(number, shared) for number in memory.pointers(params, "the list of contexts")]
    if not wanted:
        raise null("the list of contexts")

    def notify(
        context: Context | None, graph: Graph | None, name: str | None, kind: NotifyType, number: Any, status: int
    ) -> None:
        _notify_client((of, on), wanted[number], context, graph, name, kind, status)

    def create(_: object, stop: CallStop | None) -> None:
        made_device = on.device_unless(stop)
        creation = made_device.create_contexts_from_binaries(
            [one.binary for one in wanted],
            notify=notify,
            signal=stop,
            configs=[one.options for one in wanted],  # type: ignore[misc]
            **shared,
        )
        creation.exception()
        _tell_failures(creation.errors)
        _await_notifications(made_device.backend.notifier)

    # As for one binary, the signal counts from here on.
    carrying(None, carried, "creating contexts from a list of binaries", OF_CONTEXT, create)


def _tell_failures(errors: list[QnnError | None]) -> None:
    """Say in the log why contexts could not be made: their notifications have only a code."""
    for number, error in enumerate(errors, 1):
        if error is not None and not isinstance(error, (Aborted, TimedOut)):
            what = f"context {number} of {len(errors)} in the list"
            log.error("%s: %s (%s, %d)", what, error.message, error.status.name, error.code)


def _await_notifications(notifier: Notifier) -> None:
    """Wait for the notifications posted so far; a callback cannot, as it runs on the thread that delivers them."""
    if not notifier.is_this_thread():
        all_made = Latch()
        notifier.post(all_made.unlock)
        all_made.wait()


def _notify_client(
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


class _ProviderFunctions:
    """The two functions of a client, and the descriptions of the buffers that the client provided."""

    def __init__(self, callback: Any) -> None:
        self._provide, self._release = _PROVIDE(callback.provide), _RELEASE(callback.release)
        self._param = callback.param
        self._told: dict[int, tuple[int | None, int]] = {}

    def provide(self, request: DataRequest, _: object) -> DmaData:
        """Ask for a piece of the binary."""
        wanted = struct("DataRequest")(request.offset, request.size, int(request.is_backend_mapping_needed))
        answer = struct("DmaDataResponse")()
        code = self._provide(wanted, ctypes.addressof(answer), self._param)
        if code:
            raise QnnError(
                f"the client answered {code} to a request for {request.size} bytes at byte {request.offset}",
                _status(code & _CODE),
            )
        self._told[answer.dma.fd] = answer.dma.data, answer.aligned_size
        return DmaData(answer.dma.fd, answer.start, answer.aligned_size or None)

    def release(self, data: DmaData, _: object) -> None:
        """Give a buffer back."""
        address, size = self._told.pop(data.fd, (None, 0))
        mem = struct("DmaDataMem")(size=size)
        mem.dma.fd, mem.dma.data = data.fd, address
        code = self._release(mem, self._param)
        if code:
            log.warning("the client answered %d when descriptor %d was given back", code, data.fd)


def _status(code: int) -> st.Status:
    known = (status for status in st.ALL.values() if status.code == code)
    return next(known, st.QNN_CONTEXT_ERROR_CREATE_FROM_BINARY)


def _callback(address: int) -> DmaBufferCallback:
    if not address:
        raise null("the callback")
    callback = memory.structure(struct("BinaryCallback"), address, "the callback")
    if callback.kind == _RAW:
        raise QnnError(
            f"a callback with raw buffers ({_RAW}); expected dma buffers ({_DMA})",
            st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
        )
    if callback.kind != _DMA or callback.version != VERSION_1:
        raise InvalidArgument(
            f"a callback of type {callback.kind} and version {callback.version}; expected dma buffers ({_DMA}) and"
            " version 1"
        )
    for function, what in ((callback.provide, "dataProvide"), (callback.release, "dataRelease")):
        if not function:
            raise null(what)
        memory.check_code(function, what)
    client = _ProviderFunctions(callback)
    return DmaBufferCallback(client.provide, client.release)


@answers("contextCreateFromBinaryWithCallback")
def context_create_from_binary_with_callback(
    backend: int,
    device: int,
    config: int,
    callback: int,
    binary: int,
    size: int,
    out: int,
    profile: int,
    signal: int,
) -> None:
    """Restore a context, with weights from the client's own buffers."""
    handles.require_place(out, "context")
    asked = _callback(callback)
    handles.give(out, create_from_binary(backend, device, config, binary, size, profile, signal, callback=asked))
