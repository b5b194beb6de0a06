"""RandomUniformLike: within its bounds, and never the same twice but with a seed."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp


def test_numbers_fill_the_range_and_differ_between_executions() -> None:
    device = htp.Backend().create_device(transport="inprocess")
    graph = device.create_context().create_graph("g")
    quant = htp.ScaleOffset(8 / 255, -64)
    sizes = graph.add_tensor("sizes", (3,), "uint32", kind="static", data=np.array([4, 16, 16], np.uint32))
    drawn = graph.add_tensor("drawn", (4, 16, 16), "ufixed8", quant=quant, kind="native")
    out = graph.add_tensor("o", (4, 16, 16), "ufixed8", quant=quant, kind="app_read")
    bounds = {"low": -2.0, "high": 6.0}
    graph.add_node("RandomUniformLike", name="r", inputs=[sizes], outputs=[drawn], params=bounds)
    graph.add_node("Relu", name="a", inputs=[drawn], outputs=[out])
    graph.finalize()
    first, second = (quant.dequantize(graph.execute()["o"]) for _ in range(2))
    for values in (first, second):
        assert values.min() == pytest.approx(0.0, abs=0.03)
        assert 5.5 < values.max() < 6.1
        assert values.std() > 1.5
    assert not np.array_equal(first, second)


def test_numbers_of_a_seed_are_always_the_same() -> None:
    device = htp.Backend().create_device(transport="inprocess")
    context = device.create_context()
    found = []
    for number, seed in enumerate((42.0, 42.0, -3.5)):
        graph = context.create_graph(f"g{number}")
        sizes = graph.add_tensor("sizes", (1,), "uint32", kind="static", data=np.array([64], np.uint32))
        given = graph.add_tensor("seed", (1,), "float32", kind="static", data=np.array([seed], np.float32))
        out = graph.add_tensor("o", (64,), "ufixed8", quant=htp.ScaleOffset(1 / 255, 0), kind="app_read")
        graph.add_node("RandomUniformLike", name="r", inputs=[sizes, given], outputs=[out])
        graph.finalize()
        found += [graph.execute()["o"].tolist() for _ in range(2)]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[4] == found[5] != found[0]
