"""Ops whose result hangs on a choice, on well-formed data: regions, boxes and scores as networks make them.

Random numbers, as ``make vendor-diff`` draws them, seldom are: regions run backwards, encodings of scores differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ops._opdef import TYPE_WORDS
from vendor_agreement.differential import Case, Row, run_ours, run_vendor

SOC = "SM8650"
UNITS = {"u8": ScaleOffset(1 / 256, 0), "u16": ScaleOffset(1 / 65536, 0)}
PLACES = {"u8": ScaleOffset(0.25, 0), "u16": ScaleOffset(2.0**-10, 0)}


def both(op: str, inputs: list[Any], outputs: list[Any], **params: Any) -> list[tuple[Any, Any]]:
    """Ours and theirs, as stored. An input is (numbers, word, encodings by word), an output (shape, word, ...)."""
    specs, stored = [], {}
    for index, (numbers, word, *quants) in enumerate(inputs):
        array, dtype = np.asarray(numbers, float), TYPE_WORDS[word]
        quant = quants[0].get(word) if quants else None
        spec = TensorSpec(f"x{index}", array.shape, dtype, quant, TensorKind.APP_WRITE)
        held = array if quant is None else quant.quantize(array, *dtype.integer_range)
        specs.append(spec)
        stored[spec.name] = np.ascontiguousarray(held, dtype.numpy)
    results = tuple(
        TensorSpec(f"y{i}", shape, TYPE_WORDS[word], quants[0].get(word) if quants else None, TensorKind.APP_READ)
        for i, (shape, word, *quants) in enumerate(outputs)
    )
    row = Row(op, 0, tuple(s.dtype for s in specs), tuple(s.dtype for s in results))
    case = Case(row, OpCall(op, "node", tuple(specs), results, params), stored, ())
    return list(zip(run_ours(case, OrtEngine()), run_vendor(case, SOC), strict=True))


def boxes_and_scores(rng: np.random.Generator, count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes in twos, nearly alike, and scores without equal ones, even in 8 bits."""
    corner, size = rng.uniform(0, 40, (count // 2, 2)), rng.uniform(6, 20, (count // 2, 2))
    first = np.concatenate([corner, corner + size], axis=1)
    boxes = np.concatenate([first, first + 1.0])
    scores = rng.permutation(np.arange(1, 255))[: count * classes].reshape(count, classes) / 256
    return boxes[None], scores[None]


@pytest.mark.vendor
@pytest.mark.parametrize("score", ["u8", "u16"])
@pytest.mark.parametrize("place", ["u8", "u16", "f32"])
@pytest.mark.parametrize("seed", range(3))
def test_multi_class_nms(score: str, place: str, seed: int, oracle_devices: None) -> None:
    boxes, scores = boxes_and_scores(np.random.default_rng(seed), 12, 3)
    slots, features = 18, np.arange(24).reshape(1, 12, 2)
    got = both(
        "MultiClassNms",
        [(boxes, place, PLACES), (scores, score, UNITS), (features, "i32")],
        [
            ((1, slots, 4), "f32"),
            ((1, slots), score, UNITS),
            ((1, slots), "i32"),
            ((1,), "n32"),
            ((1, slots, 2), "i32"),
        ],
        iou_threshold=0.5,
        score_threshold=0.3,
    )
    (ours, theirs) = got[3]
    assert ours[0] == theirs[0]
    assert 3 <= ours[0] <= 6
    filled = int(ours[0]) * 3
    for one, other in (*got[1:3], got[4]):
        np.testing.assert_array_equal(one[:, :filled], other[:, :filled])
    # One side or the other has had the coordinates in half precision.
    np.testing.assert_allclose(got[0][0][:, :filled], got[0][1][:, :filled], rtol=2.0**-10)


@pytest.mark.vendor
@pytest.mark.parametrize("kind", ["REGULAR", "FAST"])
@pytest.mark.parametrize("score", ["u8", "u16"])
@pytest.mark.parametrize("place", ["u8", "u16", "f32"])
@pytest.mark.parametrize("seed", range(2))
def test_detection_output(kind: str, score: str, place: str, seed: int, oracle_devices: None) -> None:
    rng = np.random.default_rng(seed)
    boxes, scores = boxes_and_scores(rng, 12, 3)
    anchors = np.concatenate([(boxes[0, :, :2] + boxes[0, :, 2:]) / 2, boxes[0, :, 2:] - boxes[0, :, :2]], axis=1)
    moves = {"u8": ScaleOffset(1 / 64, -128), "u16": ScaleOffset(2.0**-14, -32768)}
    got = both(
        "DetectionOutput",
        [(scores, score, UNITS), (rng.uniform(-1, 1, (1, 12, 4)), place, moves), (anchors, place, PLACES)],
        [((1, 20), score, UNITS), ((1, 20, 4), "f32"), ((1, 20), "i32"), ((1,), "n32")],
        delta_scaling_factors=[10.0, 10.0, 5.0, 5.0],
        confidence_threshold=0.3,
        iou_threshold=0.5,
        nms_type=kind,
        detection_limit=1 if kind == "FAST" else 4,
    )
    for (one, other), slack in zip(got, (0, 0.05, 0, 0), strict=True):
        np.testing.assert_allclose(one, other, atol=slack)
    assert 3 <= got[3][0][0] <= 12


@pytest.mark.vendor
@pytest.mark.parametrize("score", ["u8", "u16", "f32"])
@pytest.mark.parametrize("seed", range(3))
def test_selections_of_several_classes_and_images(score: str, seed: int, oracle_devices: None) -> None:
    pairs = [boxes_and_scores(np.random.default_rng([seed, image]), 10, 3) for image in range(2)]
    boxes, scores = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    (ours, theirs), (counts, their_counts) = both(
        "NonMaxSuppression",
        [(boxes, "f32"), (scores.transpose(0, 2, 1), score, UNITS)],
        [((2 * 3 * 6, 3), "i32"), ((2,), "n32")],
        iou_threshold=0.5,
        score_threshold=0.3,
        max_boxes_selected=6,
    )
    assert counts.tolist() == their_counts.tolist()
    for image, count in enumerate(counts):
        rows = slice(18 * image, 18 * image + int(count))
        np.testing.assert_array_equal(ours[rows], theirs[rows])


@pytest.mark.vendor
@pytest.mark.parametrize("image", ["u8", "u16"])
@pytest.mark.parametrize("place", ["u8", "u16"])
@pytest.mark.parametrize("number", ["n32", "i32"])
def test_regions_in_fixed_point(image: str, place: str, number: str, oracle_devices: None) -> None:
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 5, (6, 2))
    regions = np.concatenate([corner, corner + rng.uniform(1, 5, (6, 2))], axis=1)
    ((ours, theirs),) = both(
        "RoiAlign",
        [(rng.uniform(0, 1, (1, 11, 12, 4)), image, UNITS), (regions, place, PLACES), (np.zeros(6), number)],
        [((6, 3, 2, 4), image, UNITS)],
        img_size_ratio=[1.0, 1.0],
        num_samples_y=2,
        num_samples_x=2,
    )
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    assert apart.max() <= (2 if image == "u8" else 64)
    assert ours.std() > 10
