"""OpenHTP: Qualcomm's QNN runtime for the HTP, open.

A user builds or imports a graph, compiles it and queues it asynchronously on an emulated HTP with priorities,
pre-emption, limited memory and a profiler. Start at ``Backend``.
"""

from openhtp.core.dtype import DType
from openhtp.core.errors import (
    Aborted,
    BadBinary,
    BadModel,
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
from openhtp.core.levels import LogLevel, ProfileLevel
from openhtp.core.priority import Priority
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.status import Status
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.version import VERSION
from openhtp.runtime.app import App
from openhtp.runtime.backend import Backend
from openhtp.runtime.context import Context
from openhtp.runtime.device import Device
from openhtp.runtime.execution import Execution
from openhtp.runtime.graph import Graph
from openhtp.runtime.log import Log
from openhtp.runtime.mem import Mem
from openhtp.runtime.profile import Profile, ProfileEvent
from openhtp.runtime.signal import Signal
from openhtp.runtime.sparse import Sparse
from openhtp.runtime.tensor import Tensor

__version__ = VERSION

__all__ = [
    "Aborted",
    "App",
    "AxisScaleOffset",
    "Backend",
    "BadBinary",
    "BadModel",
    "Context",
    "DType",
    "Device",
    "DeviceLost",
    "Execution",
    "ExecutionError",
    "FormatError",
    "Graph",
    "InferenceSession",
    "InternalError",
    "InvalidArgument",
    "InvalidHandle",
    "Log",
    "LogLevel",
    "Mem",
    "NameClash",
    "OutOfMemory",
    "Priority",
    "Profile",
    "ProfileEvent",
    "ProfileLevel",
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
    "WrongState",
    "__version__",
    "estimate",
]


def __getattr__(name: str) -> object:
    """Load on first use what not every program needs: the planner, and what brings in onnx and onnxruntime."""
    if name == "InferenceSession":
        from openhtp.session import InferenceSession

        return InferenceSession
    if name == "estimate":
        from openhtp.estimation import estimate

        return estimate
    if name in ("onnx", "plan", "sweep", "testing", "zoo"):
        from importlib import import_module

        return import_module(f"openhtp.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
