"""Numbers that tell what a structure holds: versions, forms and encodings. Enumerations are 32 bits, unsigned."""

from __future__ import annotations

import enum

LIBRARY_NAME = "libQnnHtp.so"
SYSTEM_NAME = "libQnnSystem.so"
SAVER_NAME = "libQnnSaver.so"
"""What clients look for, the second beside the first; the third is a first one that records."""

UNDEFINED = 0x7FFFFFFF
VERSION_1 = 1
VERSION_2 = 2
BACKEND_ID_HTP = 6

SPARSE_FORMAT = 1
"""The data format of a tensor that says how many of its elements are specified."""

DEFINED = 1
"""Of an encoding: the client gives it."""


class EncodingKind(enum.IntEnum):
    """Which variant of the quantization parameters is filled in."""

    SCALE_OFFSET = 0
    AXIS_SCALE_OFFSET = 1
    BW_SCALE_OFFSET = 2
    BW_AXIS_SCALE_OFFSET = 3
    BLOCKWISE_EXPANSION = 5


class ParamKind(enum.IntEnum):
    """Form of an operation's parameter."""

    SCALAR = 0
    TENSOR = 1


class MemoryKind(enum.IntEnum):
    """Where a tensor's data lie: at an address of the client's, or in memory that was registered."""

    RAW = 0
    HANDLE = 1


class SparseKind(enum.IntEnum):
    """How a sparse tensor is laid out."""

    HYBRID_COO = 0
