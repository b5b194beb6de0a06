"""Contexts: made empty or from a binary, asked for their properties, saved whole or in pieces, freed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import configs, handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.client_memory import ClientBinary, ClientMemory, check_extent
from openhtp.capi.device import DeviceHeld, default_device
from openhtp.capi.entries import answers, null
from openhtp.capi.handles import HandleEntry
from openhtp.capi.profile import profile_at
from openhtp.capi.signals import signal_at
from openhtp.core import status as st
from openhtp.core.errors import BadBinary, InvalidArgument, QnnError
from openhtp.core.option_numbers import CUSTOM, HtpContextProperty
from openhtp.core.units import MIB
from openhtp.hw.catalog import find_soc
from openhtp.memory.needs import ContextNeeds, needs_of
from openhtp.options import CONTEXT, ContextOrigin
from openhtp.program.binary import ContextBinary, open_binary, read_binary
from openhtp.program.container import PAGE
from openhtp.program.sources import BinarySource
from openhtp.runtime.binaries.data_provider import DmaBufferCallback
from openhtp.runtime.binaries.opening import validate
from openhtp.runtime.calls.long_call import OF_CONTEXT, CallStop, carrying
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.profile import Profile

_PIECE_BYTES = 16 << 20
_VALUE = struct("HtpContextProperty").value.offset
_ANSWERS: dict[int, Callable[[ContextNeeds], int]] = {
    HtpContextProperty.BUFFER_START_ALIGNMENT: lambda needs: PAGE,
    HtpContextProperty.MAX_SPILLFILL_BUFFER_SIZE: lambda needs: needs.largest_spill_fill,
    HtpContextProperty.WEIGHTS_BUFFER_SIZE: lambda needs: needs.weights_bytes,
}


class Increments:
    """A binary in pieces, for clients without room for all of it: the next piece, and those not given back."""

    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self._start = ctypes.cast(ctypes.c_char_p(blob), ctypes.c_void_p).value or 0
        self._next = 0
        self._out: dict[int, int] = {}

    def take(self) -> tuple[int, int, int]:
        """Address, offset and size of the next piece.

        The size is 0 at the end, after which the pieces begin anew.
        """
        offset = self._next
        size = min(_PIECE_BYTES, len(self._blob) - offset)
        if not size:
            self._next = 0
            return 0, offset, 0
        self._next += size
        self._out[offset] = self._start + offset
        return self._out[offset], offset, size

    def give_back(self, address: int, offset: int) -> None:
        """Take back a piece that the client no longer reads."""
        if self._out.get(offset) != address:
            raise InvalidArgument(
                f"{address:#x} is no piece from byte {offset} that was given out, or was released",
                st.QNN_CONTEXT_ERROR_INCREMENT_INVALID_BUFFER,
            )
        del self._out[offset]

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way."""
        return not self._next and not self._out


class ContextHeld(HandleEntry):
    """A context."""

    word, invalid = "context", st.QNN_CONTEXT_ERROR_INVALID_HANDLE

    def __init__(
        self, backend: BackendHeld, device: DeviceHeld, context: Context, options: dict[str, Any]
    ) -> None:
        super().__init__(device)
        self.backend = backend
        self.device = device
        self.context = context
        self.options = options
        # The binary that it was made from or saved as, until something in it changes.
        self.binary: bytes | BinarySource | None = None
        # The binary's pieces, for a client that takes it in pieces.
        self.increments: Increments | None = None
        # Registered memory by the file that its descriptor stands for.
        self.areas: dict[tuple[int, int], Any] = {}
        device.contexts += 1
        backend.contexts.add(self)

    def saved(self) -> bytes:
        """The context as bytes, the same until a graph is added.

        The binary it was made from is not kept as bytes.
        """
        if self.binary is None:
            self.binary = self.context.get_binary()
        return self.binary if isinstance(self.binary, bytes) else bytes(self.binary.read(0, self.binary.nbytes))

    def saved_bytes(self) -> int:
        """The number of bytes of the saved context."""
        return self.binary.nbytes if isinstance(self.binary, BinarySource) else len(self.saved())

    def opened(self) -> ContextBinary:
        """The saved context, opened without a copy of all of it."""
        return open_binary(self.binary) if isinstance(self.binary, BinarySource) else read_binary(self.saved())

    def free(self, profile: Profile | None = None) -> None:
        """Free the context and all handles of it."""
        handles.remove(self)
        self.backend.contexts.discard(self)
        self.device.contexts -= 1
        self.context.free(profile=profile)


def parents(backend: int, device: int) -> tuple[BackendHeld, DeviceHeld]:
    """The backend, and the named device; the backend's own if none is named."""
    owner = handles.find(BackendHeld, backend)
    chosen = handles.find(DeviceHeld, device) if device else default_device(owner)
    chosen.take_packages(owner.backend.op_packages.listed())
    return owner, chosen


@answers("contextCreate")
def context_create(backend: int, device: int, config: int, out: int) -> None:
    """An empty context."""
    of, on = parents(backend, device)
    handles.require_place(out, "context")
    options = configs.read(CONTEXT, config)
    created = on.device().create_context(**options)
    handles.give(out, ContextHeld(of, on, created, options))


@answers("contextSetConfig")
def context_set_config(context: int, config: int) -> None:
    """Change the priority, or whether the end reports the device's memory; nothing else can be changed later."""
    entry = handles.find(ContextHeld, context)
    if not config:
        raise null("the context's configuration")
    options = configs.read_changes(CONTEXT, config)
    entry.context.set_config(**options)
    entry.options |= options


@answers("contextGetBinarySize")
def context_get_binary_size(context: int, out: int) -> None:
    """Bytes that the saved context takes."""
    entry = handles.find(ContextHeld, context)
    handles.require_place(out, "size")
    memory.write_number(out, entry.saved_bytes())


@answers("contextGetBinary")
def context_get_binary(context: int, buffer: int, size: int, written: int) -> None:
    """Save into a buffer, which must be large enough."""
    entry = handles.find(ContextHeld, context)
    handles.require_place(written, "written size")
    if not buffer:
        raise null("the buffer")
    blob = entry.saved()
    if size < len(blob):
        raise InvalidArgument(
            f"a buffer of {size} bytes for a binary of {len(blob)}", st.QNN_CONTEXT_ERROR_GET_BINARY_FAILED
        )
    memory.write(buffer, blob, "the buffer")
    memory.write_number(written, len(blob))


def binary_at(address: int, size: int) -> bytes:
    """A copy of a binary, wherever it starts."""
    check_extent(address, size, "the binary")
    return memory.read(address, size, "the binary")


def create_from_binary(
    backend: int,
    device: int,
    config: int,
    binary: int,
    size: int,
    profile: int,
    signal: int = 0,
    callback: DmaBufferCallback | None = None,
) -> ContextHeld:
    """A context with the graphs of a binary; it has no handle yet."""
    of, on = parents(backend, device)
    options = configs.read(CONTEXT, config, ContextOrigin.BINARY)
    client_binary = ClientBinary(binary, size, is_kept=is_kept(options))
    filled, until = profile_at(profile), signal_at(signal)

    def create(_: object, stop: CallStop | None) -> Context:
        return on.device_unless(stop).create_context_from_binary(
            client_binary,
            signal=stop,
            profile=filled,
            callback=callback,
            **options,
        )

    # The signal counts from here on, so it also covers making the device, which may be the longest part.
    what = "creating a context from a binary"
    created = carrying(None, until, what, OF_CONTEXT, create)
    entry = ContextHeld(of, on, created, options)
    entry.binary = client_binary.source
    return entry


def is_kept(options: dict[str, Any]) -> bool:
    """Whether the client promised that the binary stays as it is, to switch graphs or to save memory."""
    return bool(options.get("is_persistent_binary") or options.get("file_read_memory_budget_in_mb"))


@answers("contextCreateFromBinary")
def context_create_from_binary(
    backend: int, device: int, config: int, binary: int, size: int, out: int, profile: int
) -> None:
    """Restore a context."""
    handles.require_place(out, "context")
    handles.give(out, create_from_binary(backend, device, config, binary, size, profile))


@answers("contextCreateFromBinaryWithSignal")
def context_create_from_binary_with_signal(
    backend: int, device: int, config: int, binary: int, size: int, out: int, profile: int, signal: int
) -> None:
    """Restore a context, unless the signal ends it early."""
    handles.require_place(out, "context")
    handles.give(out, create_from_binary(backend, device, config, binary, size, profile, signal))


@answers("contextValidateBinary")
def context_validate_binary(backend: int, device: int, config: int, binary: int, size: int) -> None:
    """Whether a binary could be restored and, in the strict mode, would run at its best here."""
    _, on = parents(backend, device)
    chosen = CONTEXT.read(configs.read(CONTEXT, config, ContextOrigin.BINARY))
    opened = open_binary(ClientMemory(binary, size, "the binary"))
    try:
        validate(opened, find_soc(on.soc), "", chosen.compatibility, data_too=True)
    except BadBinary as error:
        error.status = st.QNN_CONTEXT_ERROR_CREATE_FROM_BINARY
        raise


@answers("contextFinalize")
def context_finalize(context: int, profile: int) -> None:
    """Finalize all graphs that are not yet."""
    entry = handles.find(ContextHeld, context)
    entry.context.finalize(profile=profile_at(profile))


@answers("contextFree")
def context_free(context: int, profile: int) -> None:
    """Free the context, its graphs and memory."""
    entry = handles.find(ContextHeld, context)
    entry.free(profile_at(profile))


@answers("contextGetProperty")
def context_get_property(context: int, properties: int) -> None:
    """Fill in the properties that are asked for, all or none. Graphs must be finalized."""
    entry = handles.find(ContextHeld, context)
    wanted: list[tuple[int, int]] = []
    for address in memory.pointers(properties, "the properties"):
        config = memory.structure(struct("Config"), address, "a property")
        if config.option != CUSTOM:
            raise _unknown(f"property {config.option}")
        custom = memory.structure(struct("HtpContextProperty"), config.of.custom or 0, "a property of the HTP's")
        if custom.option not in _ANSWERS:
            raise _unknown(f"HTP property {custom.option}")
        handles.require_place(config.of.custom + _VALUE, "a property's value")
        wanted.append((config.of.custom + _VALUE, custom.option))
    if not wanted:
        raise null("the list of properties")
    binary = entry.opened()
    stored = [(binary.packed(name), binary.data_of(name)) for name in binary.graph_names]
    needs = needs_of(stored, largest_backup=binary.info.vtcm_mb * MIB)
    for address, option in wanted:
        memory.write_number(address, _ANSWERS[option](needs))


def _unknown(what: str) -> QnnError:
    known = ", ".join(f"{one.name.lower()} ({int(one)})" for one in HtpContextProperty)
    return QnnError(
        f"{what} of a context is unknown; expected one of the HTP's: {known}",
        st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
    )


@answers("contextGetIncrementalBinary")
def context_get_incremental_binary(context: int, buffer: int, offset: int, size: int) -> None:
    """The next piece of the saved context; a piece of no bytes is the end."""
    entry = handles.find(ContextHeld, context)
    for address, what in ((buffer, "buffer"), (offset, "start offset"), (size, "written size")):
        handles.require_place(address, what)
    if entry.increments is None:
        entry.increments = Increments(entry.saved())
    for address, value in zip((buffer, offset, size), entry.increments.take(), strict=True):
        memory.write_number(address, value)
    _forget_if_over(entry)


@answers("contextReleaseIncrementalBinary")
def context_release_incremental_binary(context: int, buffer: int, offset: int) -> None:
    """Give a piece back."""
    entry = handles.find(ContextHeld, context)
    if entry.increments is None:
        raise InvalidArgument(
            "no piece of this context's binary was given out", st.QNN_CONTEXT_ERROR_INCREMENT_INVALID_BUFFER
        )
    entry.increments.give_back(buffer, offset)
    _forget_if_over(entry)


def _forget_if_over(entry: ContextHeld) -> None:
    if entry.increments is not None and entry.increments.is_over:
        entry.increments = None
