"""The C stub: built from the table that Python reads, and the same library for every client."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from openhtp.abi.numbers import BACKEND_ID_HTP
from openhtp.abi.structs import struct
from openhtp.abi.tables import CORE, SYSTEM, SYSTEM_SLOTS
from openhtp.capi import entries, identity
from openhtp.core.errors import QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from tests.capi.conftest import ROOT
from tests.capi.test_client import tensor


def test_the_c_functions_are_those_of_the_table() -> None:
    spec = importlib.util.spec_from_file_location("gen_capi_entries", ROOT / "tools/gen_capi_entries.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PATH.read_text() == module.text()


def test_every_entry_has_an_answer() -> None:
    table = entries.table()
    assert len(CORE) == 71
    for first, named in ((0, CORE), (128, SYSTEM)):
        for entry in named.values():
            assert table[first + entry.place] is not entries.table()[entries.COUNT - 1]


@pytest.mark.parametrize("name", ["libQnnHtp.so", "libQnnSystem.so"])
def test_a_provider_fills_every_place_and_zeros_follow(lib_dir: Path, name: str) -> None:
    library = ctypes.CDLL(str(lib_dir / name))
    for function, head, count in (("QnnInterface", 40, len(CORE)), ("QnnSystemInterface", 32, SYSTEM_SLOTS)):
        call = getattr(library, f"{function}_getProviders")
        call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_uint64
        listing, found = ctypes.c_void_p(), ctypes.c_uint32()
        assert call(None, ctypes.addressof(found)) == 1004
        assert call(ctypes.addressof(listing), ctypes.addressof(found)) == 0
        assert found.value == 1
        assert listing.value is not None
        provider = ctypes.c_void_p.from_address(listing.value).value
        assert provider is not None
        places = (ctypes.c_void_p * 128).from_address(provider + head)
        assert all(places[:count])
        assert not any(places[count:])


def test_each_library_has_its_own_name_for_the_loader(lib_dir: Path) -> None:
    """A client that opens a library by its bare name gets the one that is in the process already."""
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    assert not (lib_dir / "libcdsprpc.so").exists(), "it would come before the board's"
    for path in lib_dir.rglob("*.so"):
        told = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
        assert f"soname: [{path.name}]" in told


def test_the_companions_are_there(lib_dir: Path) -> None:
    assert ctypes.CDLL(str(lib_dir / "libQnnSaver.so")).QnnSaver_initialize(None) == 0
    for name in ("libQnnIr.so", "libQnnLpai.so"):
        ctypes.CDLL(str(lib_dir / name))
    memory = ctypes.CDLL(str(lib_dir / "rpcmem" / "libcdsprpc.so"))
    memory.rpcmem_alloc.restype = ctypes.c_void_p
    memory.rpcmem_to_fd.argtypes = memory.rpcmem_free.argtypes = [ctypes.c_void_p]
    data = memory.rpcmem_alloc(25, 1, 4096)
    assert data
    assert memory.rpcmem_to_fd(data) >= 0
    memory.rpcmem_free(data)
    assert memory.rpcmem_to_fd(data) == -1


def test_versions_of_the_environment_are_told_before_there_is_any_call(
    lib_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(lib_dir / "libQnnHtp.so", tmp_path)
    monkeypatch.setenv("OPENHTP_CORE_API", "2.33")
    monkeypatch.setenv("OPENHTP_HTP_API", "5.44.7")
    call = ctypes.CDLL(str(tmp_path / "libQnnHtp.so")).QnnInterface_getProviders
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_uint64
    listing, found = ctypes.c_void_p(), ctypes.c_uint32()
    assert call(ctypes.addressof(listing), ctypes.addressof(found)) == 0
    provider = struct("Provider").from_address(ctypes.c_void_p.from_address(listing.value or 0).value or 0)
    assert provider.name == identity.PROVIDER_NAME.encode()
    assert provider.backend_id == BACKEND_ID_HTP
    versions = [(one.major, one.minor, one.patch) for one in (provider.api.core, provider.api.backend)]
    assert versions == [(2, 33, 0), (5, 44, 7)]


def test_every_slot_of_the_systems_table_answers(lib_dir: Path) -> None:
    """Genie asks that slots far behind the documented ones are there."""
    call = ctypes.CDLL(str(lib_dir / "libQnnSystem.so")).QnnSystemInterface_getProviders
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_uint64
    listing, found = ctypes.c_void_p(), ctypes.c_uint32()
    assert call(ctypes.addressof(listing), ctypes.addressof(found)) == 0
    words = (ctypes.c_uint64 * (4 + SYSTEM_SLOTS + 1)).from_address(
        ctypes.c_void_p.from_address(listing.value or 0).value or 0
    )
    assert words[0] & 0xFFFFFFFF == 0  # the backend's id, as in the vendor's
    assert all(words[4 : 4 + SYSTEM_SLOTS])
    assert not words[4 + SYSTEM_SLOTS]
    for place in range(len(SYSTEM), SYSTEM_SLOTS):
        assert (
            ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)(words[4 + place])(None, 7) == 1000
        )


def test_a11_a_second_copy_of_the_libraries_is_refused_while_the_first_is_in_use(
    lib_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    path = shutil.copy(lib_dir / "libQnnHtp.so", tmp_path / "copy")
    first, other = LibraryBackend(load(lib_dir / "libQnnHtp.so")), LibraryBackend(load(path))
    device = first.create_device()
    with pytest.raises(QnnError) as refused:
        other.create_device()
    assert refused.value.name == "QNN_COMMON_ERROR_LOADING_BINARIES"
    call = OpCall("Relu", "r", (tensor("x", TensorKind.APP_WRITE),), (tensor("y", TensorKind.APP_READ),))
    with pytest.raises(QnnError) as refused:
        other.validate_op(call, {})
    assert refused.value.name == "QNN_COMMON_ERROR_LOADING_BINARIES"
    first.validate_op(call, {})
    context = LibraryContext.create(device)
    graph, place = ctypes.c_void_p(), ctypes.addressof(ctypes.c_void_p())
    assert other.library.ask("contextCreate", other.handle, device.handle, None, place) == 1009
    assert other.library.ask("graphCreate", context.handle, b"g", None, ctypes.addressof(graph)) == 1009
    assert other.library.ask("backendRegisterOpPackage", other.handle, b"libNone.so", b"provider", None) == 1009
    for held in (context, device, first, other):
        held.free()
    later = LibraryBackend(load(path))  # nothing of the first is left
    later.create_device().free()
    later.free()
