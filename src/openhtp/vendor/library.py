"""Find, check and load ``libQnnHtp``, turn each failure of a call into an exception, and collect its log."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from openhtp.abi.numbers import BACKEND_ID_HTP, LIBRARY_NAME
from openhtp.abi.structs import struct
from openhtp.abi.tables import CORE, LogCallback, functions
from openhtp.core import errors, status as st
from openhtp.core.enumerations import LogLevel
from openhtp.core.errors import FormatError, QnnError, UnsupportedFeature
from openhtp.core.option_numbers import GlobalOption
from openhtp.core.shared_library import check_file, loading_failure
from openhtp.core.status import Status

LIBRARY_VARIABLE = "OPENHTP_QNN_LIBRARY"
PACKAGE = "onnxruntime_qnn"
# Where images for Snapdragon boards and phones put the library.
DEVICE_FOLDERS = (
    "/vendor/lib64",
    "/system/vendor/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)

# The oldest API version whose layouts our declarations were checked against.
OLDEST_CORE_API = (2, 32)
# From this version of the HTP part on, the device's custom configuration has its body at byte 8.
ALIGNED_DEVICE_CONFIG_API = (5, 47)

logger = logging.getLogger("openhtp.vendor.qnn")

# Lower than the library's own levels: it logs warnings and even errors for calls that succeed, a dozen for each
# finalize. The lines that explain a failure are in the exception.
_LEVELS: dict[int, int] = {LogLevel.ERROR: logging.INFO}
# The library puts its own level in front of the text.
_TAG = re.compile(r"^<[A-Z]>\s*")
# ... and the compiler a source file, which says nothing to anyone else.
_SOURCE = re.compile(r"^\S+\.cc:\d+:+\s*(ERROR:)?")
_FAILED = "Failed "
_LINE_BYTES = 2048
# The first lines of a failure name its cause; what follows are its consequences, layer by layer.
_REMEMBERED = 4

Version = tuple[int, int, int]


# Codes that appeared after the API version our tables describe.
_NEWER = {
    4013: "QNN_BACKEND_ERROR_OP_PACKAGE_LOAD_FROM_BUFFER_FAILED",
    6040: "QNN_GRAPH_ERROR_CYCLE_DETECTED",
    14004: "QNN_DEVICE_ERROR_ACCESS_DENIED",
}

_CLASSES: dict[int, type[errors.QnnError]] = {
    1000: errors.UnsupportedFeature,
    1002: errors.OutOfMemory,
    1004: errors.InvalidArgument,
    1005: errors.WrongState,
    1006: errors.UnsupportedFeature,
    1007: errors.DeviceLost,
    1010: errors.ResourceError,
    1011: errors.DeviceLost,
    3110: errors.UnsupportedOp,
    4004: errors.InvalidArgument,
    4005: errors.UnsupportedOp,
    4011: errors.InvalidHandle,
    5000: errors.InvalidArgument,
    5002: errors.InvalidHandle,
    5003: errors.WrongState,
    5004: errors.BadBinary,
    5005: errors.BadBinary,
    5010: errors.InvalidArgument,
    6000: errors.InvalidArgument,
    6001: errors.InvalidHandle,
    6003: errors.NameClash,
    6004: errors.InvalidArgument,
    6005: errors.InvalidArgument,
    6007: errors.InvalidArgument,
    6023: errors.WrongState,
    6024: errors.WrongState,
    6031: errors.Aborted,
    6033: errors.TimedOut,
    7001: errors.InvalidHandle,
    7003: errors.NameClash,
    7004: errors.InvalidArgument,
    7005: errors.InvalidArgument,
    12000: errors.InvalidHandle,
    13001: errors.InvalidArgument,
    14000: errors.InvalidHandle,
    14001: errors.InvalidArgument,
    30001: errors.BadBinary,
    30010: errors.BadBinary,
}

# The same number means something else in some calls.
_BY_CALL: dict[tuple[str, int], type[errors.QnnError]] = {
    # The compiler answers "memory" for any graph it cannot lower; its log says which operation it was.
    ("graphFinalize", 1002): errors.UnsupportedOp,
    ("graphExecute", 1100): errors.ExecutionError,
    ("contextCreateFromBinary", 5000): errors.BadBinary,
}


def find_library() -> Path | None:
    """The vendor's library on this machine, or None.

    Looks at ``$OPENHTP_QNN_LIBRARY`` (a file, or its folder), then the ``onnxruntime-qnn`` package, then the
    usual folders of a device. A variable that names nothing is an error, so that a typing mistake does not
    silently select another library.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        path = Path(named)
        path = path / LIBRARY_NAME if path.is_dir() else path
        if not path.is_file():
            raise UnsupportedFeature(
                f"{LIBRARY_VARIABLE} is {named!r}, and there is no file {str(path)!r}",
                st.QNN_COMMON_ERROR_LOADING_BINARIES,
            )
        return path
    candidates = [*package_folders(), *(Path(folder) for folder in DEVICE_FOLDERS)]
    return next((folder / LIBRARY_NAME for folder in candidates if (folder / LIBRARY_NAME).is_file()), None)


def package_folders() -> list[Path]:
    """Folders of the ``onnxruntime-qnn`` package, none if it is not installed."""
    # The package is only looked up, never imported: importing it loads onnxruntime's plugin.
    spec = importlib.util.find_spec(PACKAGE)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def require_library() -> Path:
    """The path of ``find_library``, or an error that says how to get the library."""
    path = find_library()
    if path is None:
        raise UnsupportedFeature(
            f"{LIBRARY_NAME} is not installed: `pip install openhtp[vendor]` brings it, on x86 as a simulator;"
            f" or set {LIBRARY_VARIABLE} to the one of the Qualcomm AI Runtime SDK",
            st.QNN_COMMON_ERROR_LOADING_BINARIES,
        )
    return path


def load(path: str | os.PathLike[str] | None = None) -> VendorLibrary:
    """Load the library at ``path``, or the one that ``find_library`` finds."""
    chosen = Path(path) if path is not None else require_library()
    check_file(chosen)
    try:
        handle = ctypes.CDLL(str(chosen), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise loading_failure(chosen, error) from error
    provider, version = choose_provider(_providers(handle, chosen), chosen)
    return VendorLibrary(chosen, handle, provider, version)


def _providers(handle: ctypes.CDLL, path: Path) -> list[int]:
    try:
        get_providers = handle.QnnInterface_getProviders
    except AttributeError as error:
        raise FormatError(f"{str(path)!r} is not a QNN backend: it has no QnnInterface_getProviders") from error
    get_providers.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    get_providers.restype = ctypes.c_uint64
    return list_providers(get_providers, path)


def list_providers(get_providers: Any, path: Path) -> list[int]:
    """Addresses of the providers that a library offers."""
    listing, count = ctypes.c_void_p(), ctypes.c_uint32()
    code = get_providers(ctypes.addressof(listing), ctypes.addressof(count)) & 0xFFFF
    if code:
        raise FormatError(f"{str(path)!r} gives no providers", status_for(code, "COMMON"))
    if not listing.value:
        return []
    addresses = (ctypes.c_void_p * count.value).from_address(listing.value)
    return [address for address in addresses if address]


def choose_provider(addresses: list[int], path: Path) -> tuple[int, tuple[Version, Version]]:
    """The newest HTP provider that we can talk to: its address, and its core and HTP API versions."""
    seen: list[str] = []
    best: tuple[tuple[Version, Version], int] | None = None
    for address in addresses:
        provider = struct("Provider").from_address(address)
        core, backend = version_of(provider.api.core), version_of(provider.api.backend)
        seen.append(f"backend {provider.backend_id} with core API {'.'.join(map(str, core))}")
        usable = provider.backend_id == BACKEND_ID_HTP and core[0] == OLDEST_CORE_API[0]
        if usable and core >= OLDEST_CORE_API and (best is None or (core, backend) > best[0]):
            best = ((core, backend), address)
    if best is None:
        oldest = ".".join(map(str, OLDEST_CORE_API))
        raise UnsupportedFeature(
            f"{str(path)!r} offers {', '.join(seen) or 'no provider'}; needed: backend {BACKEND_ID_HTP} (HTP)"
            f" with core API {oldest} or later of the same major version",
            st.QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES,
        )
    return best[1], best[0]


def version_of(version: Any) -> Version:
    """A C version as a tuple that compares."""
    return version.major, version.minor, version.patch


# Libraries call them while their log handles are open, which may be until the process ends.
_heard: set[LogSink] = set()


class VendorLibrary:
    """A loaded library: its functions by their documented names, its versions and its log.

    The library stays mapped until the process ends; its own threads may outlive any handle.
    """

    def __init__(self, path: Path, handle: ctypes.CDLL, provider: int, api: tuple[Version, Version]) -> None:
        self.path = path
        self.core_api, self.htp_api = api
        self.log = LogSink()
        self.provider = provider
        self._handle = handle
        self._functions = functions(provider + ctypes.sizeof(struct("Provider")), CORE)

    @property
    def aligned_device_config(self) -> bool:
        """Whether the device's custom configuration has the newer of its two layouts."""
        return self.htp_api >= ALIGNED_DEVICE_CONFIG_API

    @property
    def build_id(self) -> str:
        """The SDK build, e.g. ``v2.51.0.260929...``."""
        text = ctypes.c_char_p()
        self.call("backendGetBuildId", ctypes.addressof(text))
        return (text.value or b"").decode("utf-8", "replace")

    def ask(self, name: str, *arguments: Any) -> int:
        """Call a function and give back its status code, 0 for success."""
        function = self._functions.get(name)
        if function is None:
            raise UnsupportedFeature(f"{str(self.path)!r} has no function {name}")
        code: int = function(*arguments) & 0xFFFF
        return code

    def call(self, name: str, *arguments: Any, where: str = "") -> None:
        """Call a function; a status other than success is raised with what the library logged about it."""
        self.log.take_errors()
        code = self.ask(name, *arguments)
        if code:
            raise self.failure(name, code, where)

    def make(self, name: str, *arguments: Any, where: str = "") -> int:
        """Call a function whose last argument is where the handle goes that it makes; returns the handle."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.addressof(handle), where=where)
        return handle.value or 0

    def failure(self, name: str, code: int, where: str) -> QnnError:
        """The exception for a status that ``ask`` gave back."""
        return failure(name, code, area=CORE[name].area, where=where, said=self.log.take_errors())

    def make_log(self, level: LogLevel) -> int:
        """Create a log handle whose lines go to the Python logger ``openhtp.vendor.qnn``."""
        handle = self.make("logCreate", ctypes.cast(self.log.callback, ctypes.c_void_p), int(level))
        _heard.add(self.log)
        return handle

    def set_soc(self, model: int) -> None:
        """Make the simulator a given SoC for the whole process; must come before any other call."""
        config = struct("GlobalConfig")(GlobalOption.SOC_MODEL, model)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(config), None)
        self.call("globalConfigSet", ctypes.addressof(pointers), where=f"SoC model {model}")

    def has_capability(self, key: int) -> bool | None:
        """Whether the library says that it has a property; None for a key that it does not know."""
        code = self.ask("propertyHasCapability", key)
        if code == st.QNN_PROPERTY_ERROR_UNKNOWN_KEY.code:
            return None
        if code not in (0, st.QNN_PROPERTY_NOT_SUPPORTED.code):
            raise self.failure("propertyHasCapability", code, f"property {key}")
        return code == 0


class LogSink:
    """Receives the library's log callback, which may come on any of its threads."""

    def __init__(self) -> None:
        # The library keeps the address of this callback: a sink must live as long as the log handle.
        self.callback = LogCallback(self._receive)
        self._errors: list[str] = []
        self._format = _vsnprintf()

    def take_errors(self) -> list[str]:
        """The first error lines since the last call of this method, each once."""
        lines, self._errors = self._errors, []
        return lines

    def _receive(self, template: bytes | None, level: int, _time: int, arguments: int | None) -> None:
        # Nothing may be raised into C.
        try:
            text = self._text(template or b"", arguments)
            cause = _SOURCE.sub("", text)
            # Why a part of the library could not be loaded is only a warning.
            telling = level == LogLevel.ERROR or (level == LogLevel.WARN and cause.startswith(_FAILED))
            if telling and len(self._errors) < _REMEMBERED and cause not in self._errors:
                self._errors.append(cause)
            logger.log(_LEVELS.get(level, logging.DEBUG), "%s", text)
        except Exception:
            logger.debug("a log line of the vendor library could not be read", exc_info=True)

    def _text(self, template: bytes, arguments: int | None) -> str:
        if self._format is None:
            line = template
        else:
            buffer = ctypes.create_string_buffer(_LINE_BYTES)
            self._format(buffer, _LINE_BYTES, template, arguments)
            line = buffer.value
        return _TAG.sub("", line.decode("utf-8", "replace").strip())


def _vsnprintf() -> Any | None:
    """C's own formatter, the only thing that can read a va_list; None where its calling form is not known."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).vsnprintf
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def status_for(code: int, area: str) -> Status:
    """The documented status of a code; an unknown one keeps its number in its name."""
    if code in _NEWER:
        return Status(_NEWER[code], code)
    if code >= st.QNN_SYSTEM_CONTEXT_MINERROR.code:
        # The system library's range; core calls on context binaries answer from it too.
        area = "SYSTEM_CONTEXT"
    return st.for_code(code, area=area)


def failure(call: str, code: int, *, area: str, where: str, said: list[str]) -> errors.QnnError:
    """The exception for a call that answered ``code``; ``said`` is what the library logged meanwhile."""
    kind = _BY_CALL.get((call, code)) or _CLASSES.get(code, errors.QnnError)
    suffix = f" for {where}" if where else ""
    reason = f": {'; '.join(said)}" if said else ""
    return kind(f"vendor library: {call} failed{suffix}{reason}", status_for(code, area))
