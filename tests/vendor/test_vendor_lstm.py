"""Lstm in the one form that the vendor's library computes: a single step with first states and a projection."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.engine.ort import OrtEngine
from openhtp.ops import find_op
from openhtp.ops.lstm import PROJECTION
from vendor_agreement.differential import NotOffered, draw_case, rows_of, run_ours, run_vendor

# Half precision, through a chain of half a dozen operations on numbers around 1.
SLACK = 4e-3


@pytest.mark.vendor
@pytest.mark.parametrize("number", range(4))
def test_a_step_with_projection_agrees(number: int, oracle_devices: None) -> None:
    compared = 0
    for row in rows_of("Lstm"):
        sample = find_op("Lstm").samples[row.sample]
        if sample.shapes[PROJECTION] is None or not row.inputs[0].is_float:
            continue
        case = draw_case(row, number)
        try:
            theirs = run_vendor(case, "SM8650")
        except NotOffered:
            continue
        compared += 1
        for ours, other in zip(run_ours(case, OrtEngine()), theirs, strict=True):
            np.testing.assert_allclose(ours, other, atol=SLACK)
    assert compared == 2
