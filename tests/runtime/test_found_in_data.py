"""Graphs whose results are as many as the data makes them, on a real device and from a context binary."""

from __future__ import annotations

import numpy as np

import openhtp as htp

BYTES = {"dtype": "ufixed8", "quant": htp.ScaleOffset(1.0, 0)}


def test_a_sparse_value_is_taken_apart_on_the_device(context: htp.Context) -> None:
    graph = context.create_graph("apart")
    x = graph.add_tensor("x", (4, 5), kind="app_write", sparse_elements=3, **BYTES)
    where = graph.add_tensor("where", (3, 2), "int32", kind="app_read")
    what = graph.add_tensor("what", (3,), kind="app_read", **BYTES)
    graph.add_node("GetSparseIndices", inputs=[x], outputs=[where])
    graph.add_node("GetSparseValues", inputs=[x], outputs=[what])
    graph.finalize()
    found = graph.execute({"x": htp.Sparse([[3, 0], [1, 4]], [7, 9])})
    assert found["where"].tolist() == [[1, 4], [3, 0], [-1, -1]]
    assert found["what"].tolist() == [9, 7, 0]


def test_selections_come_from_a_context_binary_too(shared_device: htp.Device) -> None:
    boxes = np.float32([[[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]]])
    scores = np.float32([[[0.5, 0.75, 0.25]]])
    with shared_device.create_context() as context:
        graph = context.create_graph("select")
        given = [
            graph.add_tensor(n, s, "float32", kind="app_write") for n, s in (("b", (1, 3, 4)), ("s", (1, 1, 3)))
        ]
        found = graph.add_tensor("found", (3, 3), "int32", kind="app_read")
        count = graph.add_tensor("count", (1,), "uint32", kind="app_read")
        params = {"iou_threshold": 0.5, "max_boxes_selected": 3}
        graph.add_node("NonMaxSuppression", inputs=given, outputs=[found, count], params=params)
        graph.finalize()
        blob = context.get_binary()
        results = [graph.execute({"b": boxes, "s": scores})]
    with shared_device.create_context_from_binary(blob) as restored:
        results.append(restored.graph("select").execute({"b": boxes, "s": scores}))
    for result in results:
        assert result["found"].tolist() == [[0, 0, 1], [0, 0, 2], [0, 0, 2]]
        assert result["count"].tolist() == [2]
