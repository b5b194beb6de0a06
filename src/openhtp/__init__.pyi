"""Public names and the modules that define them: type checkers read this file, and so does ``__init__.py``."""

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

__version__: str
