"""Whole networks: the right ops, no needless transpositions, and numbers as good as onnxruntime's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from import_cases import run_here, run_ort, sqnr

from openhtp import zoo
from openhtp.core.dtype import DType
from openhtp.onnx import load

_NETS = {
    "mobilenet_v2": lambda: zoo.mobilenet_v2(64, 0.5),
    "resnet18": lambda: zoo.resnet18(64),
    "small_cnn": zoo.small_cnn,
    "tiny_mlp": zoo.tiny_mlp,
    "transformer_blocks": lambda: zoo.transformer_blocks(1, seq=32, hidden=64, ffn=128),
}


@pytest.mark.parametrize("name", _NETS)
def test_float_network_agrees_within_half_precision(name: str) -> None:
    model = _NETS[name]()
    feeds = zoo.random_feeds(model)[0]
    assert sqnr(run_ort(model, feeds)["output"], run_here(load(model), feeds)["output"]) > 50


@pytest.mark.parametrize("name", _NETS)
@pytest.mark.parametrize(("activation", "weight", "per_channel"), [("u8", "u8", False), ("u16", "s8", True)])
def test_quantized_network_is_as_close_to_the_float_one_as_onnxruntime(
    name: str, activation: str, weight: str, per_channel: bool
) -> None:
    model = _NETS[name]()
    quantized = zoo.quantized(model, activation, weight, per_channel=per_channel)
    graph = load(quantized)
    sets = zoo.random_feeds(model, 3)
    exact = np.concatenate([run_ort(model, feeds)["output"] for feeds in sets])
    theirs = np.concatenate([run_ort(quantized, feeds)["output"] for feeds in sets])
    ours = np.concatenate([run_here(graph, feeds)["output"] for feeds in sets])
    # Half a decibel; small nets have few outputs, so chance alone moves them by more.
    slack = 0.5 if exact.size > 300 else 2.0
    assert sqnr(exact, ours) > sqnr(exact, theirs) - slack


def test_images_are_transposed_once() -> None:
    graph = load(zoo.quantized(zoo.small_cnn()))
    ops = Counter(call.op for call in graph.nodes)
    assert ops["Transpose"] == 1
    assert ops["Quantize"] == ops["Dequantize"] == 1
    assert (graph.inputs[0].name, graph.inputs[0].shape) == ("input", (1, 3, 64, 64))
    assert (graph.outputs[0].name, graph.outputs[0].shape) == ("output", (1, 10))


def test_written_out_gelu_is_one_op() -> None:
    ops = Counter(call.op for call in load(_NETS["transformer_blocks"]()).nodes)
    assert ops["Gelu"] == 1
    assert not ops["ElementWiseDivide"]


def test_constants_of_layer_norm_are_stored_as_the_hardware_takes_them() -> None:
    """The quantizer writes 16-bit scales from zero up and biases with an offset; the HTP takes neither."""
    model = zoo.quantized(_NETS["transformer_blocks"](), "u16", "s16")
    graph = load(model)
    norms = [graph.call(node) for node in graph.nodes if node.op == "LayerNorm"]
    assert len(norms) == 3
    for norm in norms:
        scale, bias = norm.inputs[1], norm.inputs[2]
        assert (scale.dtype, scale.quant.offset) == (DType.UFIXED_POINT_16, -32768)
        assert (bias.dtype, bias.quant.offset) == (DType.SFIXED_POINT_32, 0)
