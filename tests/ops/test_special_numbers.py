"""Numbers that samples do not hold: infinities and no numbers at all."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp

X = np.array([[1.0, np.inf, -np.inf, np.nan]], np.float32)


@pytest.mark.parametrize(
    ("op", "params", "expected"),
    [
        ("IsNan", {}, [0, 0, 0, 1]),
        ("IsInf", {}, [0, 1, 1, 0]),
        ("IsInf", {"detect_negative": False}, [0, 1, 0, 0]),
        ("IsInf", {"detect_positive": False}, [0, 0, 1, 0]),
    ],
)
def test_what_is_found(op: str, params: dict[str, bool], expected: list[int]) -> None:
    with htp.Backend() as backend:
        graph = backend.create_device(transport="inprocess").create_context().create_graph("g")
        x = graph.add_tensor("x", X.shape, "float32", kind="app_write")
        o = graph.add_tensor("o", X.shape, "bool", kind="app_read")
        graph.add_node(op, inputs=[x], outputs=[o], params=params)
        graph.finalize()
        assert graph.execute({"x": X})["o"].astype(int).tolist() == [expected]
