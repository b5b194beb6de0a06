"""Sizes and offsets of the C structures on 64-bit platforms; a wrong one would read or write elsewhere."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from openhtp.abi.structs import build, offsets, pointer_list, struct
from openhtp.abi.tables import CORE, POWER, SYSTEM, functions, prototype

SIZES = {
    "Version": 12,
    "ApiVersion": 24,
    "Scalar": 16,
    "ScaleOffset": 8,
    "BwScaleOffset": 12,
    "AxisScaleOffset": 16,
    "BwAxisScaleOffset": 32,
    "BlockwiseExpansion": 40,
    "QuantizeParams": 40,
    "ClientBuffer": 16,
    "Tensor": 144,
    "SparseParams": 12,
    "BinaryBuffer": 16,
    "ContextBuffer": 32,
    "SerializationTarget": 24,
    "DataRequest": 24,
    "DmaDataMem": 24,
    "DmaDataResponse": 32,
    "BinaryCallback": 40,
    "HtpContextProperty": 16,
    "Param": 160,
    "OpConfig": 80,
    "OperationName": 24,
    "Config": 16,
    "GlobalConfig": 8,
    "HtpContextConfig": 24,
    "HtpGraphConfig": 56,
    "MinimumArch": 8,
    "HtpDeviceConfigOld": 12,
    "HtpDeviceConfig": 16,
    "HardwareDeviceInfo": 40,
    "PlatformInfo": 24,
    "HtpDeviceInfo": 32,
    "EventData": 24,
    "Infrastructure": 40,
    "DcvsV3": 64,
    "PowerConfig": 68,
    "GraphInfo": 88,
    "BinaryInfoV1": 136,
    "BinaryInfoV3": 144,
    "Provider": 40,
    "SystemProvider": 32,
    "OpPackageInfo": 176,
    "OpPackageV1": 72,
    "OpPackageV2": 56,
    "OpPackageInterface": 88,
    "CpuTensor": 80,
    "CpuParam": 24,
    "CpuNode": 72,
    "CpuOpImpl": 16,
}

OFFSETS = {
    "Tensor": {"id": 8, "name": 16, "kind": 24, "data_format": 28, "data_type": 32, "quant": 40, "rank": 80}
    | {"dims": 88, "mem_type": 96, "buffer": 104, "dynamic": 120, "sparse": 128, "produced": 140},
    "ContextBuffer": {"mem_type": 8, "buffer": 16},
    "QuantizeParams": {"definition": 0, "encoding": 4, "of": 8},
    "BwAxisScaleOffset": {"bitwidth": 0, "axis": 4, "count": 8, "scales": 16, "offsets": 24},
    "BlockwiseExpansion": {"axis": 0, "scale_offsets": 8, "blocks": 16, "scale_bits": 20, "storage": 24}
    | {"numbers": 32},
    "Param": {"kind": 0, "name": 8, "of": 16},
    "OpConfig": {"name": 8, "package": 16, "type": 24, "num_params": 32, "params": 40, "num_inputs": 48}
    | {"inputs": 56, "num_outputs": 64, "outputs": 72},
    "Config": {"option": 0, "of": 8},
    "DmaDataResponse": {"dma": 0, "start": 16, "aligned_size": 24},
    "BinaryCallback": {"kind": 0, "version": 8, "provide": 16, "release": 24, "param": 32},
    "HtpContextProperty": {"option": 0, "value": 8},
    "HtpDeviceConfigOld": {"option": 0, "of": 4},
    "HtpDeviceConfig": {"option": 0, "of": 8},
    "HardwareDeviceInfo": {"device_id": 8, "num_cores": 16, "cores": 24, "extension": 32},
    "PlatformInfo": {"count": 8, "devices": 16},
    "HtpDeviceInfo": {"vtcm_mb": 8, "soc_model": 16, "signed_pd": 20, "dlbc": 21, "arch": 24},
    "EventData": {"type": 0, "unit": 4, "value": 8, "identifier": 16},
    "DcvsV3": {"power_mode": 12, "set_bus": 32, "bus_max": 44, "set_core": 48, "core_max": 60},
    "PowerConfig": {"option": 0, "of": 4},
    "GraphInfo": {"name": 8, "num_inputs": 16, "inputs": 24, "num_outputs": 32, "outputs": 40},
    "BinaryInfoV1": {"build_id": 16, "core": 24, "backend": 36, "blob_version": 68, "graphs": 128},
    "BinaryInfoV3": {"build_id": 16, "blob_version": 56, "num_graphs": 96, "graphs": 104, "soc_model": 136},
    "Provider": {"name": 8, "api": 16},
}


@pytest.mark.parametrize("name", SIZES)
def test_size(name: str) -> None:
    assert ctypes.sizeof(struct(name)) == SIZES[name]


@pytest.mark.parametrize("name", OFFSETS)
def test_offsets(name: str) -> None:
    places = offsets(struct(name))
    assert {field: places[field] for field in OFFSETS[name]} == OFFSETS[name]


def test_slots_fill_the_documented_tables() -> None:
    for table, count in ((CORE, 71), (SYSTEM, 16), (POWER, 4)):
        assert [slot.place for slot in table.values()] == list(range(count))
        assert all(prototype(slot) for slot in table.values() if slot.arguments is not None)


@pytest.mark.parametrize(
    ("table", "name", "place"),
    [
        (CORE, "backendFree", 8),
        (CORE, "graphExecute", 21),
        (CORE, "memRegister", 35),
        (CORE, "errorGetMessage", 48),
        (CORE, "globalConfigSet", 67),
        (CORE, "contextFreeBinarySectionUpdate", 70),
        (SYSTEM, "systemContextFree", 3),
        (SYSTEM, "systemProfileFreeSerializationTarget", 15),
    ],
)
def test_places_that_a_line_too_many_would_move(table: Any, name: str, place: int) -> None:
    assert table[name].place == place


def test_a_function_that_takes_another_size_in_each_version_is_never_made() -> None:
    slot = SYSTEM["systemDlcComposeGraphs"]
    with pytest.raises(TypeError, match="size is not known"):
        prototype(slot)
    table = (ctypes.c_void_p * 16)(*[1] * 16)
    assert "systemDlcComposeGraphs" not in functions(ctypes.addressof(table), SYSTEM)


def test_functions_left_null_are_left_out() -> None:
    table = (ctypes.c_void_p * 71)()
    answer = prototype(CORE["propertyHasCapability"])(lambda key: key + 1)
    table[0] = ctypes.cast(answer, ctypes.c_void_p).value
    entries = functions(ctypes.addressof(table), CORE)
    assert list(entries) == ["propertyHasCapability"]
    assert entries["propertyHasCapability"](41) == 42


def test_tables_may_name_each_other_in_any_order() -> None:
    made = build({"Outer": "tag:u32 of:Body", "Inner": "x:u8 y:u64"}, {"Body": "inner:Inner raw:u8*3"})
    assert ctypes.sizeof(made["Outer"]) == 24


def test_pointer_list_ends_with_null() -> None:
    assert pointer_list([]) is None
    item = struct("Version")(1, 2, 3)
    listing = pointer_list([item])
    assert listing is not None
    assert list(listing) == [ctypes.addressof(item), None]
