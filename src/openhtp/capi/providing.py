"""Contexts whose weights the client keeps in buffers of its own: asked for and given back by callbacks."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

from openhtp.abi import memory
from openhtp.abi.numbers import VERSION_1
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.context import create_from_binary
from openhtp.capi.entries import answers, null
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.runtime.binaries.data_provider import DataRequest, DmaBufferCallback, DmaData

log = logging.getLogger("openhtp.capi")

_RAW, _DMA = 1, 2
_CODE = 0xFFFF
_PROVIDE = ctypes.CFUNCTYPE(ctypes.c_uint64, struct("DataRequest"), ctypes.c_void_p, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(ctypes.c_uint64, struct("DmaDataMem"), ctypes.c_void_p)


class _ProviderFunctions:
    """The two functions of a client, and what it told of the buffers that it provided."""

    def __init__(self, given: Any) -> None:
        self._provide, self._release = _PROVIDE(given.provide), _RELEASE(given.release)
        self._param = given.param
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
    given = memory.structure(struct("BinaryCallback"), address, "the callback")
    if given.kind == _RAW:
        raise QnnError(
            f"a callback with raw buffers ({_RAW}); expected dma buffers ({_DMA})",
            st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
        )
    if given.kind != _DMA or given.version != VERSION_1:
        raise InvalidArgument(
            f"a callback of type {given.kind} and version {given.version}; expected dma buffers ({_DMA}) and"
            " version 1"
        )
    for function, what in ((given.provide, "dataProvide"), (given.release, "dataRelease")):
        if not function:
            raise null(what)
        memory.check_code(function, what)
    client = _ProviderFunctions(given)
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
