"""An output that does not depend on any input was left unwritten: the runtime folds it before the model is cut."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_output_that_is_a_constant(context: htp.Context, precision: str) -> None:
    graph = context.create_graph("g", precision=precision)
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    c = graph.add_tensor("c", (1, 8), "float32", data=np.arange(8, dtype=np.float32).reshape(1, 8) - 2)
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    z = graph.add_tensor("z", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    graph.add_node("Relu", inputs=[c], outputs=[z])
    graph.finalize()
    out = graph.execute({"x": np.ones((1, 8), np.float32)})
    np.testing.assert_array_equal(out["z"], np.maximum(np.arange(8) - 2, 0).reshape(1, 8))
    np.testing.assert_array_equal(out["y"], 1)
