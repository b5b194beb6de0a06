"""Box selection: ONNX's result, then copies of its last row up to the size that the HTP has room for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from import_cases import model_of, node, run_here, run_ort
from onnx import TensorProto

import openhtp as htp
from openhtp.onnx import load

INT64 = {"y": TensorProto.INT64}


def nms_model(
    shapes: Any, constants: dict[str, Any], inputs: str = "b s most overlap least", **attrs: Any
) -> bytes:
    own_node = node("NonMaxSuppression", inputs, "y", **attrs)
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    return model_of([own_node], dict(zip("bs", shapes, strict=True)), ["y"], arrays, types=INT64)


def feeds(batch: int, classes: int, boxes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    corner = rng.uniform(0, 8, (batch, boxes, 2))
    return {
        "b": np.concatenate([corner, corner + rng.uniform(2, 6, corner.shape)], axis=2).astype(np.float32),
        # Numbers that half precision holds.
        "s": (rng.permutation(batch * classes * boxes).reshape(batch, classes, boxes) / 64 - 0.25).astype(
            np.float32
        ),
    }


@pytest.mark.parametrize("inputs", ["b s most overlap least", "b s most overlap", "b s most"])
@pytest.mark.parametrize("most", [3, 50])
def test_selections(inputs: str, most: int) -> None:
    given = feeds(1, 3, 12)
    constants = {"most": np.array([most]), "overlap": np.float32([0.3]), "least": np.float32([0.125])}
    used = {name: constants[name] for name in inputs.split()[2:]}
    model = nms_model([(1, 12, 4), (1, 3, 12)], used, inputs)
    wanted = run_ort(model, given)["y"]
    got = run_here(load(model), given)["y"]
    assert got.dtype == np.int64
    assert got.shape == (3 * min(most, 12), 3)
    np.testing.assert_array_equal(got[: len(wanted)], wanted)
    assert (got[len(wanted) :] == wanted[-1]).all()
    assert len(wanted) > 3


def test_a_score_at_the_threshold_is_dropped_as_in_onnx() -> None:
    inputs = {"b": np.float32([[[0, 0, 1, 1], [4, 4, 5, 5]]]), "s": np.float32([[[0.5, 0.75]]])}
    constants = {"most": [2], "overlap": np.float32([0.5]), "least": np.float32([0.5])}
    model = nms_model([(1, 2, 4), (1, 1, 2)], constants)
    assert run_ort(model, inputs)["y"].tolist() == [[0, 0, 1]]
    assert run_here(load(model), inputs)["y"].tolist() == [[0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("constants", "inputs", "attrs", "reason"),
    [
        ({}, "b s", {}, "max_output_boxes_per_class a constant of at least 1"),
        ({"most": [0]}, "b s most", {}, "max_output_boxes_per_class a constant of at least 1"),
        ({"most": [2]}, "b s most", {"center_point_box": 1}, "give boxes by their corners"),
    ],
)
def test_selections_that_are_refused(constants: Any, inputs: str, attrs: Any, reason: str) -> None:
    with pytest.raises(htp.UnsupportedError, match=reason):
        load(nms_model([(1, 2, 4), (1, 1, 2)], constants, inputs, **attrs))


def test_boxes_of_another_rank_are_a_broken_model() -> None:
    with pytest.raises(htp.BadModel, match="expected rank 3"):
        load(nms_model([(2, 4), (1, 1, 2)], {"most": [2]}, "b s most"))


def test_places_of_unknown_number_are_refused() -> None:
    with pytest.raises(htp.UnsupportedError, match="fills up with -1"):
        load(model_of([node("NonZero", "x", "y")], {"x": [4]}, ["y"], types=INT64))


def test_the_highest_of_a_region_is_refused() -> None:
    constants = {"r": np.float32([[0, 0, 2, 2]]), "n": np.array([0])}
    with pytest.raises(htp.UnsupportedError, match="use avg"):
        load(model_of([node("RoiAlign", "x r n", "y", mode="max")], {"x": [1, 1, 4, 4]}, ["y"], constants))
