"""OpenHTP: Qualcomm's QNN runtime for the HTP, open.

A user builds or imports a graph, compiles it and queues it asynchronously on an emulated HTP with priorities,
pre-emption, limited memory and a profiler. Start at ``Backend``.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from openhtp.core.version import VERSION

__version__ = VERSION

# Public names and the modules that define them. A module is imported when one of its names is first used, so
# importing the package alone costs next to nothing.
_NAMES_OF = {
    "openhtp.capi.identity": ("backend_path", "system_path"),
    "openhtp.core.dtype": ("DType",),
    "openhtp.core.errors": (
        "Aborted",
        "BadBinary",
        "BadModel",
        "BadProfile",
        "DeviceLost",
        "ExecutionError",
        "FormatError",
        "InternalError",
        "InvalidArgument",
        "InvalidHandle",
        "NameClash",
        "OutOfMemory",
        "QnnError",
        "QueueFull",
        "ResourceError",
        "TimedOut",
        "UnsupportedError",
        "UnsupportedFeature",
        "UnsupportedOp",
        "UsageError",
        "WrongState",
    ),
    "openhtp.core.value_kinds": ("GroupRegistration",),
    "openhtp.core.enumerations": ("LogLevel", "NotifyType", "Priority", "ProfileLevel"),
    "openhtp.core.quant": ("AxisScaleOffset", "ScaleOffset"),
    "openhtp.core.status": ("Status",),
    "openhtp.core.tensor": ("TensorKind", "TensorSpec"),
    "openhtp.estimation": ("estimate",),
    "openhtp.hw.power": ("DcvsVote", "HmxCorner", "HmxVote", "PowerMode", "VoltageCorner"),
    "openhtp.ops": ("Work",),
    "openhtp.ops._packages": ("OpPackage", "Operator"),
    "openhtp.planning": ("plan",),
    "openhtp.runtime.binaries.creation": ("Creation",),
    "openhtp.runtime.binaries.data_provider": ("DataRequest", "DmaBufferCallback", "DmaData"),
    "openhtp.runtime.calls.execution": ("Execution",),
    "openhtp.runtime.calls.arguments": ("Sparse",),
    "openhtp.runtime.objects.app": ("App",),
    "openhtp.runtime.objects.backend": ("Backend",),
    "openhtp.runtime.objects.context": ("Context",),
    "openhtp.runtime.objects.device": ("Device",),
    "openhtp.runtime.objects.graph": ("Graph",),
    "openhtp.runtime.objects.log": ("Log",),
    "openhtp.runtime.objects.mem": ("Mem",),
    "openhtp.runtime.objects.power": ("PowerConfig",),
    "openhtp.runtime.objects.profile": ("Profile", "ProfileEvent", "ProfileLog"),
    "openhtp.runtime.objects.signal": ("Signal",),
    "openhtp.runtime.objects.tensor": ("Tensor",),
    "openhtp.session": ("InferenceSession", "ModelEvent", "PendingRun", "PreparedModel"),
    "openhtp.sweeping": ("sweep",),
    "openhtp.tracing": ("trace",),
}
# Packages that are reached as attributes: ``openhtp.onnx.load``.
_PACKAGES = ("config", "genie", "llm", "onnx", "ort", "testing", "zoo")

_HOME_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted((*_HOME_OF, "__version__"))  # noqa: PLE0605

if TYPE_CHECKING:  # the same names for type checkers; a test compares
    from openhtp import (
        config as config,
        genie as genie,
        llm as llm,
        onnx as onnx,
        ort as ort,
        testing as testing,
        zoo as zoo,
    )
    from openhtp.capi.identity import backend_path as backend_path, system_path as system_path
    from openhtp.core.dtype import DType as DType
    from openhtp.core.enumerations import (
        LogLevel as LogLevel,
        NotifyType as NotifyType,
        Priority as Priority,
        ProfileLevel as ProfileLevel,
    )
    from openhtp.core.errors import (
        Aborted as Aborted,
        BadBinary as BadBinary,
        BadModel as BadModel,
        BadProfile as BadProfile,
        DeviceLost as DeviceLost,
        ExecutionError as ExecutionError,
        FormatError as FormatError,
        InternalError as InternalError,
        InvalidArgument as InvalidArgument,
        InvalidHandle as InvalidHandle,
        NameClash as NameClash,
        OutOfMemory as OutOfMemory,
        QnnError as QnnError,
        QueueFull as QueueFull,
        ResourceError as ResourceError,
        TimedOut as TimedOut,
        UnsupportedError as UnsupportedError,
        UnsupportedFeature as UnsupportedFeature,
        UnsupportedOp as UnsupportedOp,
        UsageError as UsageError,
        WrongState as WrongState,
    )
    from openhtp.core.quant import AxisScaleOffset as AxisScaleOffset, ScaleOffset as ScaleOffset
    from openhtp.core.status import Status as Status
    from openhtp.core.tensor import TensorKind as TensorKind, TensorSpec as TensorSpec
    from openhtp.core.value_kinds import GroupRegistration as GroupRegistration
    from openhtp.estimation import estimate as estimate
    from openhtp.hw.power import (
        DcvsVote as DcvsVote,
        HmxCorner as HmxCorner,
        HmxVote as HmxVote,
        PowerMode as PowerMode,
        VoltageCorner as VoltageCorner,
    )
    from openhtp.ops import Work as Work
    from openhtp.ops._packages import Operator as Operator, OpPackage as OpPackage
    from openhtp.planning import plan as plan
    from openhtp.runtime.binaries.creation import Creation as Creation
    from openhtp.runtime.binaries.data_provider import (
        DataRequest as DataRequest,
        DmaBufferCallback as DmaBufferCallback,
        DmaData as DmaData,
    )
    from openhtp.runtime.calls.arguments import Sparse as Sparse
    from openhtp.runtime.calls.execution import Execution as Execution
    from openhtp.runtime.objects.app import App as App
    from openhtp.runtime.objects.backend import Backend as Backend
    from openhtp.runtime.objects.context import Context as Context
    from openhtp.runtime.objects.device import Device as Device
    from openhtp.runtime.objects.graph import Graph as Graph
    from openhtp.runtime.objects.log import Log as Log
    from openhtp.runtime.objects.mem import Mem as Mem
    from openhtp.runtime.objects.power import PowerConfig as PowerConfig
    from openhtp.runtime.objects.profile import (
        Profile as Profile,
        ProfileEvent as ProfileEvent,
        ProfileLog as ProfileLog,
    )
    from openhtp.runtime.objects.signal import Signal as Signal
    from openhtp.runtime.objects.tensor import Tensor as Tensor
    from openhtp.session import (
        InferenceSession as InferenceSession,
        ModelEvent as ModelEvent,
        PendingRun as PendingRun,
        PreparedModel as PreparedModel,
    )
    from openhtp.sweeping import sweep as sweep
    from openhtp.tracing import trace as trace

else:  # a checker that saw this function would accept any name

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            value = globals()[name] = getattr(_import_module(_HOME_OF[name]), name)
            return value
        if name in _PACKAGES:
            return _import_module(f"openhtp.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *_PACKAGES})
