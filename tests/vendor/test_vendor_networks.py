"""Whole networks on both devices, by the same program: no worse against the float model than the vendor's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import openhtp as htp
import openhtp.onnx
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.vendor.library import find_library

# What the two may differ by, as a signal-to-noise ratio against the float model.
SLACK_DB = 0.5

NETWORKS = {
    "small_cnn": zoo.small_cnn,
    "mobilenet_v2": lambda: zoo.mobilenet_v2(resolution=96),
    "transformer_blocks": zoo.transformer_blocks,
}
# Types of activations and weights, and whether weights have a scale per channel; None for the float network.
FORMS = {
    "float": None,
    "u8": ("u8", "u8", False),
    "u16": ("u16", "u8", False),
    "u8 per channel": ("u8", "s8", True),
    "u16 per channel": ("u16", "s8", True),
    "u16 s16": ("u16", "s16", False),
}


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, htp.Device]]:
    if find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    with htp.Backend() as emulator, htp.Backend(library="vendor") as vendor:
        yield {"emulator": emulator.create_device(), "vendor": vendor.create_device()}


def run_all(device: htp.Device, model: bytes, feeds: list[dict[str, Any]]) -> np.ndarray:
    """The real values of the first output for every feed."""
    results = []
    with device.create_context() as context:
        graph = context.compose_graph(openhtp.onnx.load(model))
        graph.finalize()
        for feed in feeds:
            inputs = {tensor.name: stored(tensor.spec, feed[tensor.name]) for tensor in graph.inputs}
            spec, result = graph.outputs[0].spec, next(iter(graph.execute(inputs).values()))
            results.append(result if spec.quant is None else spec.quant.dequantize(result))
    return np.asarray(results, np.float64)


def stored(spec: htp.TensorSpec, values: np.ndarray) -> np.ndarray:
    if spec.quant is None:
        return values.astype(spec.dtype.numpy)
    return spec.quant.quantize(values, *spec.dtype.integer_range).astype(spec.dtype.numpy)


def decibels(results: np.ndarray, wanted: np.ndarray) -> float:
    return float(10 * np.log10((wanted**2).sum() / ((results.reshape(wanted.shape) - wanted) ** 2).sum()))


def quantized(plain: bytes, form: str) -> bytes:
    chosen = FORMS[form]
    if chosen is None:
        return plain
    activation, weight, per_channel = chosen
    return zoo.quantized(plain, activation=activation, weight=weight, per_channel=per_channel)


@pytest.mark.vendor
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, form) for name in NETWORKS for form in ("float", "u8", "u16")),
        # Layer normalization has its constants stored by rules of its own, whatever form the file has them in.
        *(("transformer_blocks", form) for form in ("u8 per channel", "u16 per channel", "u16 s16")),
    ],
)
def test_networks_are_as_accurate_as_the_vendors(devices: dict[str, htp.Device], name: str, form: str) -> None:
    plain = NETWORKS[name]()
    model = quantized(plain, form)
    feeds = zoo.random_feeds(plain, 4, seed=5)
    session = onnxruntime.InferenceSession(plain)
    wanted = np.asarray([session.run(None, feed)[0] for feed in feeds], np.float64)
    ratios = {kind: decibels(run_all(device, model, feeds), wanted) for kind, device in devices.items()}
    assert ratios["vendor"] > 15
    assert ratios["emulator"] >= ratios["vendor"] - SLACK_DB
