"""An output that depends on no input was left unwritten when the graph was long enough to be cut into segments.

The runtime folds such an output to a constant before the model is cut, so no segment held a node that makes it.
"""

from __future__ import annotations

import numpy as np

import openhtp as htp


def test_constant_output_of_a_graph_that_is_cut(context: htp.Context) -> None:
    graph = context.create_graph("g")
    value = graph.add_tensor("x", (512, 512), "float32", kind="app_write")
    weight = graph.add_tensor("w", (512, 512), "float32", data=np.eye(512, dtype=np.float32))
    for number in range(12):
        kind = "app_read" if number == 11 else "native"
        out = graph.add_tensor(f"t{number}", (512, 512), "float32", kind=kind)
        graph.add_node("MatMul", inputs=[value, weight], outputs=[out])
        value = out
    constant = graph.add_tensor("c", (1, 8), "float32", data=np.arange(8, dtype=np.float32).reshape(1, 8) - 2)
    graph.add_tensor("z", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[constant], outputs=["z"])
    graph.finalize()
    out = graph.execute({"x": np.ones((512, 512), np.float32)})
    np.testing.assert_array_equal(out["z"], np.maximum(np.arange(8) - 2, 0).reshape(1, 8))
    np.testing.assert_array_equal(out["t11"], 1)
