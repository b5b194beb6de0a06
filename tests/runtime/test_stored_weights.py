"""The room that weights take in a context binary: floats in half precision, narrow ones in 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp

Arrays = dict[str, np.ndarray]
RNG = np.random.default_rng(5)
X = RNG.normal(size=(1, 256)).astype(np.float32)
FLOATS = RNG.normal(size=(256, 256)).astype(np.float32)
CODES = htp.ScaleOffset(0.05, -128)
BYTES = RNG.integers(0, 256, (1, 256)).astype(np.uint8)


def dense(
    context: htp.Context, *, name: str = "dense", layers: int = 1, weights: np.ndarray = FLOATS, **options: Any
) -> htp.Graph:
    """Fully connected layers of float, with the same weights."""
    graph = context.create_graph(name, **options)
    last = graph.add_tensor("x", (1, 256), "float32", kind="app_write")
    w = graph.add_tensor("w", weights.shape, "float32", kind="static", data=weights)
    for number in range(layers):
        kind = "app_read" if number == layers - 1 else "native"
        y = graph.add_tensor(f"y{number}", (1, 256), "float32", kind=kind)
        graph.add_node("FullyConnected", inputs=[last, w], outputs=[y])
        last = y
    graph.finalize()
    return graph


def narrow(context: htp.Context, weights: np.ndarray, dtype: str, **options: Any) -> htp.Graph:
    """One fully connected layer of 8-bit activations."""
    graph = context.create_graph("narrow", **options)
    x = graph.add_tensor("x", (1, 256), "ufixed8", quant=CODES, kind="app_write")
    quant = htp.ScaleOffset(0.01, -128 if dtype == "ufixed8" else 0)
    w = graph.add_tensor("w", weights.shape, dtype, quant=quant, kind="static", data=weights)
    y = graph.add_tensor("y", (1, weights.shape[0]), "ufixed8", quant=htp.ScaleOffset(0.3, -128), kind="app_read")
    graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
    graph.finalize()
    return graph


def reloaded(device: htp.Device, binary: bytes | Path, graph: str, inputs: Arrays) -> Arrays:
    with device.create_context_from_binary(binary) as context:
        return context.graph(graph).execute(inputs)


@pytest.mark.parametrize("layers", [1, 9], ids=["program alone", "prepared form"])
@pytest.mark.parametrize(("precision", "nbytes"), [("float16", FLOATS.nbytes // 2), ("float32", FLOATS.nbytes)])
def test_float_weights_take_the_bytes_that_they_are_computed_with(
    shared_device: htp.Device, tmp_path: Path, layers: int, precision: str, nbytes: int
) -> None:
    path = tmp_path / "dense.bin"
    with shared_device.create_context() as context:
        graph = dense(context, layers=layers, precision=precision)
        expected = graph.execute({"x": X})
        path.write_bytes(context.get_binary())
    assert nbytes < path.stat().st_size < nbytes + 80_000
    for source in (path, path.read_bytes()):
        again = reloaded(shared_device, source, "dense", {"x": X})
        for name, values in expected.items():
            np.testing.assert_array_equal(again[name], values)


def test_what_half_precision_cannot_hold_becomes_infinite_as_it_does_when_it_runs(
    shared_device: htp.Device,
) -> None:
    weights = FLOATS.copy()
    weights[3] = 1e6
    weights[4] = 1e-7
    with shared_device.create_context() as context:
        expected = dense(context, weights=weights).execute({"x": np.abs(X)})["y0"]
        binary = context.get_binary()
    assert np.isinf(expected[0, 3])
    again = reloaded(shared_device, binary, "dense", {"x": np.abs(X)})["y0"]
    np.testing.assert_array_equal(again, expected)


def binary_of(device: htp.Device, weights: np.ndarray, dtype: str, **options: Any) -> tuple[bytes, Arrays]:
    with device.create_context() as context:
        outputs = narrow(context, weights, dtype, **options).execute({"x": BYTES})
        return context.get_binary(), outputs


@pytest.mark.parametrize(
    ("dtype", "least", "most", "packing", "packed"),
    [
        ("sfixed8", -8, 7, True, True),
        ("ufixed8", 120, 135, True, True),
        ("sfixed8", -9, 7, True, False),
        ("sfixed8", -8, 7, False, False),
    ],
)
def test_weights_that_need_four_bits_are_stored_in_them(
    shared_device: htp.Device, dtype: str, least: int, most: int, packing: bool, packed: bool
) -> None:
    """If the option asks for it."""
    kind = np.uint8 if dtype == "ufixed8" else np.int8
    weights = RNG.integers(least, most + 1, (512, 256)).astype(kind)
    weights.flat[:2] = least, most
    binary, expected = binary_of(shared_device, weights, dtype, weights_packing=packing)
    nbytes = weights.nbytes // 2 if packed else weights.nbytes
    assert nbytes < len(binary) < nbytes + 40_000
    again = reloaded(shared_device, binary, "narrow", {"x": BYTES})
    np.testing.assert_array_equal(again["y"], expected["y"])
