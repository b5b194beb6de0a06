"""Context binaries beyond the 2 GiB that the kernel copies at once, in memory of the client's."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
from pathlib import Path

import pytest

from openhtp.program.binary import pack_graphs, read_binary
from openhtp.program.container import make_section
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary
from tests.capi.reused_structs import AddClient

KERNEL_AT_ONCE = 0x7FFFF000
ZEROS = KERNEL_AT_ONCE + (64 << 20)


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def untouched(nbytes: int) -> mmap.mmap:
    """Zeros, which take no memory for as long as nobody writes there."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


@pytest.fixture
def binary(lib_dir: Path) -> mmap.mmap:
    """A graph and a section of zeros that no tensor uses."""
    if available_bytes() < 4 * ZEROS:
        pytest.skip("not enough memory for copies of a large binary")
    client = AddClient(lib_dir)
    small = read_binary(client.context.get_binary())
    client.free()
    packed = small.packed("g")
    zeros = make_section(memoryview(untouched(ZEROS)))
    large = dataclasses.replace(packed, blobs=(*packed.blobs, zeros))
    pieces = pack_graphs([large], small.info)
    memory = untouched(sum(map(len, pieces)))
    offset = 0
    for piece in pieces:
        if len(piece) != ZEROS:
            memory[offset : offset + len(piece)] = piece
        offset += len(piece)
    return memory


@pytest.mark.slow
def test_a_large_binary_is_described_loaded_and_saved(lib_dir: Path, binary: mmap.mmap) -> None:
    size, library = len(binary), load(lib_dir / "libQnnHtp.so")
    system = SystemLibrary(lib_dir / "libQnnSystem.so")
    reader, place = ctypes.c_void_p(), ctypes.c_void_p()
    system.call("systemContextCreate", ctypes.addressof(reader))
    system.call("systemContextGetMetaData", reader, address_of(binary), size, ctypes.addressof(place))
    system.call("systemContextFree", reader)
    backend = LibraryBackend(library)
    device = backend.create_device(soc="SM8650")
    context = LibraryContext.create(device)
    context.free()
    given = (backend.handle, device.handle, None, address_of(binary), size)
    library.call("contextValidateBinary", *given)
    handle, needed, written = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
    library.call("contextCreateFromBinary", *given, ctypes.addressof(handle), None)
    library.call("contextGetBinarySize", handle, ctypes.addressof(needed))
    assert needed.value == size
    saved = untouched(size)
    library.call("contextGetBinary", handle, address_of(saved), size, ctypes.addressof(written))
    assert written.value == size
    assert saved[: 1 << 20] == binary[: 1 << 20]
    library.call("contextFree", handle, None)
    device.free()
    backend.free()
