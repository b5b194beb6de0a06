"""Normalizations and softmaxes."""

from __future__ import annotations

import functools
import math

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import encodings, values as vs
from openhtp.frontend.model import Array
from openhtp.frontend.site import Site


def _multiplier(site: Site, real: Array) -> TensorSpec:
    """Numbers per channel to multiply with; the HTP wants those of 16 bits around the middle of the range."""
    if not site.is_fixed:
        return site.static(np.asarray(real, np.float32), site.stored_as()[0])
    dtype = site.fixed_type
    quant = encodings.covering(real, dtype) if dtype.bits == 8 else encodings.centered_16(real)
    return site.static(vs.stored(real, dtype, quant), dtype, quant)


def _addend(site: Site, real: Array) -> TensorSpec:
    """Numbers per channel to add, in 32 bits around 0."""
    if not site.is_fixed:
        return site.static(np.asarray(real, np.float32), site.stored_as()[0])
    dtype = DType.SFIXED_POINT_32
    quant = ScaleOffset(float(np.abs(real).max(initial=0.0)) / dtype.integer_range[1] or 1.0)
    return site.static(vs.stored(real, dtype, quant), dtype, quant)


def _per_channel(site: Site, index: int, *, added: bool = False) -> TensorSpec | None:
    """A scale or bias input: as the file stores it where the HTP takes that, otherwise in a type that it takes."""
    if not site.has(index):
        return None
    real = site.constant(index)
    if real is None:
        return site.take(index)
    value = site.source(index)
    if site.is_fixed and not isinstance(value.quant, AxisScaleOffset):
        if added and value.dtype is DType.SFIXED_POINT_32:
            return site.assembly.form(value, vs.identity(value.rank))
        if not added and value.dtype in (DType.UFIXED_POINT_8, DType.SFIXED_POINT_8):
            return site.assembly.form(site.like(value, DType.UFIXED_POINT_8), vs.identity(value.rank))
    return _addend(site, real) if added else _multiplier(site, real)


def _batch_norm(site: Site) -> None:
    if any(site.is_used(index) for index in range(1, len(site.node.outputs))):
        site.refuse("its running statistics are used", "export the model for inference")
    parts = [site.constant(index) for index in range(1, 5)]
    if any(part is None for part in parts):
        site.refuse("its scale, bias, mean or variance is computed", "make them constants")
    scale, bias, mean, variance = (np.asarray(part, np.float64) for part in parts)
    factor = scale / np.sqrt(variance + site.attr("epsilon", 1e-5))
    perm = vs.channel_last(len(site.type(0).shape))
    inputs = [site.take(0, perm), _multiplier(site, factor), _addend(site, bias - mean * factor)]
    site.emit("Batchnorm", inputs, [site.give(0, perm)])


def _instance_norm(site: Site) -> None:
    perm = vs.channel_last(len(site.type(0).shape))
    inputs = [site.take(0, perm), _per_channel(site, 1), _per_channel(site, 2, added=True)]
    site.emit("InstanceNorm", inputs, [site.give(0, perm)], {"epsilon": float(site.attr("epsilon", 1e-5))})


def _group_norm(site: Site) -> None:
    shape = site.type(0).shape
    perm = vs.channel_last(len(shape))
    scale, bias = _per_channel(site, 1), _per_channel(site, 2, added=True)
    if site.node.opset < 21:
        # In those versions, scale and shift were per group.
        scales, biases = site.constant(1), site.constant(2)
        if scales is None or biases is None:
            site.refuse("its scale or bias is computed", "make them constants")
        times = shape[1] // site.attr("num_groups")
        scale, bias = _multiplier(site, np.repeat(scales, times)), _addend(site, np.repeat(biases, times))
    inputs = [site.take(0, perm), scale, bias]
    params = {"epsilon": float(site.attr("epsilon", 1e-5)), "group": site.attr("num_groups")}
    site.emit("GroupNorm", inputs, [site.give(0, perm)], params)


def _layer_norm(site: Site) -> None:
    rank = len(site.type(0).shape)
    axis = site.axis(site.attr("axis", -1), rank)
    axes, epsilon = list(range(axis, rank)), float(site.attr("epsilon", 1e-5))
    x = site.take(0)
    inputs = [x, _per_channel(site, 1), _per_channel(site, 2, added=True)]
    site.emit("LayerNorm", inputs, [site.give()], {"epsilon": epsilon, "axes": axes})
    if site.is_used(1) or site.is_used(2):
        _statistics(site, x, axes, epsilon)


def _rms_norm(site: Site) -> None:
    rank = len(site.type(0).shape)
    axes = list(range(site.axis(site.attr("axis", -1), rank), rank))
    scale = _per_channel(site, 1)
    assert scale is not None
    sizes = site.type(0).shape[axes[0] :]
    if scale.shape != sizes:
        site.refuse(f"its scale has the shape {list(scale.shape)}", f"give one of shape {list(sizes)}")
    params = {"epsilon": float(site.attr("epsilon", 1e-5)), "axes": axes}
    site.emit("RmsNorm", [site.take(0), scale], [site.give()], params)


def _statistics(site: Site, x: TensorSpec, axes: list[int], epsilon: float) -> None:
    """The mean and inverse deviation that ONNX's LayerNormalization can also give."""
    if site.is_fixed:
        site.refuse("its mean or inverse deviation is used", "only the first output is quantized")
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    params = {"axes": axes, "keep_dims": True}
    mean = site.give(1) if site.is_used(1) else site.between(shape, x)
    site.emit("ReduceMean", [x], [mean], params)
    if site.is_used(2):
        squares, variance, sum_ = site.between(x.shape, x), site.between(shape, x), site.between(shape, x)
        site.emit("ElementWiseSquaredDifference", [x, mean], [squares])
        site.emit("ReduceMean", [squares], [variance], params)
        site.emit("ElementWiseAdd", [variance, site.number(epsilon)], [sum_])
        site.emit("ElementWiseRsqrt", [sum_], [site.give(2)])


def _lrn(site: Site) -> None:
    size = site.attr("size")
    if size % 2 == 0:
        site.refuse(f"size {size} is even", "use an odd window")
    perm = vs.channel_last(len(site.type(0).shape))
    params = {
        # ONNX divides alpha by the window's size, QNN does not.
        "alpha": site.attr("alpha", 1e-4) / size,
        "beta": site.attr("beta", 0.75),
        "bias": site.attr("bias", 1.0),
        "radius": size // 2,
        "region": "ACROSS_CHANNEL",
    }
    site.emit("Lrn", [site.take(0, perm)], [site.give(0, perm)], params)


def _lp_norm(site: Site) -> None:
    if site.attr("p", 2) != 2:
        site.refuse(f"p is {site.attr('p')}", "only p = 2 is supported")
    rank = len(site.type(0).shape)
    perm = site.common_perm([0], rank)
    axis = perm.index(site.axis(site.attr("axis", -1), rank))
    site.emit("L2Norm", [site.take(0, perm)], [site.give(0, perm)], {"axis": axis})


def _softmax(op: str, site: Site) -> None:
    shape = site.type(0).shape
    rank = len(shape)
    old = site.node.opset < 13
    axis = site.axis(site.attr("axis", 1 if old else -1), rank)
    if old and math.prod(shape[axis + 1 :]) > 1:
        _flat_softmax(op, site, axis)
        return
    # The HTP sums along the last axis only: take the value in an order that ends with it.
    moved = (*(other for other in range(rank) if other != axis), axis)
    perm = next((form for form in site.value(0).forms if form[-1] == axis), moved)
    site.emit(op, [site.take(0, perm)], [site.give(0, perm)], {"axis": rank - 1})


def _flat_softmax(op: str, site: Site, axis: int) -> None:
    """Before opset 13 all axes from the given one on count as one."""
    shape = site.type(0).shape
    flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    x, out = site.in_order(0), site.give()
    wide, narrow = site.between(flat, x), site.between(flat, out)
    site.emit("Reshape", [x], [wide])
    site.emit(op, [wide], [narrow], {"axis": 1})
    site.emit("Reshape", [narrow], [out])


RULES = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "LRN": _lrn,
    "LpNormalization": _lp_norm,
    "Softmax": functools.partial(_softmax, "Softmax"),
    "LogSoftmax": functools.partial(_softmax, "LogSoftmax"),
}
