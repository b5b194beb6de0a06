"""Graphs with dynamic dimensions are cut like any other, and have the same results in every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import openhtp as htp
from openhtp.engine import segments

Array = npt.NDArray[Any]
CHANNELS, LAYERS = 16, 5


def network(context: htp.Context, name: str, kind: str, rows: int, *, dynamic: bool) -> htp.Graph:
    """Convolutions with clamps, and a sum around each: values that cross several cuts."""
    quant = htp.ScaleOffset(0.05, -128) if kind == "ufixed8" else None
    free = (False, True, False, False) if dynamic else ()
    graph = context.create_graph(name)
    shape = (1, rows, 12, CHANNELS)

    def tensor(title: str, where: str) -> Any:
        return graph.add_tensor(title, shape, kind, quant=quant, kind=where, dynamic=free)

    before = tensor("x", "app_write")
    random = np.random.default_rng(0)
    for layer in range(LAYERS):
        size = (3, 3, CHANNELS, CHANNELS)
        if quant is None:
            data: Array = random.normal(size=size).astype(np.float32) * 0.1
            weights = graph.add_tensor(f"w{layer}", size, kind, kind="static", data=data)
        else:
            data = random.integers(-90, 90, size).astype(np.int8)
            scale = htp.ScaleOffset(0.001, 0)
            weights = graph.add_tensor(f"w{layer}", size, "sfixed8", quant=scale, kind="static", data=data)
        made, clamped = tensor(f"c{layer}", "native"), tensor(f"r{layer}", "native")
        window = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
        graph.add_node("Conv2d", inputs=[before, weights], outputs=[made], params=window)
        graph.add_node("Relu", inputs=[made], outputs=[clamped])
        after = tensor(
            "y" if layer == LAYERS - 1 else f"s{layer}", "app_read" if layer == LAYERS - 1 else "native"
        )
        graph.add_node("ElementWiseAdd", inputs=[clamped, before], outputs=[after])
        before = after
    graph.finalize()
    return graph


@pytest.fixture
def cut_finely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "longest_seconds", lambda seconds: 0.0)


def input_of(kind: str, rows: int) -> Array:
    random = np.random.default_rng(rows)
    shape = (1, rows, 12, CHANNELS)
    if kind == "ufixed8":
        return random.integers(0, 255, shape).astype(np.uint8)
    return random.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["float32", "ufixed8"])
def test_dynamic_graphs_yield_and_compute_what_fixed_ones_do(
    backend: htp.Backend, kind: str, cut_finely: None
) -> None:
    device = backend.create_device(transport="inprocess")
    with device.create_context() as context:
        dynamic = network(context, "dynamic", kind, 24, dynamic=True)
        assert dynamic.steps >= LAYERS
        for rows in (24, 7, 16, 24):
            x = input_of(kind, rows)
            fixed = network(context, f"fixed {rows} {len(context.graphs)}", kind, rows, dynamic=False)
            np.testing.assert_array_equal(dynamic.execute({"x": x})["y"], fixed.execute({"x": x})["y"])


def test_several_executions_of_different_sizes_are_under_way_at_once(
    backend: htp.Backend, cut_finely: None
) -> None:
    device = backend.create_device(transport="inprocess")
    with device.create_context(queue_depth=8) as context:
        graph = network(context, "dynamic", "float32", 24, dynamic=True)
        alone = {rows: graph.execute({"x": input_of("float32", rows)})["y"] for rows in (24, 5, 11)}
        under_way = [(rows, graph.execute_async({"x": input_of("float32", rows)})) for rows in (24, 5, 11, 24, 5)]
        for rows, execution in under_way:
            np.testing.assert_array_equal(execution.result()["y"], alone[rows])


def test_a_dynamic_graph_survives_a_binary(backend: htp.Backend, cut_finely: None) -> None:
    device = backend.create_device(transport="inprocess")
    with device.create_context() as context:
        graph = network(context, "dynamic", "float32", 24, dynamic=True)
        x = input_of("float32", 9)
        expected, steps = graph.execute({"x": x})["y"], graph.steps
        binary = context.get_binary()
    with device.create_context_from_binary(binary) as restored:
        graph = restored.graph("dynamic")
        assert graph.steps == steps
        np.testing.assert_array_equal(graph.execute({"x": x})["y"], expected)


def test_a_long_dynamic_graph_is_cut_as_a_fixed_one_is(context: htp.Context) -> None:
    """With the usual lengths of segments: the float network of strips has several, whatever its rows."""
    dynamic = network(context, "long dynamic", "float32", 2048, dynamic=True)
    fixed = network(context, "long fixed", "float32", 2048, dynamic=False)
    assert dynamic.steps == fixed.steps > 1
