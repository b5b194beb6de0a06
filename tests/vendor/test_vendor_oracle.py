"""Single operations on the real library against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from vendor_cases import Case, add_case, conv_case, matmul_case, softmax_case

from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor import oracle

pytestmark = [pytest.mark.vendor, pytest.mark.usefixtures("oracle_processes")]

# Rounding alone costs half a step; v68 adds its bias in convolutions (measured: 0.62 steps there at most).
CASES = [
    pytest.param(add_case, 0.51, id="add"),
    pytest.param(conv_case, 0.8, id="conv"),
    pytest.param(lambda: conv_case(DType.SFIXED_POINT_4), 0.8, id="conv-int4"),
    pytest.param(matmul_case, 1.0, id="matmul"),
    pytest.param(softmax_case, 1.0, id="softmax"),
]


@pytest.mark.parametrize("soc", [None, "v73", "v79"])
@pytest.mark.parametrize(("make", "steps"), CASES)
def test_fixed_point(make: type[Case], steps: float, soc: str | None) -> None:
    case = make()
    oracle.validate_op(case.call, case.params, soc=soc)
    outputs = oracle.run_op(case.call, case.params, case.inputs, soc=soc)
    assert case.steps_from_exact(outputs) <= steps


@pytest.mark.parametrize("dtype", [DType.FLOAT_16, DType.FLOAT_32])
def test_float(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    a, b, o = (TensorSpec(name, (1, 4, 4, 8), dtype) for name in "abo")
    data = {name: rng.standard_normal(a.shape).astype(dtype.numpy) for name in "ab"}
    outputs = oracle.run_op(OpCall("ElementWiseAdd", "add", (a, b), (o,)), {}, data, soc="v73")
    assert outputs["o"].dtype == dtype.numpy
    exact = data["a"].astype(np.float64) + data["b"]
    # The HTP computes both types in 16 bits: two roundings of values below 8.
    np.testing.assert_allclose(outputs["o"], exact, rtol=0, atol=2 * 2**-9)


def test_unknown_op() -> None:
    case = add_case()
    call = OpCall("NoSuchOp", "x", case.call.inputs, case.call.outputs)
    with pytest.raises(UnsupportedOp, match="NoSuchOp") as caught:
        oracle.validate_op(call, {})
    assert caught.value.name == "QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND"
    with pytest.raises(UnsupportedOp, match="NoSuchOp") as caught:
        oracle.run_op(call, {}, case.inputs)
    assert caught.value.code == 4005
    with pytest.raises(UnsupportedOp, match="NoSuchOp") as caught:
        oracle.run_op(call, {}, case.inputs, validate=False)
    assert (caught.value.name, caught.value.code) == ("QNN_GRAPH_ERROR_MEM_ALLOC", 1002)


def test_refused_shape_gives_the_librarys_reason() -> None:
    case = add_case()
    wrong = TensorSpec("o", (1, 4, 4, 9), DType.UFIXED_POINT_8, case.call.outputs[0].quant, TensorKind.APP_READ)
    with pytest.raises(UnsupportedOp, match="Expected 8 but got 9") as caught:
        oracle.validate_op(OpCall("ElementWiseAdd", "a", case.call.inputs, (wrong,)), {})
    assert caught.value.code == 3110


def test_inputs_must_be_complete() -> None:
    case = add_case()
    with pytest.raises(InvalidArgument, match="got data for"):
        oracle.run_op(case.call, {}, {"a": case.inputs["a"]})


def test_bad_op_leaves_the_process_usable() -> None:
    before = oracle.process_for().pid
    with pytest.raises(UnsupportedOp):
        oracle.run_op(
            OpCall("NoSuchOp", "x", add_case().call.inputs, add_case().call.outputs), {}, add_case().inputs
        )
    case = add_case()
    assert case.steps_from_exact(oracle.run_op(case.call, {}, case.inputs)) <= 0.51
    assert oracle.process_for().pid == before
