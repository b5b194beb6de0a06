"""Attention masks: the vendor's library and our engine both see one op in Softmax(Select(keep, x, min(x) + B))."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp

SHAPE, MASK = (1, 2, 4, 16), (1, 1, 4, 16)
FINE, WIDE, UNIT = htp.ScaleOffset(8 / 255, -128), htp.ScaleOffset(38 / 255, -228), htp.ScaleOffset(1 / 256, 0)
FLAGS = htp.ScaleOffset(1 / 65535, 0)


def masked(backend: htp.Backend, form: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The graph on one device. Forms: mask equal to 0, not equal to 0, as bytes, as booleans."""
    with backend.create_device(soc="SM8650") as device, device.create_context() as context:
        graph = context.create_graph("g")
        add, node = graph.add_tensor, graph.add_node
        x = add("x", SHAPE, "ufixed8", quant=FINE, kind="app_write")
        if form in ("Equal", "NotEqual"):
            mask = add("mask", MASK, "ufixed16", quant=FLAGS, kind="app_write")
            zero = add("zero", (1,), "ufixed16", quant=FLAGS, data=np.zeros(1, np.uint16))
            keep = add("keep", MASK, "bool")
            node(f"ElementWise{form}", inputs=[mask, zero], outputs=[keep])
        else:
            quant = htp.ScaleOffset(1.0, 0) if form == "ufixed8" else None
            keep = add("mask", MASK, form, quant=quant, kind="app_write")
        least = add("least", (1, 2, 4, 1), "ufixed8", quant=FINE)
        node("ReduceMin", inputs=[x], outputs=[least], params={"axes": [3], "keep_dims": True})
        b = add("b", (1,), "ufixed8", quant=htp.ScaleOffset(30 / 255, -255), data=np.zeros(1, np.uint8))
        low = add("low", (1, 2, 4, 1), "ufixed8", quant=WIDE)
        node("ElementWiseAdd", inputs=[least, b], outputs=[low])
        chosen = add("chosen", SHAPE, "ufixed8", quant=WIDE)
        node("ElementWiseSelect", inputs=[keep, x, low], outputs=[chosen])
        y = add("y", SHAPE, "ufixed8", quant=UNIT, kind="app_read")
        node("Softmax", inputs=[chosen], outputs=[y], params={"axis": 3})
        graph.finalize()
        return graph.execute(feeds)["y"]


@pytest.mark.vendor
@pytest.mark.parametrize("form", ["Equal", "NotEqual", "ufixed8", "bool"])
def test_both_recognise_the_mask(form: str) -> None:
    rng = np.random.default_rng(4)
    x, keep = rng.integers(0, 256, SHAPE, np.uint8), rng.random(MASK) < 0.6
    keep[..., 0] = True
    flags = {"Equal": np.where(keep, 0, 65535), "NotEqual": np.where(keep, 65535, 0)}.get(form, keep)
    types = {"ufixed8": np.uint8, "bool": np.bool_}
    feeds = {"x": x, "mask": np.ascontiguousarray(flags, types.get(form, np.uint16))}
    with htp.Backend() as ours, htp.Backend("vendor") as vendor:
        found = [masked(backend, form, feeds) for backend in (ours, vendor)]
    power = np.where(keep, np.exp(FINE.dequantize(x)), 0.0)
    exact = power / power.sum(-1, keepdims=True)
    through = np.exp(WIDE.dequantize(WIDE.quantize(FINE.dequantize(x), 0, 255))) * keep
    rounded = through / through.sum(-1, keepdims=True)
    for got in found:
        assert np.abs(UNIT.dequantize(got) - exact).max() <= UNIT.scale
    # With the intermediate encoding, as the graph is written, it would be off by more.
    assert np.abs(rounded - exact).max() > 3 * UNIT.scale
