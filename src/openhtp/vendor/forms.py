"""Programs as the vendor's library wants them: tensors, parameters, options and config lists."""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.abi.structs import struct
from openhtp.abi.writing import Array, Params, tensor_struct
from openhtp.core import status as st
from openhtp.core.enumerations import Priority
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import CUSTOM
from openhtp.core.precision import FloatPrecision
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.units import MIB
from openhtp.ops import op_of, resolve
from openhtp.options import GRAPH
from openhtp.program.qnn_program import QnnProgram

log = logging.getLogger(__name__)

# Options of a graph that are handed on to the library, or that do not change how it computes.
_HANDED_ON = {
    "priority",
    "vtcm_bytes",
    "vtcm_mb",
    "hvx_threads",
    "optimization_level",
    "precision",
    "core",
    "fold_relu_activation_into_conv_off",
    "short_depth_conv_on_hmx_off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryGraphOptions:
    """Options with which a graph is compiled. ``None`` leaves the library's default."""

    priority: Priority | None = None
    vtcm_mb: int | None = None
    hvx_threads: int | None = None
    optimization: int | None = None  # 1 to 3: how hard finalize tries
    float16: bool = False  # compute float32 graphs in 16 bits, the only way the HTP can
    dlbc: bool | None = None
    fold_relu_off: bool = False
    short_depth_off: bool = False


def nodes_of(program: QnnProgram) -> list[tuple[OpCall, Params]]:
    """The nodes of a program in order, with the forms and types of their parameters.

    Raises UnsupportedFeature for tensors that the library does not have.
    """
    for spec in program.tensors.values():
        _refuse_beyond_library(spec)
    calls = [program.call(node) for node in program.nodes]
    return [(call, params_of(call, program.statics)) for call in calls]


def graph_options_of(program: QnnProgram) -> LibraryGraphOptions:
    """The options of a program that the library takes. A warning names those that have no effect there."""
    chosen, level = program.options, program.options.optimization_level
    dropped = [
        row.name
        for row in GRAPH.rows
        if row.name not in _HANDED_ON and row.name in chosen and chosen[row.name] != row.default
    ]
    if dropped:
        log.warning(
            "graph %r: %s: not handed on to the vendor's library, so without effect there",
            program.name,
            ", ".join(dropped),
        )
    return LibraryGraphOptions(
        priority=chosen.priority,
        vtcm_mb=None if chosen.vtcm_bytes is None else math.ceil(chosen.vtcm_bytes / MIB),
        hvx_threads=chosen.hvx_threads,
        optimization=None if level == GRAPH.option("optimization_level").default else level,
        float16=chosen.precision is FloatPrecision.FLOAT16,
        fold_relu_off=chosen.fold_relu_activation_into_conv_off,
        short_depth_off=chosen.short_depth_conv_on_hmx_off,
    )


def _refuse_beyond_library(spec: TensorSpec) -> None:
    problem = ""
    if spec.is_dynamic:
        problem = "has dynamic dimensions"
    elif spec.sparse_elements is not None:
        problem = "is sparse"
    elif spec.kind.is_optional or spec.kind.is_updateable or spec.kind is TensorKind.APP_READWRITE:
        problem = f"is of kind {spec.kind.name}"
    if problem:
        raise UnsupportedFeature(
            f"tensor {spec.name!r} {problem}, which the vendor's library does not offer; the emulator does",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM,
        )


def params_of(call: OpCall, statics: Mapping[str, Array] | None = None) -> Params:
    """The parameters that the caller gave, and those without which the op is not defined.

    Others are left out, so that the library's own defaults hold and are part of any comparison. Raises
    UnsupportedOp or InvalidArgument for a call that our own definition refuses.
    """
    node = resolve(call, statics)
    return {
        param.name: (_finite(node.params[param.name]), param.dtype, "tensor" if param.rank else "scalar")
        for param in op_of(call).params
        if param.name in node.params and (param.name in call.params or param.mandatory)
    }


def dense_tensor(spec: TensorSpec, data: Array | None, keep: list[Any]) -> ctypes.Structure:
    """The C form of a tensor, which for this library is dense and of fixed shape."""
    if spec.is_dynamic or spec.sparse_elements is not None:
        raise UnsupportedFeature(
            f"tensor {spec.name!r} is dynamic or sparse; the vendor library's are dense and of fixed shape",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_FEATURE,
        )
    return tensor_struct(spec, data, keep)


def _finite(value: Any) -> Any:
    """The number itself; an infinite bound, as of a clamp, becomes the largest number of the type."""
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(float(np.finfo(np.float32).max), value)
    return value


def config_with(option: int, **body: Any) -> ctypes.Structure:
    """An entry of a config list: an option, and the field of its body that says which value."""
    config = struct("Config")(option=option)
    for field, value in body.items():
        setattr(config.of, field, value)
    return config  # type: ignore[no-any-return]


def custom_config(custom: ctypes.Structure, keep: list[Any]) -> ctypes.Structure:
    """The entry of a config list for an option of the HTP's own."""
    keep.append(custom)
    return config_with(CUSTOM, custom=ctypes.addressof(custom))
