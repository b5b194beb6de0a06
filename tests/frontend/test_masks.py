"""Attention masks of minus infinity survive quantization."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from import_cases import model_of, node
from onnx import numpy_helper

from openhtp.frontend.probing import LOWEST_MASK, with_finite_masks
from openhtp.frontend.quantize import quantize_model
from openhtp.session.accuracy import compare_outputs

_SHAPE = (1, 2, 6, 6)


def _attention(how: str, lowest: float) -> bytes:
    """Softmax over scores of which every second is hidden, in the ways that exporters write."""
    hides = np.float32(lowest)
    keep = np.arange(6) % 2 == 0
    constants: dict[str, np.ndarray] = {"w": np.eye(6, dtype=np.float32), "hides": np.array(hides)}
    nodes = [node("MatMul", "x w", "scores")]
    if how == "added":
        constants["hides"] = np.where(keep, np.float32(0), hides)
        nodes.append(node("Add", "scores hides", "hidden"))
    elif how == "chosen":
        constants["keep"] = keep
        nodes.append(node("Where", "keep scores hides", "hidden"))
    elif how == "multiplied":
        constants["drop"] = 1 - keep.astype(np.float32)
        nodes += [node("Mul", "drop hides", "mask"), node("Add", "scores mask", "hidden")]
    else:
        constants["sizes"] = np.array([6, 6])
        value = numpy_helper.from_array(np.array([hides]))
        full = node("ConstantOfShape", "sizes", "full", value=value)
        nodes += [full, node("Trilu", "full one", "mask"), node("Add", "scores mask", "hidden")]
        constants["one"] = np.array(1)
    nodes += [node("Softmax", "hidden", "p"), node("MatMul", "p w", "y")]
    return model_of(nodes, {"x": _SHAPE}, ["y"], constants)


@pytest.mark.parametrize("how", ["added", "chosen", "multiplied", "triangle"])
@pytest.mark.parametrize("lowest", [-np.inf, float(np.finfo(np.float32).min)])
def test_quantized_attention_still_hides(how: str, lowest: float) -> None:
    if how == "multiplied" and lowest == -np.inf:
        pytest.skip("0 times infinity is not a number in the float model already")
    model = _attention(how, lowest)
    random = np.random.default_rng(0)
    samples = [{"x": random.normal(0, 2, _SHAPE).astype(np.float32)} for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = quantize_model(model, samples, activation="u16")
    assert quantized.masks == 1
    (report,) = compare_outputs(model, quantized.model, samples)
    assert report.htp.sqnr_db > 45
    assert report.cpu.sqnr_db > 45


def test_bounds_and_weights_are_left_alone() -> None:
    nodes = [node("Clip", "x low", "a"), node("Less", "a low", "b"), node("Where", "b x w", "y")]
    constants = {"low": np.float32(-1e30), "w": np.float32([-1.0, -9e3])}
    model = model_of(nodes, {"x": [2]}, ["y"], constants)
    assert with_finite_masks(model) == (model, 0)


def test_only_what_hides_is_changed() -> None:
    mask = np.float32([0.0, -3.5, -1e9, -np.inf])
    model, count = with_finite_masks(model_of([node("Add", "x m", "y")], {"x": [4]}, ["y"], {"m": mask}))
    (tensor,) = onnx.load_from_string(model).graph.initializer
    assert count == 1
    assert numpy_helper.to_array(tensor).tolist() == [0.0, -3.5, LOWEST_MASK, LOWEST_MASK]
