"""NaN and infinity go through every operator as they do on ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from import_cases import run_here, run_ort
from test_operators import CASES, Case, _feeds, _id, _model, _weights

from openhtp.onnx import load

_RECURRENT = [
    Case(op, ((5, 1, 4),), {"hidden_size": 3}, (_weights(1, 3 * gates, 4), _weights(1, 3 * gates, 3)))
    for op, gates in (("GRU", 3), ("RNN", 1))
]
_ELSEWHERE = {
    ("TopK", "nan"): "where ONNX Runtime sorts a NaN to depends on where it stood",
    ("Attention", "-inf"): "a row whose only key is minus infinity sees what the mask hides on ONNX Runtime",
}


def kinds(array: np.ndarray) -> np.ndarray:
    """Which numbers are NaN, infinite, minus infinite or none of these."""
    numbers = array.astype(np.float64)
    return np.select([np.isnan(numbers), np.isposinf(numbers), np.isneginf(numbers)], ["nan", "inf", "-inf"], "")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("case", [*CASES, *_RECURRENT], ids=_id)
def test_special_values_end_where_they_end_on_onnxruntime(case: Case, value: float) -> None:
    if (case.op, str(value)) in _ELSEWHERE:
        pytest.skip(_ELSEWHERE[case.op, str(value)])
    model, graph = _model(case), load(_model(case))
    for name in _feeds(case):
        feeds = _feeds(case)
        feeds[name].reshape(-1)[feeds[name].size // 2] = value
        ours, theirs = run_here(graph, feeds), run_ort(model, feeds)
        for output, wanted in theirs.items():
            got = ours[output].reshape(wanted.shape)
            if wanted.dtype.kind == "f":
                np.testing.assert_array_equal(kinds(got), kinds(wanted), f"{output}, {value} in {name}")


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_network_remembers_a_nan(op: str, gates: int, with_bias: bool) -> None:
    """ONNX Runtime's LSTM does so without biases; with them, its kernel makes numbers of it."""
    weights = (_weights(1, 3 * gates, 4), _weights(1, 3 * gates, 3), _weights(1, 6 * gates))
    case = Case(op, ((5, 1, 4),), {"hidden_size": 3}, weights[: 3 if with_bias else 2])
    feeds = _feeds(case)
    feeds["x0"][2, 0, 1] = np.nan
    (steps,) = run_here(load(_model(case)), feeds).values()
    assert np.isnan(steps).reshape(5, 3).all(axis=1).tolist() == [False, False, True, True, True]
