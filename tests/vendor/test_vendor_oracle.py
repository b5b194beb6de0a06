"""Single operations on the real library against exact arithmetic."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from vendor_cases import Case, add_case, conv_case, matmul_case, softmax_case

from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, QnnError, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.testing import oracle

pytestmark = [pytest.mark.vendor, pytest.mark.usefixtures("oracle_devices")]

# Rounding alone costs half a step; v68 adds its bias in convolutions (measured: 0.62 steps there at most).
CASES = [
    pytest.param(add_case, 0.51, id="add"),
    pytest.param(conv_case, 0.8, id="conv"),
    pytest.param(matmul_case, 1.0, id="matmul"),
    pytest.param(softmax_case, 1.0, id="softmax"),
]


@pytest.mark.parametrize("soc", [None, "v73", "v79"])
@pytest.mark.parametrize(("make", "steps"), CASES)
def test_fixed_point(make: type[Case], steps: float, soc: str | None) -> None:
    case = make()
    oracle.validate_op(case.plain_call, soc=soc)
    outputs = oracle.run_op(case.plain_call, case.inputs, soc=soc)
    assert case.steps_from_exact(outputs) <= steps


@pytest.mark.parametrize("dtype", [DType.FLOAT_16, DType.FLOAT_32])
def test_float(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    a, b, o = (TensorSpec(name, (1, 4, 4, 8), dtype) for name in "abo")
    data = {name: rng.standard_normal(a.shape).astype(dtype.numpy) for name in "ab"}
    outputs = oracle.run_op(OpCall("ElementWiseAdd", "add", (a, b), (o,)), data, soc="v73")
    assert outputs["o"].dtype == dtype.numpy
    exact = data["a"].astype(np.float64) + data["b"]
    # The HTP computes both types in 16 bits: two roundings of values below 8.
    np.testing.assert_allclose(outputs["o"], exact, rtol=0, atol=2 * 2**-9)


def test_an_op_that_nobody_defines_is_refused_before_the_library_is_asked() -> None:
    case = add_case()
    call = OpCall("NoSuchOp", "x", case.call.inputs, case.call.outputs)
    with pytest.raises(QnnError, match="NoSuchOp"):
        oracle.validate_op(call)
    with pytest.raises(QnnError, match="NoSuchOp"):
        oracle.run_op(call, case.inputs)


def test_refused_nodes_give_the_librarys_reason() -> None:
    """Our definition knows no chips; the library refuses 16 bits there on a v68."""
    x, y = (TensorSpec(name, (1, 4, 8), DType.UFIXED_POINT_16, ScaleOffset(0.01, -32768)) for name in "xy")
    gamma = TensorSpec("gamma", (8,), DType.UFIXED_POINT_16, ScaleOffset(0.001, 0), TensorKind.STATIC)
    call = OpCall("LayerNorm", "norm", (x, gamma), (y,), {"axes": [2]})
    with pytest.raises(UnsupportedOp, match=r"backendValidateOpConfig failed.*Value 68") as caught:
        oracle.validate_op(call)
    assert caught.value.code == 3110


def test_inputs_must_be_complete() -> None:
    case = add_case()
    with pytest.raises(InvalidArgument, match="got data for"):
        oracle.run_op(case.call, {"a": case.inputs["a"]})


def test_a_refused_node_leaves_the_process_usable() -> None:
    before, case = oracle.device_for().pid, add_case()
    with pytest.raises(QnnError):
        oracle.run_op(dataclasses.replace(case.call, op="NoSuchOp"), case.inputs)
    assert case.steps_from_exact(oracle.run_op(case.call, case.inputs)) <= 0.51
    assert oracle.device_for().pid == before
