"""The numbers that options have in the API's configuration lists, one enumeration per list.

A list's own option ``CUSTOM`` carries a structure of the backend; the HTP's options are numbered apart from it.
"""

from __future__ import annotations

import enum

CUSTOM = 0


class BackendOption(enum.IntEnum):
    """Options of a backend."""

    ERROR_REPORTING = 1
    PLATFORM = 2


class DeviceOption(enum.IntEnum):
    """Options of a device."""

    PLATFORM_INFO = 1


class HtpDeviceOption(enum.IntEnum):
    """HTP's own device options."""

    SOC = 0
    ARCH = 1
    SIGNED_PD = 2
    SECURE_PD = 3


class ContextOption(enum.IntEnum):
    """Options of a context."""

    PRIORITY = 1
    ERROR_REPORTING = 2
    OEM_STRING = 3
    QUEUE_DEPTH = 4
    ENABLE_GRAPHS = 5
    MEMORY_LIMIT_HINT = 6
    PERSISTENT_BINARY = 7
    BINARY_COMPATIBILITY = 8
    DEFER_GRAPH_INIT = 9
    GRAPH_RETENTION_ORDER = 10


class HtpContextOption(enum.IntEnum):
    """HTP's own context options."""

    WEIGHT_SHARING = 1
    REGISTER_MULTI_CONTEXTS = 2
    FILE_READ_MEMORY_BUDGET = 3
    DSP_MEMORY_PROFILING = 4
    SHARE_RESOURCES = 5
    IO_MEM_ESTIMATION = 6
    PREPARE_ONLY = 7
    INIT_ACCELERATION = 8
    SKIP_VALIDATION_ON_BINARY_SECTION = 9
    SHARE_RESOURCES_OPTIMIZATION = 10
    USE_EXTENDED_UDMA = 11
    REGISTER_CONCURRENT_RESOURCE_SHARING = 12
    LORA_WEIGHT_SHARING = 13


class GraphOption(enum.IntEnum):
    """Options of a graph."""

    PRIORITY = 3
    PROFILE_HANDLE = 4
    PROFILING_STATE = 5
    PROFILING_NUM_EXECUTIONS = 6
    BINARY_SECTION_WEIGHTS_UPDATES = 7


class HtpGraphOption(enum.IntEnum):
    """HTP's own graph options."""

    OPTIMIZATION = 1
    PRECISION = 2
    VTCM_SIZE_IN_MB = 3
    FOLD_RELU_INTO_CONV_OFF = 4
    SHORT_DEPTH_CONV_ON_HMX_OFF = 5
    NUM_HVX_THREADS = 6
    FINALIZE_CONFIG = 7
    NUM_CORES = 8
    PARALLEL_GRAPH_EXECUTION = 9
    VTCM_SIZE_IN_BYTES = 10
    HMX_BOUNDING = 11
    WEIGHTS_PACKING = 12
    ASSUME_SAME_QUANT = 13
    SHARE_IO_BUFFER = 14
    ADVANCED_ACTIVATION_FUSION = 15
    HIGH_PRECISION_SIGMOID = 16
    MONOLITHIC_LSTM = 17


class Optimization(enum.IntEnum):
    """Kinds of ``HtpGraphOption.OPTIMIZATION``."""

    SCHEDULE_THRESHOLD = 1
    FINALIZE_RETRIES = 2
    FINALIZE_FLAG = 3
    DLBC = 4
    DLBC_WEIGHTS = 5
    SPARSE_WEIGHTS_COMPRESSION = 6
    SLC_ALLOCATOR = 7


class PrecisionNumber(enum.IntEnum):
    """Values of ``HtpGraphOption.PRECISION``."""

    FLOAT32 = 0
    FLOAT16 = 1


class SignalOption(enum.IntEnum):
    """Options of a signal."""

    ABORT = 1
    TIMEOUT = 2


class ProfileOption(enum.IntEnum):
    """Options of a profile."""

    MAX_EVENTS = 1
    ENABLE_OPTRACE = 2


class GlobalOption(enum.IntEnum):
    """Options of a whole process."""

    SOC_MODEL = 0


class HtpContextProperty(enum.IntEnum):
    """What can be asked of a context."""

    BUFFER_START_ALIGNMENT = 1
    MAX_SPILLFILL_BUFFER_SIZE = 2
    WEIGHTS_BUFFER_SIZE = 3


class PowerOption(enum.IntEnum):
    """Kinds of power vote."""

    DCVS_V3 = 1
    RPC_CONTROL_LATENCY = 2
    RPC_POLLING_TIME = 3
    HMX_TIMEOUT_INTERVAL_US = 4
    HMX_V2 = 5
    ADAPTIVE_POLLING_TIME = 6
    DDR_PERF_MODE = 7
