"""RandomUniformLike: within its bounds, and never the same twice."""

from __future__ import annotations

import numpy as np

import openhtp as htp


def test_numbers_fill_the_range_and_differ_between_executions() -> None:
    device = htp.Backend().create_device(transport="inprocess")
    graph = device.create_context().create_graph("g", precision="float32")
    sizes = graph.add_tensor("sizes", (3,), "uint32", kind="static", data=np.array([4, 16, 16], np.uint32))
    drawn = graph.add_tensor("drawn", (4, 16, 16), "float32", kind="native")
    shift = graph.add_tensor("x", (1,), "float32", kind="app_write")
    out = graph.add_tensor("o", (4, 16, 16), "float32", kind="app_read")
    graph.add_node(
        "RandomUniformLike", name="r", inputs=[sizes], outputs=[drawn], params={"low": -2.0, "high": 6.0}
    )
    graph.add_node("ElementWiseAdd", name="a", inputs=[drawn, shift], outputs=[out])
    graph.finalize()
    first, second = (graph.execute({"x": np.zeros(1, np.float32)})["o"].copy() for _ in range(2))
    for values in (first, second):
        assert values.min() >= -2.0
        assert values.max() <= 6.0
        assert values.std() > 1.5
    assert not np.array_equal(first, second)
