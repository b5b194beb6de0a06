"""ONNX's node tests of the operators that are taken pass, or are listed with a reason."""

from __future__ import annotations

import pytest
from suite import cases, exceptions, reason_for, run_case

from openhtp.onnx import backend


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_node_test_passes_or_is_listed() -> None:
    reasons = exceptions()
    outcomes = [run_case(case) for case in cases()]
    failed = {o.name: o.problem for o in outcomes if o.problem and reason_for(o.name, reasons) is None}
    assert not failed
    assert sum(not o.problem for o in outcomes) >= 766
    needed = {reason_for(o.name, reasons) for o in outcomes if o.problem}
    assert set(reasons.values()) == needed, "an entry of exceptions.toml is no longer needed"


@pytest.mark.filterwarnings("ignore")
def test_a_single_node_runs() -> None:
    import numpy as np
    from onnx import helper

    x = np.array([[-1.0, 2.0]], np.float32)
    (y,) = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    assert y.tolist() == [[0.0, 2.0]]
    (y,) = backend.run_node(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), [x])
    assert y.tolist() == [[-1.0], [2.0]]
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
