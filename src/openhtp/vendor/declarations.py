"""The structures and numbers of the C interface that we use, and no others.

Written from the documented names and layouts; enumerations are 32 bits and kept unsigned. Versioned
structures start with ``version`` and then have the body inline, because only version 1 bodies are ever
written and later bodies start with the same fields. A ``pad`` stands where a body that C would align to 8
bytes follows a 4-byte tag.
"""

from __future__ import annotations

import enum
from typing import Any

from openhtp.vendor.layout import build

_STRUCTS = {
    "Version": "major:u32 minor:u32 patch:u32",
    "ApiVersion": "core:Version backend:Version",
    # Tensors and operations
    "Scalar": "data_type:u32 raw:Raw8",
    "ScaleOffset": "scale:f32 offset:i32",
    "BwScaleOffset": "bitwidth:u32 scale:f32 offset:i32",
    "AxisScaleOffset": "axis:i32 count:u32 scale_offsets:ptr",
    "BwAxisScaleOffset": "bitwidth:u32 axis:i32 count:u32 scales:ptr offsets:ptr",
    "QuantizeParams": "definition:u32 encoding:u32 of:EncodingBody",
    "ClientBuffer": "data:ptr size:u32",
    "Tensor": "version:u32 pad:u32 id:u32 name:ptr kind:u32 data_format:u32 data_type:u32 "
    "quant:QuantizeParams rank:u32 dims:ptr mem_type:u32 buffer:ClientBuffer later:u64*3",
    "Param": "kind:u32 name:ptr of:ParamBody",
    "OpConfig": "version:u32 name:ptr package:ptr type:ptr num_params:u32 params:ptr num_inputs:u32 "
    "inputs:ptr num_outputs:u32 outputs:ptr",
    "OperationName": "package:str name:str target:str",
    # Configurations
    "Config": "option:u32 of:ConfigBody",
    "GlobalConfig": "option:u32 soc_model:u32",
    "QueueDepth": "kind:u32 depth:u32",
    "HtpContextConfig": "option:u32 of:HtpContextBody",
    "HtpGraphConfig": "option:u32 of:HtpGraphBody",
    "OptimizationOption": "type:u32 value:f32",
    "MinimumArch": "device_id:u32 arch:u32",
    "HtpDeviceConfigOld": "option:u32 of:HtpDeviceBody",
    "HtpDeviceConfig": "option:u32 pad:u32 of:HtpDeviceBody",
    # Platform
    "HardwareDeviceInfo": "version:u32 pad:u32 device_id:u32 device_type:u32 num_cores:u32 "
    "cores:ptr extension:ptr",
    "PlatformInfo": "version:u32 pad:u32 count:u32 devices:ptr",
    "HtpDeviceInfo": "kind:u32 vtcm_mb:u64 soc_model:u32 signed_pd:u8 dlbc:u8 arch:u32",
    # Profiling
    "EventData": "type:u32 unit:u32 value:u64 identifier:str",
    # Power
    "Infrastructure": "kind:u32 create_id:ptr destroy_id:ptr set_power:ptr set_memory:ptr",
    "DcvsV3": "context_id:u32 set_dcvs_enable:u32 dcvs_enable:u32 power_mode:u32 set_sleep_latency:u32"
    " sleep_latency:u32 set_sleep_disable:u32 sleep_disable:u32"
    " set_bus:u32 bus_min:u32 bus_target:u32 bus_max:u32"
    " set_core:u32 core_min:u32 core_target:u32 core_max:u32",
    "PowerConfig": "option:u32 of:PowerBody",
    # Context binaries (libQnnSystem)
    "GraphInfo": "version:u32 name:str num_inputs:u32 inputs:ptr num_outputs:u32 outputs:ptr later:u64*5",
    "BinaryInfoV1": "version:u32 pad:u32 backend_id:u32 build_id:str core:Version backend:Version "
    "soc_version:str hw_blob_version:Version blob_version:Version hw_blob_size:u32 hw_blob:ptr blob_size:u64"
    " num_context_tensors:u32 context_tensors:ptr num_graphs:u32 graphs:ptr",
    "BinaryInfoV3": "version:u32 pad:u32 backend_id:u32 build_id:str core:Version backend:Version "
    "soc_version:str blob_version:Version blob_size:u64 num_context_tensors:u32 context_tensors:ptr"
    " num_graphs:u32 graphs:ptr platform:ptr metadata_size:u32 metadata:ptr soc_model:u32",
    # Providers: the function table follows directly.
    "Provider": "backend_id:u32 name:str api:ApiVersion",
    "SystemProvider": "backend_id:u32 name:str api:Version",
}

_UNIONS = {
    "Raw8": "bytes:u8*8 align:u64",
    "EncodingBody": "scale_offset:ScaleOffset axis:AxisScaleOffset bw:BwScaleOffset bw_axis:BwAxisScaleOffset",
    "ParamBody": "scalar:Scalar tensor:Tensor",
    "ConfigBody": "custom:ptr number:u32 queue_depth:QueueDepth names:ptr",
    "HtpContextBody": "flag:u8 number:u64 group:u64*2",
    "HtpGraphBody": "optimization:OptimizationOption number32:u32 number64:u64 flag:u8 room:u64*6",
    "HtpDeviceBody": "soc_model:u32 arch:MinimumArch",
    "PowerBody": "dcvs:DcvsV3 number:u32",
}

_MADE = build(_STRUCTS, _UNIONS)


def struct(name: str) -> Any:
    """The ctypes class of a structure, by the name used in the table."""
    return _MADE[name]


UNDEFINED = 0x7FFFFFFF
VERSION_1 = 1
BACKEND_ID_HTP = 6

DEFINED = 1  # encodingDefinition: the client gives the encoding


class EncodingKind(enum.IntEnum):
    """Which variant of the quantization parameters is filled in."""

    SCALE_OFFSET = 0
    AXIS_SCALE_OFFSET = 1
    BW_SCALE_OFFSET = 2
    BW_AXIS_SCALE_OFFSET = 3


class ParamKind(enum.IntEnum):
    """Form of an operation's parameter."""

    SCALAR = 0
    TENSOR = 1


CUSTOM = 0  # every config list's option that carries a backend's own structure


class ContextOption(enum.IntEnum):
    """Options of a context's config list."""

    PRIORITY = 1
    QUEUE_DEPTH = 4
    ENABLE_GRAPHS = 5


class HtpContextOption(enum.IntEnum):
    """HTP's own context options."""

    WEIGHT_SHARING = 1


GRAPH_OPTION_PRIORITY = 3


class HtpGraphOption(enum.IntEnum):
    """HTP's own graph options."""

    OPTIMIZATION = 1
    PRECISION = 2
    VTCM_SIZE_IN_MB = 3
    NUM_HVX_THREADS = 6


class Optimization(enum.IntEnum):
    """Kinds of ``HtpGraphOption.OPTIMIZATION``."""

    FINALIZE_FLAG = 3
    DLBC = 4


PRECISION_FLOAT16 = 1


class HtpDeviceOption(enum.IntEnum):
    """HTP's own device options."""

    SOC = 0
    ARCH = 1


GLOBAL_OPTION_SOC_MODEL = 0


class LogLevel(enum.IntEnum):
    """How much the library says."""

    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4
    DEBUG = 5


class ProfileLevel(enum.IntEnum):
    """How much a profile records."""

    BASIC = 1
    DETAILED = 2
    LINTING = 7001


class PowerMode(enum.IntEnum):
    """What DCVS may do between the voted corners."""

    ADJUST_UP_DOWN = 1
    ADJUST_ONLY_UP = 2
    POWER_SAVER = 4
    POWER_SAVER_AGGRESSIVE = 8
    PERFORMANCE = 16
    DUTY_CYCLE = 32


class VoltageCorner(enum.IntEnum):
    """Corners that a DCVS vote names."""

    DISABLE = 16
    MIN = 32
    SVS2 = 48
    SVS = 64
    SVS_PLUS = 80
    NOM = 96
    NOM_PLUS = 112
    TURBO = 128
    TURBO_PLUS = 144
    TURBO_L2 = 146
    TURBO_L3 = 147
    MAX = 160


class PowerOption(enum.IntEnum):
    """Kinds of power vote."""

    DCVS_V3 = 1
    RPC_CONTROL_LATENCY = 2
    RPC_POLLING_TIME = 3
