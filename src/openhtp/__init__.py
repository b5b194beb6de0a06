"""OpenHTP: Qualcomm's QNN runtime for the HTP, open.

A user builds or imports a graph, compiles it and queues it asynchronously on an emulated HTP with priorities,
pre-emption, limited memory and a profiler. Start at ``Backend``.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from openhtp.core.dtype import DType
from openhtp.core.errors import (
    Aborted,
    BadBinary,
    BadModel,
    BadProfile,
    DeviceLost,
    ExecutionError,
    FormatError,
    InternalError,
    InvalidArgument,
    InvalidHandle,
    NameClash,
    OutOfMemory,
    QnnError,
    QueueFull,
    ResourceError,
    TimedOut,
    UnsupportedError,
    UnsupportedFeature,
    UnsupportedOp,
    UsageError,
    WrongState,
)
from openhtp.core.groups import GroupRegistration
from openhtp.core.levels import LogLevel, ProfileLevel
from openhtp.core.notify import NotifyType
from openhtp.core.priority import Priority
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.status import Status
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.version import VERSION

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    from openhtp import config as config
    from openhtp import llm as llm
    from openhtp import onnx as onnx
    from openhtp import ort as ort
    from openhtp import testing as testing
    from openhtp import zoo as zoo
    from openhtp.capi.paths import backend_path, system_path
    from openhtp.estimation import estimate
    from openhtp.hw.power import DcvsVote, HmxCorner, HmxVote, PowerMode, VoltageCorner

    # A package that can be called; a checker can have it as one of both.
    from openhtp.plan import plan as plan
    from openhtp.runtime.binaries.creation import Creation
    from openhtp.runtime.binaries.data_provider import DataRequest, DmaBufferCallback, DmaData
    from openhtp.runtime.calls.execution import Execution
    from openhtp.runtime.calls.sparse import Sparse
    from openhtp.runtime.objects.app import App
    from openhtp.runtime.objects.backend import Backend
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.device import Device
    from openhtp.runtime.objects.graph import Graph
    from openhtp.runtime.objects.log import Log
    from openhtp.runtime.objects.mem import Mem
    from openhtp.runtime.objects.power import PowerConfig
    from openhtp.runtime.objects.profile import Profile, ProfileEvent
    from openhtp.runtime.objects.profile_log import ProfileLog
    from openhtp.runtime.objects.signal import Signal
    from openhtp.runtime.objects.tensor import Tensor
    from openhtp.session import InferenceSession, ModelEvent, PendingRun, PreparedModel

__version__ = VERSION

# The package of that name has to be there before the function: importing it later would take the name.
_import_module("openhtp.trace")


def trace(path: "str | os.PathLike[str]") -> "AbstractContextManager[None]":
    """Record what all devices of this process do while the block runs, for Perfetto; also if it raises.

    See ``openhtp.tracing.trace``, which this is.
    """
    from openhtp.tracing import trace as recorded

    return recorded(path)


__all__ = [
    "Aborted",
    "App",
    "AxisScaleOffset",
    "Backend",
    "BadBinary",
    "BadModel",
    "BadProfile",
    "Context",
    "Creation",
    "DType",
    "DataRequest",
    "DcvsVote",
    "Device",
    "DeviceLost",
    "DmaBufferCallback",
    "DmaData",
    "Execution",
    "ExecutionError",
    "FormatError",
    "Graph",
    "GroupRegistration",
    "HmxCorner",
    "HmxVote",
    "InferenceSession",
    "InternalError",
    "InvalidArgument",
    "InvalidHandle",
    "Log",
    "LogLevel",
    "Mem",
    "ModelEvent",
    "NameClash",
    "NotifyType",
    "OutOfMemory",
    "PendingRun",
    "PowerConfig",
    "PowerMode",
    "PreparedModel",
    "Priority",
    "Profile",
    "ProfileEvent",
    "ProfileLevel",
    "ProfileLog",
    "QnnError",
    "QueueFull",
    "ResourceError",
    "ScaleOffset",
    "Signal",
    "Sparse",
    "Status",
    "Tensor",
    "TensorKind",
    "TensorSpec",
    "TimedOut",
    "UnsupportedError",
    "UnsupportedFeature",
    "UnsupportedOp",
    "UsageError",
    "VoltageCorner",
    "WrongState",
    "__version__",
    "backend_path",
    "estimate",
    "system_path",
    "trace",
]


# Loaded on first use, so that importing the package alone costs little more than numpy does.
_LAZY = {
    "backend_path": "openhtp.capi.paths",
    "system_path": "openhtp.capi.paths",
    "estimate": "openhtp.estimation",
    "DcvsVote": "openhtp.hw.power",
    "HmxCorner": "openhtp.hw.power",
    "HmxVote": "openhtp.hw.power",
    "PowerMode": "openhtp.hw.power",
    "VoltageCorner": "openhtp.hw.power",
    "App": "openhtp.runtime.objects.app",
    "Backend": "openhtp.runtime.objects.backend",
    "Execution": "openhtp.runtime.calls.execution",
    "Sparse": "openhtp.runtime.calls.sparse",
    "Context": "openhtp.runtime.objects.context",
    "Creation": "openhtp.runtime.binaries.creation",
    "Device": "openhtp.runtime.objects.device",
    "Graph": "openhtp.runtime.objects.graph",
    "Log": "openhtp.runtime.objects.log",
    "Mem": "openhtp.runtime.objects.mem",
    "PowerConfig": "openhtp.runtime.objects.power",
    "Profile": "openhtp.runtime.objects.profile",
    "ProfileEvent": "openhtp.runtime.objects.profile",
    "ProfileLog": "openhtp.runtime.objects.profile_log",
    "DataRequest": "openhtp.runtime.binaries.data_provider",
    "DmaBufferCallback": "openhtp.runtime.binaries.data_provider",
    "DmaData": "openhtp.runtime.binaries.data_provider",
    "Signal": "openhtp.runtime.objects.signal",
    "Tensor": "openhtp.runtime.objects.tensor",
    "InferenceSession": "openhtp.session",
    "ModelEvent": "openhtp.session",
    "PendingRun": "openhtp.session",
    "PreparedModel": "openhtp.session",
}
_LAZY_MODULES = ("config", "llm", "onnx", "ort", "plan", "sweep", "testing", "zoo")


if not TYPE_CHECKING:  # a checker that sees it takes any name for one of ours

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            found = globals()[name] = getattr(_import_module(_LAZY[name]), name)
            return found
        if name in _LAZY_MODULES:
            return _import_module(f"openhtp.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})
