"""What ops say of themselves, checked against what they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ops_cases import all_cases, make_case, real

from openhtp.core.opcall import HELPER_KINDS, MATRIX_KINDS, VECTOR_KINDS
from openhtp.ops import find_op, op_names, resolve
from openhtp.ops._opdef import OpDef


def _one_case_a_sample(opdef: OpDef) -> list[Any]:
    cases = [parts for _, parts in all_cases(opdef)]
    found = []
    for sample in opdef.samples:
        of_sample = [parts for parts in cases if parts[1] is sample]
        floats = [parts for parts in of_sample if parts[2][0].is_float and parts[3][0].is_float]
        found.append((floats or of_sample)[0])
    return found


def _is_real(spec: Any) -> bool:
    return spec is not None and (spec.dtype.is_float or spec.dtype.is_fixed_point)


def _bent(array: np.ndarray) -> np.ndarray:
    """Other values for the same ones, neither in order nor in proportion; borders of 0 and of 1 stay."""
    return 2.0 * array**2 - array


def _commutes(opdef: OpDef, parts: Any) -> bool:
    """Whether bending all values before the op is the same as bending its results."""
    case = make_case(*parts)
    node = resolve(case.call, case.stored)
    given = [np.zeros(0) if spec is None else real(spec, case.stored[spec.name]) for spec in node.inputs]
    bent = [_bent(array) if _is_real(spec) else array for spec, array in zip(node.inputs, given, strict=True)]
    with np.errstate(all="ignore"):
        pairs = list(zip(opdef.reference(node, given), opdef.reference(node, bent), strict=True))
        values = [before.dtype.kind == "f" for before, _ in pairs]
        return any(values) and all(
            np.allclose(_bent(before) if is_value else before, after, rtol=1e-9, atol=1e-9)
            for is_value, (before, after) in zip(values, pairs, strict=True)
        )


@pytest.mark.parametrize("name", op_names())
def test_ops_that_only_move_say_so_and_no_others(name: str) -> None:
    opdef = find_op(name)
    assert opdef.moves_only == all(_commutes(opdef, parts) for parts in _one_case_a_sample(opdef))


@pytest.mark.parametrize("name", [name for name in op_names() if find_op(name).values_kept])
def test_kept_values_are_among_those_given(name: str) -> None:
    """Or are a bound or a border, which parameters or the op's name tell."""
    opdef = find_op(name)
    for parts in _one_case_a_sample(opdef):
        case = make_case(*parts)
        inputs = [real(spec, case.stored[spec.name]).ravel() for spec in case.call.inputs if spec is not None]
        told = [float(value) for value in case.call.params.values() if isinstance(value, int | float)]
        known = np.concatenate([*inputs, [0.0, 1.0, -1.0, 6.0], told])
        assert np.isin(np.round(case.exact[0], 9), np.round(known, 9)).all()


@pytest.mark.parametrize("name", op_names())
def test_results_stay_in_the_range_that_is_told(name: str) -> None:
    opdef = find_op(name)
    for parts in _one_case_a_sample(opdef):
        case = make_case(*parts)
        bounds = opdef.result_range(resolve(case.call, case.stored))
        if bounds is not None:
            assert bounds[0] <= case.exact[0].min() <= case.exact[0].max() <= bounds[1]


@pytest.mark.parametrize("name", op_names())
def test_a_kind_is_one_that_the_cost_model_prices(name: str) -> None:
    opdef = find_op(name)
    assert opdef.kind is None or opdef.kind in {*MATRIX_KINDS, *VECTOR_KINDS} - {*HELPER_KINDS}
    case = make_case(*_one_case_a_sample(opdef)[0])
    has_macs = opdef.work(resolve(case.call, case.stored)).macs > 0
    if opdef.kind is not None:
        assert has_macs == (opdef.kind in MATRIX_KINDS or opdef.kind == "depthwise")


@pytest.mark.parametrize("name", [name for name in op_names() if find_op(name).weights is not None])
def test_weights_have_a_bias_of_one_number_per_channel(name: str) -> None:
    opdef = find_op(name)
    assert [port.optional for port in opdef.inputs] == [False, False, True]
    for sample in opdef.samples:
        if opdef.weights.channel_axis is not None and sample.shapes[2] is not None:
            assert sample.shapes[2] == (sample.shapes[1][opdef.weights.channel_axis],)


@pytest.mark.parametrize("name", [name for name in op_names() if find_op(name).affine_by_constant])
def test_with_a_constant_operand_a_result_is_a_straight_line_of_the_other(name: str) -> None:
    opdef = find_op(name)
    case = make_case(*_one_case_a_sample(opdef)[0])
    node = resolve(case.call, case.stored)
    x, constant = (real(spec, case.stored[spec.name]) for spec in node.inputs)
    at = [opdef.reference(node, [x + step, constant])[0] for step in (0.0, 1.0, 2.0)]
    np.testing.assert_allclose(at[2] - at[1], at[1] - at[0], rtol=1e-9, atol=1e-9)
