"""MatMul and Gemm."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import encodings, values as vs
from openhtp.frontend.rules.windows import bias
from openhtp.frontend.site import Site
from openhtp.frontend.values import OnnxValue


def _matmul(site: Site) -> None:
    left, right = site.value(0), site.weight(1)
    if site.is_fixed and left.dtype.bits < max(right.dtype.bits, site.fixed_type.bits):
        # Integer kernels take weights that are no wider than the activations, and give what they take.
        left = site.like(left, DType.UFIXED_POINT_16)
    if right.dtype is DType.UFIXED_POINT_16 and isinstance(right.quant, ScaleOffset):
        # Two computed matrices of 16 bits: the HTP wants the second with 0 in the middle of its range.
        right = site.assembly.converted(right, DType.UFIXED_POINT_16, encodings.recentered(right.quant))
    a, b = (site.assembly.form(value, vs.identity(value.rank)) for value in (left, right))
    out = site.give()
    if left.rank > 1 and right.rank > 1:
        site.emit("MatMul", [a, b], [out])
        return
    # A vector on the left is a row, one on the right a column; the axis goes away again afterwards.
    if left.rank == 1:
        a = site.aligned(site.reshaped(left, (1, *left.shape)), (0, 1))
    if right.rank == 1:
        b = site.aligned(site.reshaped(right, (*right.shape, 1)), (0, 1))
    rows = () if left.rank == 1 else left.shape[-2:-1]
    columns = () if right.rank == 1 else right.shape[-1:]
    batch = left.shape[:-2] or right.shape[:-2]
    whole = site.between((*batch, *(rows or (1,)), *(columns or (1,))), out)
    site.emit("MatMul", [a, b], [whole])
    site.emit("Reshape", [whole], [out])


def _gemm(site: Site) -> None:
    alpha, beta = float(site.attr("alpha", 1.0)), float(site.attr("beta", 1.0))
    turned = bool(site.attr("transA", 0))
    addend = site.constant(2)
    columns = site.out_type().shape[1]
    plain_bias = not site.has(2) or (addend is not None and addend.size in (1, columns) and addend.ndim <= 2)
    plain_bias = plain_bias and (addend is None or addend.shape[:-1] in ((), (1,)))
    if site.value(1).is_constant and not turned and plain_bias and alpha > 0:
        _fully_connected(site, alpha, beta)
    else:
        _general(site, alpha, beta, turned)


def _fully_connected(site: Site, alpha: float, beta: float) -> None:
    weight = _scaled(site.weight(1), alpha)
    x = site.assembly.form(site.wide_enough(site.value(0)), (0, 1))
    filters = site.assembly.form(weight, (0, 1) if site.attr("transB", 0) else (1, 0))
    addend, columns = site.constant(2), site.out_type().shape[1]
    added: TensorSpec | None = None
    if addend is not None:
        spread = np.broadcast_to(np.asarray(addend).reshape(-1), (columns,))
        if site.is_fixed and beta == 1.0 and addend.size == columns:
            added = bias(site, 2, x, filters)
        elif site.is_fixed:
            site.refuse("beta is not 1, or the bias is one number", "fold beta into a bias per column")
        else:
            added = site.static((beta * spread).astype(np.float32), site.stored_as()[0])
    site.emit("FullyConnected", [x, filters, added], [site.give()])


def _general(site: Site, alpha: float, beta: float, turned: bool) -> None:
    """A product of computed matrices; scaling and adding are nodes of their own, in floats only."""
    params = {"transpose_in0": turned, "transpose_in1": bool(site.attr("transB", 0))}
    steps = [alpha != 1.0, site.has(2)]
    if site.is_fixed and any(steps):
        site.refuse("a scale or an added matrix has no encoding of its own", "use MatMul, Mul and Add")
    out = site.give()
    current = site.between(out.shape, out) if any(steps) else out
    site.emit("MatMul", [site.take(0), site.take(1)], [current], params)
    if alpha != 1.0:
        scaled = site.between(out.shape, out) if site.has(2) else out
        site.emit("ElementWiseMultiply", [current, site.number(alpha)], [scaled])
        current = scaled
    if not site.has(2):
        return
    added = site.aligned(site.value(2), (0, 1))
    if beta != 1.0:
        grown = site.between(added.shape, out)
        site.emit("ElementWiseMultiply", [added, site.number(beta)], [grown])
        added = grown
    site.emit("ElementWiseAdd", [current, added], [out])


def _scaled(value: OnnxValue, factor: float) -> OnnxValue:
    """A constant times a positive number; in fixed point only its scale changes."""
    if factor == 1.0 or value.data is None:
        return value
    quant = value.quant
    if isinstance(quant, ScaleOffset):
        quant = ScaleOffset(quant.scale * factor, quant.offset)
    elif isinstance(quant, AxisScaleOffset):
        quant = AxisScaleOffset(quant.axis, tuple(scale * factor for scale in quant.scales), quant.offsets)
    data = value.data if quant is not None else (value.data * factor).astype(value.data.dtype)
    return OnnxValue(f"{value.name}_scaled", value.shape, value.dtype, quant, data)


RULES = {"MatMul": _matmul, "Gemm": _gemm}
