"""Contexts of the vendor's library: fresh ones, ones restored from a context binary, and their memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openhtp.abi.structs import pointer_list, struct
from openhtp.abi.writing import c_text
from openhtp.core import status as st
from openhtp.core.enumerations import MemType, Priority
from openhtp.core.errors import BadBinary, InvalidArgument, NameClash, WrongState
from openhtp.core.option_numbers import HtpContextOption
from openhtp.core.tensor import TensorSpec
from openhtp.options import CONTEXT
from openhtp.vendor.backend import LibraryDevice
from openhtp.vendor.forms import LibraryGraphOptions, config_with, custom_config
from openhtp.vendor.graph import LibraryGraph, create_graph
from openhtp.vendor.handles import Owner
from openhtp.vendor.metadata import LibraryBinaryInfo, SystemLibrary
from openhtp.vendor.profile import LibraryProfile

# QNN_HTP_MEM_SHARED_BUFFER: several tensors in one buffer, each at its offset.
_SHARED_BUFFER = 1


class LibraryContext(Owner):
    """A set of graphs that are saved, restored and freed together."""

    freed_status = st.QNN_CONTEXT_ERROR_INVALID_HANDLE

    def __init__(self, device: LibraryDevice, handle: int, *, restored: bool) -> None:
        self.device = device
        self.library = device.library
        self.graphs: dict[str, LibraryGraph] = {}
        self._restored = restored
        self._memories: dict[object, LibraryMemory] = {}
        super().__init__(handle, "context", device)

    @classmethod
    def create(
        cls,
        device: LibraryDevice,
        *,
        priority: Priority | None = None,
        queue_depth: int | None = None,
        weight_sharing: bool = False,
    ) -> LibraryContext:
        """Create an empty context."""
        keep: list[Any] = []
        configs = _configs(priority, queue_depth, (), keep)
        if weight_sharing:
            custom = struct("HtpContextConfig")(option=HtpContextOption.WEIGHT_SHARING)
            custom.of.flag = 1
            configs.append(custom_config(custom, keep))
        owners = device.backend.handle, device.handle
        return cls(device, device.library.make("contextCreate", *owners, pointer_list(configs)), restored=False)

    @classmethod
    def from_binary(
        cls,
        device: LibraryDevice,
        blob: bytes,
        *,
        priority: Priority | None = None,
        queue_depth: int | None = None,
        enable_graphs: Sequence[str] = (),
        profile: LibraryProfile | None = None,
    ) -> LibraryContext:
        """Restore a context with its finalized graphs.

        The library accepts damaged weights without a word and may crash on other damage: only restore what
        you saved, or do it in a worker process.
        """
        info = SystemLibrary.beside(device.library).binary_info(blob)
        unknown = set(enable_graphs) - {graph.name for graph in info.graphs}
        if unknown:
            raise InvalidArgument(
                f"graphs {sorted(unknown)} are not in the binary, which has"
                f" {[graph.name for graph in info.graphs]}",
                st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
            )
        keep: list[Any] = []
        configs = _configs(priority, queue_depth, enable_graphs, keep)
        handle = ctypes.c_void_p()
        device.library.call(
            "contextCreateFromBinary",
            device.backend.handle,
            device.handle,
            pointer_list(configs),
            ctypes.cast(ctypes.c_char_p(blob), ctypes.c_void_p),
            len(blob),
            ctypes.addressof(handle),
            profile.handle if profile else None,
            where=f"a context binary of {len(blob)} bytes",
        )
        context = cls(device, handle.value or 0, restored=True)
        context._retrieve(info, enable_graphs)
        return context

    def _retrieve(self, info: LibraryBinaryInfo, enabled: Sequence[str]) -> None:
        for graph in info.graphs:
            if enabled and graph.name not in enabled:
                continue
            keep: list[Any] = []
            name, where = c_text(graph.name, "graph name", keep), f"graph {graph.name!r}"
            try:
                handle = self.library.make("graphRetrieve", self.handle, name, where=where)
            except Exception:
                self.free()
                raise
            self.graphs[graph.name] = LibraryGraph(self, graph.name, handle, graph.tensors)

    def create_graph(self, name: str, options: LibraryGraphOptions | None = None) -> LibraryGraph:
        """Create an empty graph."""
        if self._restored:
            raise WrongState(f"graph {name!r} cannot be added to a context restored from a binary")
        if name in self.graphs:
            raise NameClash(f"graph {name!r} exists already in its context")
        graph = create_graph(self, name, options or LibraryGraphOptions())
        self.graphs[name] = graph
        return graph

    def register_memory(self, spec: TensorSpec, tensor_range: TensorRange) -> LibraryMemory:
        """Have the DSP map a tensor's memory, once for all calls; ``leave_memory`` undoes one call."""
        key = (spec.dtype, *tensor_range.identity)
        memory = self._memories.get(key)
        if memory is None or not memory.alive:
            memory = self._memories[key] = LibraryMemory(self, spec, tensor_range, key)
        memory.users += 1
        return memory

    def leave_memory(self, memory: LibraryMemory) -> None:
        """One user less; with the last one the library forgets the memory."""
        memory.users -= 1
        if not memory.users:
            self._memories.pop(memory.key, None)
            memory.free()

    def get_binary(self) -> bytes:
        """Save all graphs; every one must be finalized."""
        if self._restored:
            raise WrongState("a context restored from a binary cannot be saved again; keep the binary")
        pending = [name for name, graph in self.graphs.items() if not graph.finalized]
        if pending or not self.graphs:
            raise WrongState(
                f"graphs {pending} are not finalized" if pending else "the context has no graphs to save",
                st.QNN_CONTEXT_ERROR_NOT_FINALIZED,
            )
        size, written = ctypes.c_uint64(), ctypes.c_uint64()
        self.library.call("contextGetBinarySize", self.handle, ctypes.addressof(size))
        buffer = (ctypes.c_uint8 * size.value)()
        self.library.call(
            "contextGetBinary", self.handle, ctypes.addressof(buffer), size.value, ctypes.addressof(written)
        )
        if written.value > size.value:
            raise BadBinary(f"the vendor library wrote {written.value} bytes into {size.value}")
        return bytes(memoryview(buffer)[: written.value])

    def _release(self, handle: int) -> None:
        self.library.call("contextFree", handle, None)


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Where a tensor lies: at ``offset`` in the memory of a descriptor, which has ``nbytes``."""

    fd: int
    nbytes: int
    offset: int
    shape: tuple[int, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for the same range of the same memory, whatever its descriptor is."""
        about = os.fstat(self.fd)
        return about.st_dev, about.st_ino, self.nbytes, self.offset, self.shape


class LibraryMemory(Owner):
    """A tensor's range, registered in a context."""

    freed_status = st.QNN_MEM_ERROR_INVALID_HANDLE

    def __init__(self, context: LibraryContext, spec: TensorSpec, range_: TensorRange, key: object = None) -> None:
        """``key`` is what its context knows it by.

        Raises UnsupportedFeature where the library registers no memory, and QnnError for memory it refuses.
        """
        self.key = key
        self.users = 0
        self._library = context.library
        # The DSP's driver knows the memory by this number until it is taken back, however long that takes.
        self._fd = os.dup(range_.fd)
        dims = (ctypes.c_uint32 * max(1, len(range_.shape)))(*range_.shape)
        custom = struct("HtpMemory")(kind=_SHARED_BUFFER, size=range_.nbytes)
        custom.of.place.fd, custom.of.place.offset = self._fd, range_.offset
        descriptor = struct("MemoryDescriptor")(
            num_dims=len(range_.shape),
            dims=ctypes.addressof(dims),
            data_type=int(spec.dtype),
            mem_type=MemType.CUSTOM,
        )
        descriptor.of.custom = ctypes.addressof(custom)
        handle = ctypes.c_void_p()
        where = f"tensor {spec.name!r} in shared memory"
        try:
            self._library.call(
                "memRegister",
                context.handle,
                ctypes.addressof(descriptor),
                1,
                ctypes.addressof(handle),
                where=where,
            )
        except BaseException:
            os.close(self._fd)
            raise
        super().__init__(handle.value or 0, where, context)

    def _release(self, handle: int) -> None:
        handles = (ctypes.c_void_p * 1)(handle)
        try:
            self._library.call("memDeRegister", ctypes.addressof(handles), 1)
        finally:
            os.close(self._fd)


def _configs(
    priority: Priority | None, queue_depth: int | None, enable_graphs: Sequence[str], keep: list[Any]
) -> list[ctypes.Structure]:
    configs = []
    if priority is not None:
        configs.append(config_with(CONTEXT.number("priority").value, number=int(priority)))
    if queue_depth is not None:
        depth = CONTEXT.read({"queue_depth": queue_depth}).queue_depth
        configs.append(config_with(CONTEXT.number("queue_depth").value, queue_depth=(0, depth)))
    if enable_graphs:
        names = [c_text(name, "graph name", keep) for name in enable_graphs]
        listing = (ctypes.c_void_p * (len(names) + 1))(*names, None)
        keep.append(listing)
        configs.append(config_with(CONTEXT.number("enable_graphs").value, names=ctypes.addressof(listing)))
    return configs
