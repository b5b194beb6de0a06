"""Contexts: made empty or from a binary, saved, freed."""

from __future__ import annotations

from typing import Any

from openhtp.abi import memory
from openhtp.capi import configs, handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.client_memory import ClientBinary, ClientMemory, check_extent
from openhtp.capi.device import DeviceHeld, default_device
from openhtp.capi.entries import answers, null
from openhtp.capi.handles import HandleEntry
from openhtp.capi.profile import ProfileHeld
from openhtp.capi.signals import SignalHeld
from openhtp.core import status as st
from openhtp.core.errors import BadBinary, InvalidArgument
from openhtp.hw.catalog import find_soc
from openhtp.options import CONTEXT, ContextOrigin
from openhtp.program.binary import ContextBinary, open_binary, read_binary
from openhtp.program.sources import BinarySource
from openhtp.runtime.binaries.data_provider import DmaBufferCallback
from openhtp.runtime.binaries.opening import validate
from openhtp.runtime.calls.long_call import OF_CONTEXT, Stop, carrying
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.profile import Profile


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
        # What it was made of, or saved as, as long as nothing of it was changed since.
        self.binary: bytes | BinarySource | None = None
        # The binary's pieces, for a client that takes it in pieces.
        self.increments: Any = None
        # Registered memory by what its descriptor stands for.
        self.areas: dict[tuple[int, int], Any] = {}
        device.contexts += 1
        backend.contexts.add(self)

    def saved(self) -> bytes:
        """The context as bytes; the same until a graph is added. What it was made of is not kept as bytes."""
        if self.binary is None:
            self.binary = self.context.get_binary()
        return self.binary if isinstance(self.binary, bytes) else bytes(self.binary.read(0, self.binary.nbytes))

    def saved_bytes(self) -> int:
        """How many bytes that is."""
        return self.binary.nbytes if isinstance(self.binary, BinarySource) else len(self.saved())

    def opened(self) -> ContextBinary:
        """The same, to be looked at without a copy of it all."""
        return open_binary(self.binary) if isinstance(self.binary, BinarySource) else read_binary(self.saved())

    def free(self, profile: Profile | None = None) -> None:
        """Free the context and all handles of it."""
        handles.remove(self)
        self.backend.contexts.discard(self)
        self.device.contexts -= 1
        self.context.free(profile=profile)


def parents(backend: int, device: int) -> tuple[BackendHeld, DeviceHeld]:
    """The backend, and the device that is meant; the backend's own for none."""
    held = handles.find(BackendHeld, backend)
    return held, handles.find(DeviceHeld, device) if device else default_device(held)


@answers("contextCreate")
def context_create(backend: int, device: int, config: int, out: int) -> None:
    """An empty context."""
    of, on = parents(backend, device)
    handles.require_place(out, "context")
    options = configs.read(CONTEXT, config)
    made = on.device().create_context(**options)
    handles.give(out, ContextHeld(of, on, made, options))


@answers("contextSetConfig")
def context_set_config(context: int, config: int) -> None:
    """The priority, and whether its end tells the device's memory; nothing else can be changed later."""
    held = handles.find(ContextHeld, context)
    options = configs.read_changes(CONTEXT, config)
    held.context.set_config(**options)
    held.options |= options


@answers("contextGetBinarySize")
def context_get_binary_size(context: int, out: int) -> None:
    """Bytes that the saved context takes."""
    held = handles.find(ContextHeld, context)
    handles.require_place(out, "size")
    memory.write_number(out, held.saved_bytes())


@answers("contextGetBinary")
def context_get_binary(context: int, buffer: int, size: int, written: int) -> None:
    """Save into a buffer, which must be large enough."""
    held = handles.find(ContextHeld, context)
    handles.require_place(written, "written size")
    if not buffer:
        raise null("the buffer")
    blob = held.saved()
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
    """A context with the graphs of a binary; without a handle so far."""
    of, on = parents(backend, device)
    options = configs.read(CONTEXT, config, ContextOrigin.BINARY)
    given = ClientBinary(binary, size, is_kept=is_kept(options))
    sheet = handles.find_or_none(ProfileHeld, profile)
    cut = handles.find_or_none(SignalHeld, signal)

    def create(_: object, stop: Stop | None) -> Context:
        return on.device().create_context_from_binary(
            given,
            signal=stop,
            profile=None if sheet is None else sheet.profile,
            callback=callback,
            **options,
        )

    # The signal counts from here on: also while the device is made, which may be the longest part.
    what = "creating a context from a binary"
    made = carrying(None, None if cut is None else cut.signal, what, OF_CONTEXT, create)
    held = ContextHeld(of, on, made, options)
    held.binary = given.source
    return held


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
    """Whether a binary could be restored; in the strict mode, whether it is at its best here, too."""
    _, on = parents(backend, device)
    chosen = CONTEXT.read(configs.read(CONTEXT, config, ContextOrigin.BINARY))
    found = open_binary(ClientMemory(binary, size, "the binary"))
    try:
        validate(found, find_soc(on.soc), "", chosen.compatibility, data_too=True)
    except BadBinary as error:
        error.status = st.QNN_CONTEXT_ERROR_CREATE_FROM_BINARY
        raise


@answers("contextFinalize")
def context_finalize(context: int, profile: int) -> None:
    """Finalize all graphs that are not yet."""
    held = handles.find(ContextHeld, context)
    sheet = handles.find_or_none(ProfileHeld, profile)
    held.context.finalize(profile=None if sheet is None else sheet.profile)


@answers("contextFree")
def context_free(context: int, profile: int) -> None:
    """Free the context, its graphs and memory."""
    held = handles.find(ContextHeld, context)
    sheet = handles.find_or_none(ProfileHeld, profile)
    held.free(None if sheet is None else sheet.profile)
