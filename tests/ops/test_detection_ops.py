"""Detection: what is selected, in which order, and what fills the places that are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from one_op import Given, check, run

from openhtp.core.errors import InvalidArgument, UnsupportedOp
from openhtp.core.quant import ScaleOffset

# Two pairs of neighbours and a box of its own; overlaps of the pairs are 0.68 and 0.82.
BOXES = np.array([[[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [21, 20, 31, 30], [50, 50, 60, 60]]], float)
SCORES = np.array([[[0.9, 0.1], [0.8, 0.6], [0.7, 0.2], [0.75, 0.65], [0.3, 0.95]]])  # per box
UNIT = ScaleOffset(1 / 256, 0)


def naive_overlap(a: Any, b: Any) -> float:
    """By counting, on a fine grid that all coordinates of these tests lie on."""
    cells = [
        {
            (y, x)
            for y in range(int(min(box[0], box[2])), int(max(box[0], box[2])))
            for x in range(int(min(box[1], box[3])), int(max(box[1], box[3])))
        }
        for box in (a, b)
    ]
    union = len(cells[0] | cells[1])
    return len(cells[0] & cells[1]) / union if union else 0.0


def naive_nms(boxes: Any, scores: Any, overlap: float, threshold: float, most: int) -> list[int]:
    left, kept = [n for n in range(len(boxes)) if scores[n] >= threshold], []
    while left and len(kept) < most:
        best = max(left, key=lambda n: (scores[n], -n))
        kept.append(best)
        left = [n for n in left if n != best and naive_overlap(boxes[n], boxes[best]) <= overlap]
    return kept


def nms(boxes: Any, scores: Any, most: int, word: str = "f32", **params: Any) -> tuple[list[list[int]], list[int]]:
    scores = np.asarray(scores, float)
    batch, classes, count = scores.shape
    room = batch * classes * min(most, count)
    quant = UNIT if word[0] == "u" else None
    found, counts = run(
        "NonMaxSuppression",
        [Given(boxes, word if word[0] == "f" else "f32"), Given(scores, word, quant)],
        [((room, 3), "i32"), ((batch,), "n32")],
        **{"iou_threshold": 0.5, "max_boxes_selected": most, **params},
    )
    return found.tolist(), counts.tolist()


def test_the_best_of_each_neighbourhood_is_kept() -> None:
    found, counts = nms(BOXES, SCORES.transpose(0, 2, 1), 5)
    assert counts == [6]
    assert found[:6] == [[0, 0, 0], [0, 0, 3], [0, 0, 4], [0, 1, 4], [0, 1, 3], [0, 1, 1]]
    assert found[6:] == [[0, 1, 1]] * 4


def test_images_have_sections_and_counts_of_their_own() -> None:
    scores = np.array([[[0.9, 0.8, 0.7, 0.6, 0.5]], [[0.1, 0.2, 0.3, 0.4, 0.55]]])
    found, counts = nms(BOXES.repeat(2, 0), scores, 4, score_threshold=0.5)
    assert counts == [3, 1]
    assert found == [[0, 0, 0], [0, 0, 2], [0, 0, 4], [0, 0, 4], *[[1, 0, 4]] * 4]


def test_nothing_selected_names_the_first_box() -> None:
    found, counts = nms(BOXES, np.full((1, 1, 5), 0.1), 2, score_threshold=0.5)
    assert (found, counts) == ([[0, 0, 0], [0, 0, 0]], [0])


@pytest.mark.parametrize(("threshold", "kept"), [(0.5, 1), (0.501, 0), (0.499, 1)])
def test_a_score_equal_to_the_threshold_passes(threshold: float, kept: int) -> None:
    assert nms(BOXES[:, :1], [[[0.5]]], 1, score_threshold=threshold)[1] == [kept]


@pytest.mark.parametrize(("threshold", "kept"), [(0.5, 2), (0.49, 1)])
def test_an_overlap_equal_to_the_threshold_is_not_too_much(threshold: float, kept: int) -> None:
    boxes = [[[0, 0, 8, 8], [0, 0, 8, 4]]]
    assert nms(boxes, [[[0.9, 0.8]]], 2, iou_threshold=threshold)[1] == [kept]


def test_corners_may_come_in_either_order() -> None:
    boxes = [[[10, 10, 0, 0], [0, 1, 10, 10]]]
    assert nms(boxes, [[[0.9, 0.8]]], 2)[1] == [1]


def test_no_room_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="selects nothing"):
        check("NonMaxSuppression", [Given(BOXES), Given(SCORES.transpose(0, 2, 1))], [((5, 3), "i32")],
              iou_threshold=0.5)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    boxes=arrays(np.int64, (2, 7, 4), elements=st.integers(0, 12)),
    scores=arrays(np.int64, (2, 2, 7), elements=st.integers(0, 255)),
    overlap=st.sampled_from([0.0, 0.11, 0.33, 0.61]),
    threshold=st.integers(0, 255),
    most=st.integers(1, 8),
    word=st.sampled_from(["f32", "f16", "u8"]),
)
def test_any_selection(boxes: Any, scores: Any, overlap: float, threshold: int, most: int, word: str) -> None:
    found, counts = nms(boxes, scores / 256, most, word, iou_threshold=overlap, score_threshold=threshold / 256)
    room = 2 * min(most, 7)
    for image in range(2):
        wanted = [
            [image, kind, box]
            for kind in range(2)
            for box in naive_nms(boxes[image], scores[image, kind], overlap, threshold, most)
        ]
        assert counts[image] == len(wanted)
        section = found[image * room : (image + 1) * room]
        assert section == wanted + [wanted[-1] if wanted else [image, 0, 0]] * (room - len(wanted))


def multi_class(slots: int, scores: Any = SCORES, word: str = "u8", feature: str = "i32", **params: Any) -> Any:
    features = np.arange(15).reshape(1, 5, 3)
    return run(
        "MultiClassNms",
        [Given(BOXES, "u8"), Given(scores, word, UNIT), Given(features, feature)],
        [
            ((1, slots, 4), "f32"),
            ((1, slots), word, UNIT),
            ((1, slots), "i32"),
            ((1,), "n32"),
            ((1, slots, 3), feature),
        ],
        **{"iou_threshold": 0.5, **params},
    )


@pytest.mark.parametrize("feature", ["u8", "s8", "u16", "s16", "n32", "i32", "f32"])
def test_a_kept_box_is_listed_with_all_its_classes(feature: str) -> None:
    boxes, scores, labels, count, features = multi_class(8, feature=feature)
    assert boxes[0, :, 0].tolist() == [50, 50, 0, 0, 21, 21, 0, 0]
    np.testing.assert_allclose(scores[0], [0.95, 0.3, 0.9, 0.1, 0.75, 0.65, 0, 0], atol=1 / 256)
    assert labels[0].tolist() == [1, 0, 0, 1, 0, 1, 0, 0]
    assert count.tolist() == [3]
    assert features[0, :, 0].tolist() == [12, 12, 0, 0, 9, 9, 0, 0]
    assert features[0, -1].tolist() == [0, 0, 0]


def test_what_has_no_slot_is_left_out() -> None:
    boxes, _, labels, count, _ = multi_class(3)
    assert (boxes[0, :, 0].tolist(), labels[0].tolist(), count.tolist()) == ([50, 50, 0], [1, 0, 0], [3])


def test_a_box_is_judged_by_its_best_class() -> None:
    boxes, scores, _, count, _ = multi_class(4, score_threshold=0.92)
    assert count.tolist() == [1]
    assert boxes[0, :, 0].tolist() == [50, 50, 0, 0]
    assert scores[0, 2:].tolist() == [0, 0]


def test_soft_suppression_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="soft_nms_sigma is 0"):
        multi_class(4, soft_nms_sigma=0.5)


def test_features_and_their_outputs_are_as_many() -> None:
    with pytest.raises(InvalidArgument, match="4 outputs for 1 features; expected 5"):
        check(
            "MultiClassNms",
            [Given(BOXES, "u8"), Given(SCORES, "u8", UNIT), Given(np.zeros((1, 5)), "i32")],
            [((1, 4, 4), "f32"), ((1, 4), "u8", UNIT), ((1, 4), "i32"), ((1,), "n32")],
            iou_threshold=0.5,
        )


ANCHORS = np.array([[5, 5, 10, 10], [6, 6, 10, 10], [25, 25, 10, 10], [26, 25, 10, 10], [55, 55, 10, 10]], float)
# The first class is the background.
CLASSES = np.concatenate([np.array([0.05, 0.05, 0.05, 0.05, 0.5])[None, :, None], SCORES], axis=2)


def detect(slots: int, word: str = "f32", scores: Any = CLASSES, moves: Any = None, **params: Any) -> Any:
    quant = [] if word[0] == "f" else [UNIT]
    batch = len(scores)
    moves = np.zeros((batch, 5, 4)) if moves is None else moves
    defaults = {"delta_scaling_factors": [1.0] * 4, "confidence_threshold": 0.2, "iou_threshold": 0.5}
    return run(
        "DetectionOutput",
        [Given(scores, word, *quant), Given(moves), Given(np.tile(ANCHORS, (batch, 1)))],
        [((batch, slots), word, *quant), ((batch, slots, 4), "f32"), ((batch, slots), "i32"), ((batch,), "n32")],
        **{**defaults, **params},
    )


@pytest.mark.parametrize("word", ["f32", "u8"])
def test_regular_detection_sorts_what_each_class_keeps(word: str) -> None:
    scores, boxes, labels, count = detect(8, word, nms_type="REGULAR")
    np.testing.assert_allclose(scores[0], [0.95, 0.9, 0.75, 0.65, 0.6, 0.3, 0, 0], atol=1 / 256)
    assert labels[0].tolist() == [2, 1, 1, 2, 2, 1, 0, 0]
    assert boxes[0, :, 0].tolist() == [50, 0, 21, 21, 1, 50, 0, 0]
    assert count.tolist() == [6]


def test_detection_limit_is_per_class_or_per_box() -> None:
    _, boxes, labels, count = detect(5, nms_type="REGULAR", detection_limit=1)
    assert (labels[0].tolist(), count.tolist()) == ([2, 1, 0, 0, 0], [2])
    assert boxes[0, :2, 0].tolist() == [50, 0]
    scores, boxes, labels, count = detect(5, "u8", detection_limit=1)
    np.testing.assert_allclose(scores[0], [0.95, 0.9, 0.75, 0, 0], atol=1 / 256)
    assert (labels[0].tolist(), count.tolist()) == ([2, 1, 1, 0, 0], [3])


def test_the_background_takes_part_only_if_asked() -> None:
    labels, count = detect(9, nms_type="REGULAR", use_bg_in_nms=True)[2:]
    assert (labels[0].tolist(), count.tolist()) == ([2, 1, 1, 2, 2, 0, 1, 0, 0], [7])
    labels, _ = detect(6, nms_type="REGULAR", output_background=False)[2:]
    assert labels[0].tolist() == [1, 0, 0, 1, 1, 0]
    labels, _ = detect(6, nms_type="REGULAR", output_background=False, background_class_idx=1)[2:]
    assert labels[0].tolist() == [1, 1, 1, 0, 0, 0]


def test_boxes_are_anchors_moved_and_stretched() -> None:
    moves = np.zeros((1, 5, 4))
    moves[0, 4] = [1, -1, 0.5, 0.25]
    params = {"nms_type": "REGULAR", "delta_scaling_factors": [10.0, 10.0, 5.0, 5.0]}
    _, boxes, _, _ = detect(1, moves=moves, **params)
    height, width = 10 * np.exp(0.1), 10 * np.exp(0.05)
    wanted = [56 - height / 2, 54 - width / 2, 56 + height / 2, 54 + width / 2]
    # Not rounded to half precision, in which coordinates of this size are 1/32 apart.
    np.testing.assert_allclose(boxes[0, 0], wanted, rtol=1e-6)


def test_a_score_at_the_threshold_passes_when_fast() -> None:
    scores = np.zeros((1, 5, 2))
    scores[0, :, 1] = [0.5, 0, 0.5, 0, 0.75]
    assert detect(5, nms_type="REGULAR", scores=scores, confidence_threshold=0.5)[3].tolist() == [1]
    assert detect(5, "u8", scores=scores, confidence_threshold=0.5, detection_limit=1)[3].tolist() == [3]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"share_location": False}, "share_location is true"),
        ({"nms_type": "REGULAR", "nms_eta": 0.5}, "nms_eta is 1"),
    ],
)
def test_what_detection_does_not_offer(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedOp, match=reason):
        detect(5, **params)


@settings(max_examples=40, deadline=None)
@given(
    scores=arrays(np.int64, (2, 5, 3), elements=st.integers(0, 255)),
    slots=st.integers(1, 12),
    threshold=st.integers(1, 255),
    limit=st.sampled_from([-1, 1, 2]),
)
def test_any_regular_detection(scores: Any, slots: int, threshold: int, limit: int) -> None:
    corners = np.concatenate([ANCHORS[:, :2] - 5, ANCHORS[:, :2] + 5], axis=1)
    got = detect(slots, "u8", scores / 256, nms_type="REGULAR", confidence_threshold=(threshold - 0.5) / 256,
                 detection_limit=limit)  # fmt: skip
    for image in range(2):
        wanted = [
            (scores[image, box, kind], kind, box)
            for kind in (1, 2)
            for box in naive_nms(corners, scores[image, :, kind], 0.5, threshold, limit if limit > 0 else 5)
        ]
        wanted = sorted(wanted, key=lambda each: -each[0])[:slots]
        count = len(wanted)
        assert got[3][image] == count
        assert (got[0][image] * 256).tolist() == [each[0] for each in wanted] + [0] * (slots - count)
        assert got[2][image].tolist() == [each[1] for each in wanted] + [0] * (slots - count)
        assert got[1][image][:count].tolist() == [corners[each[2]].tolist() for each in wanted]
        assert not got[1][image][count:].any()
