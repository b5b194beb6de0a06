"""Backends, their properties, and the list of operations."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from openhtp.abi import memory
from openhtp.abi.numbers import BACKEND_ID_HTP
from openhtp.abi.op_package import open_library
from openhtp.abi.reading import call_of, static_inputs, widened
from openhtp.abi.structs import struct
from openhtp.capi import handles, identity
from openhtp.capi.client_backend import ClientBackend
from openhtp.capi.configs import warn_of_no_effect
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.option_numbers import CUSTOM, BackendOption
from openhtp.ops import PACKAGE, op_names, resolve_for
from openhtp.runtime.objects.property import has_capability

__all__ = ["BACKEND_ID_HTP", "BackendHeld"]


class BackendHeld(HandleEntry):
    """A backend."""

    word, invalid = "backend", st.QNN_BACKEND_ERROR_INVALID_HANDLE

    def __init__(self) -> None:
        super().__init__()
        self.backend = ClientBackend()
        # Entries that were made with it on devices that belong to no backend.
        self.contexts: set[Any] = set()


_OPTIONS = {CUSTOM: "CUSTOM", **{int(option): option.name for option in BackendOption}}
_build = (identity.build_id() + "\0").encode()
_build_text = ctypes.create_string_buffer(_build)


@answers("propertyHasCapability")
def property_has_capability(key: int) -> int:
    """Supported, not supported, or unknown."""
    return 0 if has_capability(key) else st.QNN_PROPERTY_NOT_SUPPORTED.code


@answers("backendCreate")
def backend_create(log: int, config: int, out: int) -> None:
    """Make a backend; no option of its configuration has an effect here."""
    handles.require_place(out, "backend")
    _take_options(config)
    handles.give(out, BackendHeld())


@answers("backendSetConfig")
def backend_set_config(backend: int, config: int) -> None:
    """Take the same options, later."""
    handles.find(BackendHeld, backend)
    _take_options(config)


def _take_options(config: int) -> None:
    """Warn about options without effect; refuse options that do not exist."""
    for entry in memory.pointers(config, "the backend's configuration"):
        number = memory.structure(struct("Config"), entry, "the backend's configuration").option
        if number not in _OPTIONS:
            raise InvalidArgument(
                f"backend option {number} is unknown; expected one of {', '.join(map(str, _OPTIONS))}",
                st.QNN_BACKEND_ERROR_INVALID_CONFIG,
            )
        warn_of_no_effect(f"QNN_BACKEND_CONFIG_OPTION_{_OPTIONS[number]}")


@answers("backendGetApiVersion")
def backend_get_api_version(out: int) -> None:
    """Versions of the core and the HTP interface."""
    handles.require_place(out, "version", 24)
    version = struct("ApiVersion")(identity.core_api(), identity.htp_api())
    memory.write(out, bytes(version))


@answers("backendGetBuildId")
def backend_get_build_id(out: int) -> None:
    """The build, as text that stays valid."""
    handles.require_place(out, "build id")
    memory.write_number(out, ctypes.addressof(_build_text))


@answers("backendRegisterOpPackage")
def backend_register_op_package(backend: int, path: int, provider: int, target: int) -> None:
    """Load a package of the CPU kind. The emulated accelerator is this computer, so every target means it."""
    owner = handles.find(BackendHeld, backend)
    name = memory.text(path, "path of the op package")
    function = memory.text(provider, "interface provider of the op package")
    wanted = memory.text(target, "target of the op package") or None
    if not name or not function or wanted not in (None, "CPU", "HTP"):
        raise InvalidArgument(
            f"op package {name!r} with provider {function!r} for target {wanted!r}; expected a library, a function"
            " of it, and CPU, HTP or no target",
            st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
        )
    package = owner.backend.register_op_package(open_library(name, function))
    for context in list(owner.contexts):
        context.device.take_packages([package])


@answers("backendGetSupportedOperations")
def backend_get_supported_operations(backend: int, count: int, out: int) -> None:
    """All operations, with those of packages that were registered."""
    owner = handles.find(BackendHeld, backend)
    handles.require_place(count, "number of operations", 4)
    handles.require_place(out, "operations")
    names = [(PACKAGE, name) for name in op_names()]
    names += [(each.name, name) for each in owner.backend.op_packages.listed() for name in each.op_names()]
    listing = (struct("OperationName") * len(names))(
        *[(package.encode(), name.encode(), b"") for package, name in names]
    )
    owner.keep.append(listing)
    memory.write_number(count, len(listing), 4)
    memory.write_number(out, ctypes.addressof(listing))


@answers("backendValidateOpConfig")
def backend_validate_op_config(backend: int, config: int) -> None:
    """Whether the device that was made last can do an operation with these tensors."""
    from openhtp.capi.device import present_arch

    handles.find(BackendHeld, backend)
    description = memory.structure(struct("OpConfig"), config, "an operation's description")
    call = call_of(description)
    call = dataclasses.replace(
        call,
        inputs=tuple(None if spec is None else widened(spec) for spec in call.inputs),
        outputs=tuple(map(widened, call.outputs)),
    )
    try:
        resolve_for(present_arch(), call, static_inputs(description))
    except QnnError as error:
        error.status = st.QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE
        raise


@answers("backendGetProperty")
def backend_get_property(backend: int, properties: int) -> int:
    """Refuse: a backend has no properties."""
    handles.find(BackendHeld, backend)
    return st.QNN_BACKEND_ERROR_NOT_SUPPORTED.code


@answers("backendFree")
def backend_free(backend: int) -> None:
    """Free a backend and everything that was made with it."""
    from openhtp.capi.device import DeviceHeld

    owner = handles.find(BackendHeld, backend)
    for context in list(owner.contexts):
        context.free()
    for child in list(owner.children.values()):
        if isinstance(child, DeviceHeld):
            child.free()
    handles.remove(owner)
    owner.backend.free()


@answers("globalConfigSet")
def global_config_set(config: int) -> None:
    """Choose the chip of devices that name none; only before any other call."""
    from openhtp.capi import device

    for address in memory.pointers(config, "the configuration"):
        chosen = memory.structure(struct("GlobalConfig"), address, "the configuration")
        device.set_default_soc(chosen.option, chosen.soc_model)
