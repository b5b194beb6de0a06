"""Elementwise operators that are more than a renaming."""

from __future__ import annotations

import functools

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import values as vs
from openhtp.frontend.patterns import DOUBLED
from openhtp.frontend.site import Site
from openhtp.frontend.values import Perm


def _perm(site: Site) -> Perm:
    rank = len(site.out_type().shape)
    return site.common_perm([index for index in range(len(site.node.inputs)) if site.has(index)], rank)


def _unary(op: str, site: Site, params: dict[str, object] | None = None) -> None:
    perm = _perm(site)
    site.emit(op, [site.take(0, perm)], [site.give(0, perm)], params)


def _squashed(op: str, quant: ScaleOffset, site: Site, params: dict[str, object] | None = None) -> None:
    """Sigmoids and Tanh of 16 bits: the HTP has one encoding for their results, whatever the tensor says."""
    perm = _perm(site)
    x, out = site.take(0, perm), site.give(0, perm)
    if out.dtype is not DType.UFIXED_POINT_16 or out.quant == quant:
        site.emit(op, [x], [out], params)
        return
    fixed = site.assembly.native(f"{out.name}_fixed", out.shape, out.dtype, quant)
    site.emit(op, [x], [fixed], params)
    site.emit("Convert", [fixed], [out])


def _hard_sigmoid(site: Site) -> None:
    params: dict[str, object] = {
        "operation": 2,
        "alpha": float(site.attr("alpha", 0.2)),
        "beta": float(site.attr("beta", 0.5)),
    }
    _squashed("ElementWiseNeuron", ScaleOffset(1 / 65536), site, params)


def _clip(site: Site) -> None:
    bounds = []
    for index, name, infinite in ((1, "min", -np.inf), (2, "max", np.inf)):
        constant = site.constant(index) if index < len(site.node.inputs) else None
        if constant is None and site.has(index):
            site.refuse(f"its {name} is computed", "make it a constant, or use Min and Max")
        bounds.append(
            float(np.asarray(constant).reshape(-1)[0]) if constant is not None else site.attr(name, infinite)
        )
    low, high = bounds
    if low > high:
        # ONNX: every result is then the maximum.
        low = high
    if (low, high) == (0.0, np.inf) and site.value(0).is_real:
        _unary("Relu", site)
    elif (low, high) == (0.0, 6.0) and site.value(0).is_real:
        _unary("Relu6", site)
    else:
        limit = float(np.finfo(np.float32).max)
        _unary("ReluMinMax", site, {"min_value": max(low, -limit), "max_value": min(high, limit)})


def _leaky(site: Site) -> None:
    perm = _perm(site)
    slope = site.number(float(site.attr("alpha", 0.01)))
    site.emit("Prelu", [site.take(0, perm), slope], [site.give(0, perm)])


def _prelu(site: Site) -> None:
    perm = _perm(site)
    slope = site.value(1)
    shape = (1,) * (len(perm) - slope.rank) + slope.shape
    if [axis for axis, size in enumerate(shape) if size > 1] == [1]:
        # A slope per channel: QNN's channels are last.
        perm = vs.channel_last(len(perm))
    x, slopes, out = site.take(0, perm), site.aligned(site.matched(slope), perm), site.give(0, perm)
    if out.dtype is not DType.INT_32:
        site.emit("Prelu", [x, slopes], [out])
        return
    # The HTP's own op takes no integers, so it is written out.
    zero = site.static(np.zeros(1, np.int32), DType.INT_32)
    above, below, scaled = (site.between(out.shape, out) for _ in range(3))
    site.emit("ElementWiseMaximum", [x, zero], [above])
    site.emit("ElementWiseMinimum", [x, zero], [below])
    site.emit("ElementWiseMultiply", [below, slopes], [scaled])
    site.emit("ElementWiseAdd", [above, scaled], [out])


def _folded(op: str, site: Site) -> None:
    """Operators of any number of inputs as a chain of two-input ops."""
    perm = _perm(site)
    values = [site.matched(site.value(index)) for index in range(len(site.node.inputs)) if site.has(index)]
    out = site.give(0, perm)
    if len(values) == 1:
        site.emit("Transpose", [site.assembly.form(values[0], perm)], [out], {"perm": vs.identity(len(perm))})
        return
    current: TensorSpec = site.aligned(values[0], perm)
    for count, value in enumerate(values[1:], 2):
        other = site.aligned(value, perm)
        shape = np.broadcast_shapes(current.shape, other.shape)
        target = out if count == len(values) else site.between(shape, out)
        site.emit(op, [current, other], [target])
        current = target


def _pow(site: Site) -> None:
    """The exponent may be of another type; both are computed as floats or as the base's fixed point."""
    perm = _perm(site)
    base, exponent, out = site.value(0), site.value(1), site.give(0, perm)
    if site.is_fixed:
        site.emit("ElementWisePower", [site.aligned(base, perm), site.aligned(exponent, perm)], [out])
        return
    dtype = base.dtype if base.dtype.is_float else DType.FLOAT_32
    inputs = [site.aligned(site.assembly.cast(value, dtype), perm) for value in (base, exponent)]
    if out.dtype == dtype:
        site.emit("ElementWisePower", inputs, [out])
        return
    power = site.assembly.native(f"{out.name}_real", out.shape, dtype, None)
    site.emit("ElementWisePower", inputs, [power])
    site.emit("Cast", [power], [out])


def _gelu(site: Site) -> None:
    """The HTP has one GELU for both of ONNX's; the tanh formula differs by at most 0.0005."""
    if not site.attr(DOUBLED, 0):
        return _unary("Gelu", site)
    if site.is_fixed:
        site.refuse("what lies between GELU and its double has no encoding")
    perm = _perm(site)
    out = site.give(0, perm)
    once = site.between(out.shape, out)
    site.emit("Gelu", [site.take(0, perm)], [once])
    return site.emit("ElementWiseMultiply", [once, site.number(2.0)], [out])


def _cast(site: Site) -> None:
    value = site.value(0)
    perm = next(iter(value.forms), vs.identity(value.rank))
    target, quant = site.stored_as()
    if site.is_fixed:
        if quant is None:
            site.refuse("it makes integers of fixed-point numbers", "dequantize first")
        # From one float type to another, in fixed point: the same real numbers.
        site.result(0, site.assembly.converted(value, target, quant))
        return
    if value.dtype == target or value.is_constant:
        site.result(0, site.assembly.cast(value, target))
        return
    source, out = site.assembly.form(value, perm), site.give(0, perm)
    if value.dtype.is_float and target is DType.BOOL_8:
        zero = site.static(np.zeros(1, value.dtype.numpy), value.dtype)
        site.emit("ElementWiseNotEqual", [source, zero], [out])
        return
    site.emit("Cast", [source], [out])


def _reciprocal(site: Site) -> None:
    perm = _perm(site)
    one = site.number(1.0)
    site.emit("ElementWiseDivide", [one, site.take(0, perm)], [site.give(0, perm)])


def _where(site: Site) -> None:
    perm = _perm(site)
    chosen = [site.value(1), site.value(2)]
    known = site.constant(0)
    if known is not None and (np.all(known) or not np.any(known)):
        choice = chosen[0 if np.all(known) else 1]
        if choice.shape == site.out_type().shape:
            site.result(0, site.assembly.converted(choice, *site.stored_as()))
            return
    inputs = [site.aligned(value, perm) for value in (site.value(0), *map(site.matched, chosen))]
    site.emit("ElementWiseSelect", inputs, [site.give(0, perm)])


def _sum(site: Site) -> None:
    if site.is_fixed and len(site.node.inputs) > 2:
        site.refuse("a sum of more than two has no encoding in between", "use Add")
    _folded("ElementWiseAdd", site)


def _mod(site: Site) -> None:
    perm = _perm(site)
    op = "ElementWiseFmod" if site.attr("fmod", 0) else "ElementWiseMod"
    site.emit(op, [site.aligned(site.value(0), perm), site.aligned(site.value(1), perm)], [site.give(0, perm)])


RULES = {
    "Sigmoid": functools.partial(_squashed, "Sigmoid", ScaleOffset(1 / 65536)),
    "Tanh": functools.partial(_squashed, "Tanh", ScaleOffset(1 / 32768, -32768)),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "LeakyRelu": _leaky,
    "PRelu": _prelu,
    "Max": functools.partial(_folded, "ElementWiseMaximum"),
    "Min": functools.partial(_folded, "ElementWiseMinimum"),
    "Sum": _sum,
    "Pow": _pow,
    "Gelu": _gelu,
    "Cast": _cast,
    "Reciprocal": _reciprocal,
    "Where": _where,
    "Mod": _mod,
}

KEEPS = ("Clip",)
