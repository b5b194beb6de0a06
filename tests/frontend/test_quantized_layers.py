"""Single layers may have another type of activations than the rest."""

from __future__ import annotations

import onnx
import pytest

from openhtp.core.errors import InvalidArgument
from openhtp.frontend.quantize import quantize_model
from openhtp.session.accuracy import compare_outputs
from openhtp.zoo import random_feeds, tiny_mlp

MODEL = tiny_mlp()
SAMPLES = random_feeds(MODEL, 4)


def names():
    return [node.name for node in onnx.load_from_string(quantize_model(MODEL, SAMPLES).prepared).graph.node]


def test_wider_layers_lose_less():
    plain = quantize_model(MODEL, SAMPLES, activation="u8")
    same = quantize_model(MODEL, SAMPLES, activation="u8", layers=dict.fromkeys(names(), "u8"))
    assert same.model == plain.model
    wide = quantize_model(MODEL, SAMPLES, activation="u8", layers=dict.fromkeys(names(), "u16"))
    sqnr = [compare_outputs(MODEL, made.model, SAMPLES)[0].htp.sqnr_db for made in (plain, wide)]
    assert sqnr[1] > sqnr[0]


def test_mistakes():
    with pytest.raises(InvalidArgument, match="no node 'nosuch'; nearest known"):
        quantize_model(MODEL, SAMPLES, layers={"nosuch": "u16"})
    with pytest.raises(InvalidArgument, match="activation of layer 'x' 'u4' is unknown"):
        quantize_model(MODEL, SAMPLES, layers={"x": "u4"})
