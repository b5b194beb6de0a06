"""What ``quantize_model`` writes: symmetric weights unless asked otherwise, codes that there are, used opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import advising, zoo
from openhtp.core.errors import InvalidArgument
from openhtp.frontend.onnx_import import load
from openhtp.frontend.onnx_reader import parse_model
from openhtp.frontend.quantize import quantize_model
from openhtp.zoo.feeds import random_feeds

MODEL = zoo.small_cnn()
SAMPLES = random_feeds(MODEL, 2)


def weights(model: bytes) -> list[Any]:
    graph = load(model)
    found = [graph.call(node).inputs[1] for node in graph.nodes if node.op in ("Conv2d", "FullyConnected")]
    assert found
    return found


def test_c17_weights_are_symmetric_by_default() -> None:
    quantized = quantize_model(MODEL, SAMPLES).model
    for spec in weights(quantized):
        assert spec.dtype.signed
        assert spec.quant.offset == 0
    told = advising.advise(htp.onnx.load(quantized), "SM8650")
    assert not [finding for finding in told if "asymmetric" in finding.what]
    assert any(
        spec.quant.offset not in (0, -128) for spec in weights(quantize_model(MODEL, SAMPLES, weight="u8").model)
    )


def test_files_name_no_opset_that_they_do_not_use() -> None:
    """The runtime would name all that it has, and those that this process registered until now."""
    merged = zoo.transformer_blocks(1, seq=4, hidden=8, heads=2, ffn=8)
    quantized = quantize_model(merged, random_feeds(merged, 1))
    for model in (quantized.prepared, quantized.model):
        proto = parse_model(model)
        assert {item.domain for item in proto.opset_import} == {"", *(node.domain for node in proto.graph.node)}


def stored(model: bytes) -> list[np.ndarray]:
    from onnx import numpy_helper

    return [numpy_helper.to_array(item) for item in parse_model(model).graph.initializer if item.data_type == 5]


@pytest.mark.parametrize("per_channel", [False, True])
def test_c12_sixteen_bit_weights_keep_to_the_steps(per_channel: bool) -> None:
    options: dict[str, Any] = {"weight": "s16", "activation": "u16", "per_channel": per_channel}
    quantized = quantize_model(MODEL, SAMPLES, restrict_quantization_steps="-0x8000 0x7F7F", **options).model
    largest = [int(np.abs(array.astype(int)).max()) for array in stored(quantized) if array.ndim > 1]
    assert largest
    assert all(0x7F00 < one <= 0x7F7F for one in largest)
    plain = quantize_model(MODEL, SAMPLES, **options).model
    assert any(int(array.max()) > 0x7F7F or int(array.min()) < -0x7F7F for array in stored(plain))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("0x7F7F", "expected the lowest and the highest step"),
        ("-0x8000 0x8000", "-0x8000 to 0x7fff"),
        ("5 3", "expected the lowest and the highest step"),
        (7, "expected the lowest and the highest step"),
    ],
)
def test_c12_steps_that_there_are_not(steps: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        quantize_model(MODEL, SAMPLES, weight="s16", restrict_quantization_steps=steps)
