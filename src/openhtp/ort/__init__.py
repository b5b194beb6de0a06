"""ONNX Runtime's Python interface with the emulated HTP behind it: ``import openhtp.ort as ort``.

Sessions, values and bindings are OpenHTP's; options and enumerations are ONNX Runtime's own, so that what was made
with them for one works with the other.
"""

from __future__ import annotations

from openhtp.engine.onnxruntime import onnxruntime as _runtime
from openhtp.session import InferenceSession, IOBinding, ModelMetadata, NodeArg, OrtValue, PendingRun
from openhtp.session.ep_devices import (
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtHardwareDevice,
    get_ep_devices,
)
from openhtp.session.options import CPU as _CPU, QNN as _QNN
from openhtp.session.session_options import RunOptions, SessionOptions

__all__ = [
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpDevice",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtValue",
    "PendingRun",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "__version__",
    "create_and_register_allocator",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

__version__: str = _runtime.__version__

AdapterFormat = _runtime.AdapterFormat
ExecutionMode = _runtime.ExecutionMode
ExecutionOrder = _runtime.ExecutionOrder
GraphOptimizationLevel = _runtime.GraphOptimizationLevel
LoraAdapter = _runtime.LoraAdapter
OrtAllocatorType = _runtime.OrtAllocatorType
OrtArenaCfg = _runtime.OrtArenaCfg
OrtDevice = _runtime.OrtDevice
OrtDeviceMemoryType = _runtime.OrtDeviceMemoryType
OrtDeviceVendorId = _runtime.OrtDeviceVendorId
OrtMemoryInfoDeviceType = _runtime.OrtMemoryInfoDeviceType
OrtHardwareDeviceType = _runtime.OrtHardwareDeviceType
OrtMemType = _runtime.OrtMemType
OrtMemoryInfo = _runtime.OrtMemoryInfo
OrtSparseFormat = _runtime.OrtSparseFormat
SparseTensor = _runtime.SparseTensor
create_and_register_allocator = _runtime.create_and_register_allocator
disable_telemetry_events = _runtime.disable_telemetry_events
enable_telemetry_events = _runtime.enable_telemetry_events
get_build_info = _runtime.get_build_info
get_version_string = _runtime.get_version_string
set_default_logger_severity = _runtime.set_default_logger_severity
set_default_logger_verbosity = _runtime.set_default_logger_verbosity
set_seed = _runtime.set_seed


def get_available_providers() -> list[str]:
    """The providers that a session can have, the preferred one first."""
    return [_QNN, _CPU]


def get_all_providers() -> list[str]:
    """The providers of ``get_available_providers``: all that exist here are available."""
    return get_available_providers()


def get_device() -> str:
    """What ONNX Runtime says where the QNN provider is built in."""
    return "CPU-QNN"
