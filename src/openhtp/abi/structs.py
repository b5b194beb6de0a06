"""The structures of the C interface that we use, and no others.

Written from the documented names and layouts; enumerations are 32 bits and kept unsigned. Versioned structures
start with ``version`` and then have the body of the latest version inline, because earlier bodies start with the
same fields. A ``pad`` stands where a body that C would align to 8 bytes follows a 4-byte tag.

Each is one line of text, ``"field:type field:type*3"``; a type is one of the words below or the name of another
structure. Text keeps a layout readable beside the numbers that ``tests/abi/test_layout.py`` holds it to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

PLAIN: dict[str, Any] = {
    "u8": ctypes.c_uint8,
    "u32": ctypes.c_uint32,
    "i32": ctypes.c_int32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    # Pointers are plain addresses: the owner of what they point at is always held by Python next to them.
    "ptr": ctypes.c_void_p,
    # Read-only strings that the library owns; reading one gives bytes or None.
    "str": ctypes.c_char_p,
}

Struct = ctypes.Structure
StructType = type[ctypes.Structure]


def build(structs: Mapping[str, str], unions: Mapping[str, str]) -> dict[str, Any]:
    """Make the ctypes classes of a set of layouts.

    ``unions`` holds the variants of tagged unions. Either table may name what the other defines, in any
    order: a class is made when it is first needed.
    """
    classes: dict[str, Any] = {}

    def type_of(word: str) -> Any:
        word, _, count = word.partition("*")
        if word in PLAIN:
            base = PLAIN[word]
        elif word in classes:
            base = classes[word]
        else:
            is_union = word in unions
            line = unions[word] if is_union else structs[word]
            parent = ctypes.Union if is_union else ctypes.Structure
            base = type(word, (parent,), {"_fields_": [(name, type_of(kind)) for name, kind in _fields(line)]})
            classes[word] = base
        return base * int(count) if count else base

    for name in [*structs, *unions]:
        type_of(name)
    return classes


def _fields(line: str) -> Iterator[tuple[str, str]]:
    for part in line.split():
        name, _, kind = part.partition(":")
        yield name, kind


def offsets(struct: StructType) -> dict[str, int]:
    """Byte offset of every field, for layout tests."""
    return {field[0]: getattr(struct, field[0]).offset for field in struct._fields_}


_STRUCTS = {
    "Version": "major:u32 minor:u32 patch:u32",
    "ApiVersion": "core:Version backend:Version",
    # Tensors and operations
    "Scalar": "data_type:u32 raw:Raw8",
    "ScaleOffset": "scale:f32 offset:i32",
    "BwScaleOffset": "bitwidth:u32 scale:f32 offset:i32",
    "AxisScaleOffset": "axis:i32 count:u32 scale_offsets:ptr",
    "BwAxisScaleOffset": "bitwidth:u32 axis:i32 count:u32 scales:ptr offsets:ptr",
    "BlockwiseExpansion": "axis:i32 scale_offsets:ptr blocks:u32 scale_bits:u32 storage:u32 numbers:ptr",
    "QuantizeParams": "definition:u32 encoding:u32 of:EncodingBody",
    "ClientBuffer": "data:ptr size:u32",
    "Tensor": "version:u32 pad:u32 id:u32 name:ptr kind:u32 data_format:u32 data_type:u32 "
    "quant:QuantizeParams rank:u32 dims:ptr mem_type:u32 buffer:ClientBuffer "
    "dynamic:ptr sparse:SparseParams produced:u8",
    "SparseParams": "layout:u32 elements:u32 dimensions:u32",
    "Param": "kind:u32 name:ptr of:ParamBody",
    "OpConfig": "version:u32 name:ptr package:ptr type:ptr num_params:u32 params:ptr num_inputs:u32 "
    "inputs:ptr num_outputs:u32 outputs:ptr",
    "OperationName": "package:str name:str target:str",
    # By value in calls
    "BinaryBuffer": "data:ptr size:u64",
    "ContextBuffer": "version:u32 pad:u32 mem_type:u32 buffer:BinaryBuffer",
    "SerializationTarget": "kind:u32 file:str folder:str",
    "DataRequest": "offset:u64 size:u64 mapped:u8",
    "DmaDataMem": "dma:DmaBuffer size:u64",
    # Weights in a client's buffers
    "DmaDataResponse": "dma:DmaBuffer start:u64 aligned_size:u64",
    "BinaryCallback": "kind:u32 pad:u32 version:u32 provide:ptr release:ptr param:ptr",
    # Configurations
    "Config": "option:u32 of:ConfigBody",
    "SignedPd": "device_id:u32 flag:u8",
    "GlobalConfig": "option:u32 soc_model:u32",
    "QueueDepth": "kind:u32 depth:u32",
    "HtpContextConfig": "option:u32 of:HtpContextBody",
    "HtpGraphConfig": "option:u32 of:HtpGraphBody",
    "OptimizationOption": "type:u32 value:f32",
    "HtpContextProperty": "option:u32 value:u64",
    "MinimumArch": "device_id:u32 arch:u32",
    "HtpDeviceConfigOld": "option:u32 of:HtpDeviceBody",
    "HtpDeviceConfig": "option:u32 pad:u32 of:HtpDeviceBody",
    # Platform
    "HardwareDeviceInfo": "version:u32 pad:u32 device_id:u32 device_type:u32 num_cores:u32 "
    "cores:ptr extension:ptr",
    "CoreInfo": "version:u32 pad:u32 core_id:u32 core_type:u32 extension:ptr",
    "PlatformInfo": "version:u32 pad:u32 count:u32 devices:ptr",
    "HtpDeviceInfo": "kind:u32 vtcm_mb:u64 soc_model:u32 signed_pd:u8 dlbc:u8 arch:u32",
    # Profiling
    "EventData": "type:u32 unit:u32 value:u64 identifier:str",
    "ExtendedEventData": "version:u32 pad:u32 type:u32 unit:u32 value:Scalar room:u64 timestamp:u64 "
    "identifier:str",
    "ProfileEvent": "kind:u32 of:ProfileEventBody sub_events:ptr num_sub_events:u32",
    "ProfileData": "version:u32 start_us:u64 stop_us:u64 start_mem:u64 stop_mem:u64 method:u32 visibility:u32 "
    "graph:ptr events:ptr num_events:u32",
    # Memory
    "MemoryDescriptor": "num_dims:u32 dims:ptr shape_config:ptr data_type:u32 mem_type:u32 of:MemoryBody",
    "DmaBuffer": "fd:i32 data:ptr",
    "HtpMemory": "kind:u32 size:u64 of:HtpMemoryBody",
    "SharedBufferPlace": "fd:i32 offset:u64",
    # Power
    "Infrastructure": "kind:u32 create_id:ptr destroy_id:ptr set_power:ptr set_memory:ptr",
    "DcvsV3": "context_id:u32 set_dcvs_enable:u32 dcvs_enable:u32 power_mode:u32 set_sleep_latency:u32"
    " sleep_latency:u32 set_sleep_disable:u32 sleep_disable:u32"
    " set_bus:u32 bus_min:u32 bus_target:u32 bus_max:u32"
    " set_core:u32 core_min:u32 core_target:u32 core_max:u32",
    "HmxV2": "pick_default:u32 min:u32 target:u32 max:u32 level:u32",
    "PowerConfig": "option:u32 of:PowerBody",
    # Context binaries (libQnnSystem)
    "GraphInfo": "version:u32 name:str num_inputs:u32 inputs:ptr num_outputs:u32 outputs:ptr "
    "num_updateable:u32 updateable:ptr blob_size:u32 blob:ptr first_op:u32 last_op:u32",
    # The fields of its first version, then those of the second.
    "GraphBlobInfo": "version:u32 spill_fill:u64 vtcm:u32 optimization:u32 dlbc:u8 hvx_threads:u64"
    " second_version:u64 native_k:u64 native_v:u64 safe_io:u64 io:u64 op_data:u64 constants:u64 ddr:u64"
    " shared_weights:u64",
    "ContextParams": "version:u32 config:ptr binary:ptr size:u64 profile:ptr notify:ptr notify_param:ptr",
    "BinaryInfoV1": "version:u32 pad:u32 backend_id:u32 build_id:str core:Version backend:Version "
    "soc_version:str hw_blob_version:Version blob_version:Version hw_blob_size:u32 hw_blob:ptr blob_size:u64"
    " num_context_tensors:u32 context_tensors:ptr num_graphs:u32 graphs:ptr",
    "BinaryInfoV3": "version:u32 pad:u32 backend_id:u32 build_id:str core:Version backend:Version "
    "soc_version:str blob_version:Version blob_size:u64 num_context_tensors:u32 context_tensors:ptr"
    " num_graphs:u32 graphs:ptr platform:ptr metadata_size:u32 metadata:ptr soc_model:u32",
    # Op packages, whose operators are of the CPU kind
    "OpPackageInfo": "name:ptr operations:ptr operation_info:ptr num_operations:u32 optimizations:ptr"
    " num_optimizations:u32 build_id:ptr api:ptr package_info:ptr opset:ptr reserved:u64*12",
    "OpPackageV1": "init:ptr terminate:ptr get_info:ptr validate:ptr create_op:ptr free_op:ptr log_initialize:ptr"
    " log_set_level:ptr log_terminate:ptr",
    "OpPackageV2": "create:ptr get_info:ptr validate:ptr create_op:ptr free_op:ptr log_set_level:ptr free:ptr",
    "OpPackageInterface": "version:Version of:OpPackageBody",
    "CpuTensor": "data_format:u32 data_type:u32 rank:u32 max_dims:ptr dims:ptr data:ptr quant:QuantizeParams",
    "CpuParam": "kind:u32 name:ptr of:CpuParamBody",
    "CpuNode": "name:ptr package:ptr type:ptr num_params:u32 params:ptr num_inputs:u32 inputs:ptr"
    " num_outputs:u32 outputs:ptr",
    "CpuOpImpl": "function:ptr user_data:ptr",
    # Providers: the function table follows directly.
    "Provider": "backend_id:u32 name:str api:ApiVersion",
    "SystemProvider": "backend_id:u32 name:str api:Version",
}

_UNIONS = {
    "Raw8": "bytes:u8*8 align:u64",
    "EncodingBody": "scale_offset:ScaleOffset axis:AxisScaleOffset bw:BwScaleOffset bw_axis:BwAxisScaleOffset"
    " expansion:ptr",
    "ParamBody": "scalar:Scalar tensor:Tensor",
    "ConfigBody": "custom:ptr number:u32 number64:u64 flag:u8 queue_depth:QueueDepth names:ptr",
    "ProfileEventBody": "plain:EventData extended:ExtendedEventData",
    "MemoryBody": "fd:i32 custom:ptr dma:DmaBuffer",
    "HtpMemoryBody": "address:u32 place:SharedBufferPlace",
    "HtpContextBody": "flag:u8 number:u64 group:u64*2",
    "HtpGraphBody": "optimization:OptimizationOption number32:u32 number64:u64 flag:u8 room:u64*6",
    "HtpDeviceBody": "soc_model:u32 arch:MinimumArch",
    "OpPackageBody": "v1:OpPackageV1 v2:OpPackageV2",
    "CpuParamBody": "number:f64 text:ptr tensor:ptr",
    "PowerBody": "dcvs:DcvsV3 hmx:HmxV2 number:u32",
}

_MADE = build(_STRUCTS, _UNIONS)


def struct(name: str) -> Any:
    """The ctypes class of a structure, by the name used in the table."""
    return _MADE[name]


def pointer_list(items: list[Struct]) -> ctypes.Array[ctypes.c_void_p] | None:
    """A NULL-terminated array of addresses, as every config list of the API is; None for no items.

    The caller keeps ``items`` alive while the library reads the list.
    """
    if not items:
        return None
    return (ctypes.c_void_p * (len(items) + 1))(*[ctypes.addressof(item) for item in items], None)
