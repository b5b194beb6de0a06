"""Tensors of one element: declared without an axis, or with one, as clients like it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import openhtp as htp


@pytest.mark.parametrize("shapes", list(itertools.product(((), (1,)), repeat=3)), ids=str)
@pytest.mark.parametrize("dtype", ["float32", "ufixed8"])
def test_one_element_with_or_without_an_axis(shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    device = htp.Backend().create_device(transport="inprocess")
    graph = device.create_context().create_graph("g", precision="float32")
    quant = htp.ScaleOffset(0.5) if dtype == "ufixed8" else None
    first, between, last = shapes
    x = graph.add_tensor("x", (2, 3), dtype, quant=quant, kind="app_write")
    parts = (("s", first), ("n", between))
    s, n = (graph.add_tensor(name, shape, dtype, quant=quant, kind="native") for name, shape in parts)
    y = graph.add_tensor("y", last, dtype, quant=quant, kind="app_read")
    axes = np.array([0, 1], np.uint32)
    graph.add_node("ReduceMax", inputs=[x], outputs=[s], params={"axes": axes, "keep_dims": False})
    graph.add_node("Relu", inputs=[s], outputs=[n])
    graph.add_node("ElementWiseAdd", inputs=[n, s], outputs=[y])
    graph.finalize()
    data = np.arange(6).reshape(2, 3).astype(x.dtype.numpy)
    out = graph.execute({"x": data})["y"]
    assert out.shape == last
    assert out.item() == 10


def test_more_elements_are_still_compared() -> None:
    graph = htp.Backend().create_device(transport="inprocess").create_context().create_graph("g")
    x = graph.add_tensor("x", (1, 1), "float32", kind="app_write")
    y = graph.add_tensor("y", (1,), "float32", kind="app_read")
    with pytest.raises(htp.InvalidArgument, match="expected"):
        graph.add_node("Relu", inputs=[x], outputs=[y])
