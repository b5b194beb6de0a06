"""The content of a context binary, read with ``libQnnSystem``: graph names, inputs, outputs and their ids.

The core library gives a handle for a graph's name and nothing else; executions need the tensors' ids.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.abi.numbers import SYSTEM_NAME
from openhtp.abi.reading import spec_of
from openhtp.abi.structs import struct
from openhtp.abi.tables import SYSTEM, functions
from openhtp.core import status as st
from openhtp.core.errors import BadBinary, FormatError, UnsupportedFeature, error_context
from openhtp.core.shared_library import check_file
from openhtp.vendor.graph import GraphTensor
from openhtp.vendor.library import VendorLibrary, Version, failure, list_providers, version_of

# This release shipped the system functions in another order, put right in the next.
_SHUFFLED_CORE_API = (2, 33)
_SYSTEM_MAJOR = 1
# The first version of a graph's description that has a part of its own for each kind of device.
_GRAPHS_WITH_BLOBS = 3


@dataclass(frozen=True, slots=True)
class BinaryGraph:
    """A graph in a context binary; its spill-fill buffer is 0 where the binary does not mention one."""

    name: str
    tensors: tuple[GraphTensor, ...]
    spill_fill_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryBinaryInfo:
    """A context binary's description of itself."""

    build_id: str
    core_api: Version
    htp_api: Version
    blob_version: Version
    soc_model: int | None
    graphs: tuple[BinaryGraph, ...]


class SystemLibrary:
    """``libQnnSystem``, loaded from the folder of the core library, whose version it shares."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_file(path)
        try:
            handle = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
            get_providers = handle.QnnSystemInterface_getProviders
        except (OSError, AttributeError) as error:
            raise FormatError(f"{str(path)!r} cannot be used: {error}") from error
        get_providers.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        get_providers.restype = ctypes.c_uint64
        kind = struct("SystemProvider")
        usable = [
            address
            for address in list_providers(get_providers, path)
            if kind.from_address(address).api.major == _SYSTEM_MAJOR
        ]
        if not usable:
            raise UnsupportedFeature(
                f"{str(path)!r} offers no system API of major version {_SYSTEM_MAJOR}",
                st.QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES,
            )
        self._functions = functions(usable[0] + ctypes.sizeof(kind), SYSTEM)

    @classmethod
    def beside(cls, library: VendorLibrary) -> SystemLibrary:
        """The system library that belongs to a core library."""
        if library.core_api[:2] == _SHUFFLED_CORE_API:
            raise UnsupportedFeature(
                f"context binaries cannot be read with core API {'.'.join(map(str, library.core_api))}:"
                f" that release of {SYSTEM_NAME} has its functions in a wrong order; use another",
                st.QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES,
            )
        return _load(library.path.with_name(SYSTEM_NAME))

    def binary_info(self, blob: bytes) -> LibraryBinaryInfo:
        """Describe a context binary; raises BadBinary if it is none."""
        if not isinstance(blob, bytes) or not blob:
            raise BadBinary(f"a context binary is bytes, at least one; got {type(blob).__name__} {blob!r:.20}")
        handle, info = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("systemContextCreate", ctypes.addressof(handle))
        try:
            data = ctypes.cast(ctypes.c_char_p(blob), ctypes.c_void_p)
            self.call("systemContextGetMetaData", handle, data, len(blob), ctypes.addressof(info))
            if not info.value:
                raise BadBinary("the context binary has no metadata")
            return _read(info.value)
        finally:
            self.call("systemContextFree", handle)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the system library; raise for any status other than success."""
        function = self._functions.get(name)
        if function is None:
            raise UnsupportedFeature(f"{str(self.path)!r} has no function {name}")
        code = function(*arguments) & 0xFFFF
        if code:
            raise failure(name, code, area=SYSTEM[name].area, where="a context binary", said=[])


@functools.cache
def _load(path: Path) -> SystemLibrary:
    return SystemLibrary(path)


def _read(address: int) -> LibraryBinaryInfo:
    version = ctypes.c_uint32.from_address(address).value
    layout = {1: "BinaryInfoV1", 2: "BinaryInfoV1", 3: "BinaryInfoV3"}.get(version)
    if layout is None:
        raise BadBinary(f"the context binary's description has version {version}; expected 1 to 3")
    info = struct(layout).from_address(address)
    graphs = (struct("GraphInfo") * info.num_graphs).from_address(info.graphs) if info.graphs else ()
    return LibraryBinaryInfo(
        build_id=(info.build_id or b"").decode("utf-8", "replace"),
        core_api=version_of(info.core),
        htp_api=version_of(info.backend),
        blob_version=version_of(info.blob_version),
        soc_model=info.soc_model or None if version == 3 else None,
        graphs=tuple(_graph(graph) for graph in graphs),
    )


def _graph(graph: Any) -> BinaryGraph:
    name = (graph.name or b"").decode("utf-8", "replace")
    with error_context(graph=name):
        tensors = [
            GraphTensor(spec_of(tensor), tensor.id)
            for count, first in ((graph.num_inputs, graph.inputs), (graph.num_outputs, graph.outputs))
            if first
            for tensor in (struct("Tensor") * count).from_address(first)
        ]
    has_blob = graph.version >= _GRAPHS_WITH_BLOBS and graph.blob
    spill_fill = struct("GraphBlobInfo").from_address(graph.blob).spill_fill if has_blob else 0
    return BinaryGraph(name, tuple(tensors), spill_fill)
