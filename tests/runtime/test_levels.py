"""Results are the same at every level of optimization, and with activations joined to their convolutions."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp.frontend.onnx_import import load
from openhtp.zoo import quantized, small_cnn, transformer_blocks

OPTIONS = ({"optimization_level": 1}, {"optimization_level": 3}, {"advanced_activation_fusion": True})


@pytest.mark.parametrize("model", [lambda: quantized(small_cnn(), samples=2), transformer_blocks])
def test_the_same_results(model) -> None:
    imported = load(model())
    rng = np.random.default_rng(1)
    feeds = {
        name: rng.uniform(-1, 1, spec.shape).astype(np.float32)
        for name, spec in imported.tensors.items()
        if spec.kind.is_input
    }
    with htp.Backend() as backend, backend.create_device(soc="SM8650", transport="inprocess") as device:
        found = []
        for chosen in ({}, *OPTIONS):
            context = device.create_context()
            graph = context.compose_graph(imported, **chosen)
            graph.finalize()
            found.append(graph.execute(feeds))
            context.free()
    for other in found[1:]:
        for name, values in found[0].items():
            np.testing.assert_array_equal(other[name], values)
