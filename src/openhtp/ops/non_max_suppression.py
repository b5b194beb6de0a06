"""Non-maximum suppression: the boxes that no better one covers. Detection ops share it.

Boxes are pairs of opposite corners. The highest score wins, the first of equal ones; a box that overlaps one
already kept by more than the threshold (area in common over area covered) is dropped. Boxes without area overlap
nothing. References are in numpy, lowerings in ONNX.

NonMaxSuppression selects per image and class. Its output has room for the most that can be selected; rows that are
not needed repeat the last selection of their image (or name its first box, if there is none), so that gathering by
them is harmless. MultiClassNms selects across classes and lists each box with its classes and its features; slots
that are not needed hold zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results, Shape, Shapes, put_integers
from openhtp.ops._opdef import FIXED_SHAPES, TWO_INPUTS, Constraint, OpDef, Param, Port, Sample, Work, rows
from openhtp.ops._shapes import expect_rank, expect_shape, refuse

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """How boxes are selected. ``at_least`` lets scores that equal the threshold pass."""

    overlap: float
    threshold: float
    at_least: bool = True

    @property
    def exclusive_threshold(self) -> np.float32:
        """The largest number that no longer passes."""
        threshold = np.float32(self.threshold)
        return np.nextafter(threshold, np.float32(-np.inf)) if self.at_least else threshold


def overlap(one: Array, other: Array) -> float:
    """Area in common over area covered by two boxes."""
    low = np.minimum(one[:2], one[2:]), np.minimum(other[:2], other[2:])
    high = np.maximum(one[:2], one[2:]), np.maximum(other[:2], other[2:])
    common = np.prod(np.maximum(np.minimum(*high) - np.maximum(*low), 0.0))
    covered = np.prod(high[0] - low[0]) + np.prod(high[1] - low[1]) - common
    return float(common / covered) if common > 0 else 0.0


def select(boxes: Array, scores: Array, settings: Settings, most: int) -> list[int]:
    """Numbers of the boxes that are kept, the highest score first."""
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable"):
        if len(kept) == most or not np.float32(scores[index]) > settings.exclusive_threshold:
            break
        if all(overlap(boxes[index], boxes[other]) <= settings.overlap for other in kept):
            kept.append(int(index))
    return kept


def emit_select(e: Emitter, boxes: str, scores: str, settings: Settings, most: int) -> str:
    """``select`` for [1, boxes, 4] and [1, classes, boxes]: a row (0, class, box) for each box that is kept."""
    limits = [e.ints([most]), e.floats([settings.overlap]), e.floats([settings.exclusive_threshold])]
    return e.node("NonMaxSuppression", [boxes, scores, *limits])


def column(e: Emitter, rows: str, number: int) -> str:
    """One column of the rows that ``emit_select`` gives."""
    return e.node("Gather", [rows, e.ints(number)], axis=1)


def image(e: Emitter, name: str, number: int) -> str:
    """One image of a batch; the batch axis stays."""
    return e.node("Slice", [name, e.ints([number]), e.ints([number + 1]), e.ints([0])])


def with_zero_row(e: Emitter, name: str, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> str:
    """A list with a row of zeros behind its end, for the index of an empty slot. ``shape`` is that of one row."""
    return e.node("Concat", [name, e.const(np.zeros((1, *shape), dtype))], axis=0)


@dataclass(frozen=True, slots=True)
class Detections(Generic[T]):
    """The slots of one image: the number of a box, its score and its class.

    An empty slot has the number behind the last box. Fields are arrays in a reference and names of values in a
    lowering. ``count`` is the number of detections.
    """

    boxes: T
    scores: T
    labels: T
    count: T


@dataclass(frozen=True, slots=True)
class WholeBoxes:
    """Suppression across classes: a box competes with its highest score and is listed with its best classes.

    The HTP does this in MultiClassNms, and in DetectionOutput of type FAST. It reports the number of boxes,
    however many classes each box is listed with.
    """

    settings: Settings
    labels: tuple[int, ...]
    per_box: int
    slots: int

    def reference(self, boxes: Array, scores: Array) -> Detections[Array]:
        """On [boxes, 4] and [boxes, classes]."""
        total = len(boxes)
        kept = select(boxes, scores.max(axis=1), self.settings, self.slots)
        detections: list[tuple[int, float, int]] = []
        for box in kept:
            order = np.argsort(-scores[box], kind="stable")[: self.per_box]
            detections += [(box, float(scores[box, label]), self.labels[label]) for label in order]
        detections = detections[: self.slots] + [(total, 0.0, 0)] * (self.slots - len(detections))
        numbers, heights, labels = zip(*detections, strict=True)
        return Detections(np.array(numbers), np.array(heights), np.array(labels), np.array(len(kept)))

    def emit(self, e: Emitter, boxes: str, scores: str, total: int) -> Detections[str]:
        """On names of [1, boxes, 4] and [1, boxes, classes]."""
        classes, slots = len(self.labels), self.slots
        best = e.node("ReduceMax", [scores, e.ints([2])], keepdims=1)
        rows = emit_select(e, boxes, e.node("Transpose", [best], perm=[0, 2, 1]), self.settings, slots)
        kept = fixed_length(e, column(e, rows, 2), slots, total)
        listed = with_zero_row(e, e.node("Reshape", [scores, e.ints([total, classes])]), (classes,))
        ordered = e.nodes("TopK", [e.node("Gather", [listed, kept], axis=0), e.ints([self.per_box])], 2, axis=1)
        heights, places = (self._first_slots(e, name) for name in ordered)
        owner = e.node("Gather", [kept, e.ints(np.arange(slots) // self.per_box)], axis=0)
        labels = e.node("Gather", [e.ints(self.labels), places], axis=0)
        exists = e.node("Less", [owner, e.ints(total)])
        labels = e.node("Where", [exists, labels, e.ints(0)])
        return Detections(owner, heights, labels, count_below(e, kept, total))

    def _first_slots(self, e: Emitter, name: str) -> str:
        flat = e.node("Reshape", [name, e.ints([self.slots * self.per_box])])
        return e.node("Slice", [flat, e.ints([0]), e.ints([self.slots])])


def fixed_length(e: Emitter, name: str, length: int, filler: int) -> str:
    """The first ``length`` numbers of a list of unknown length, filled up with ``filler``."""
    long = e.node("Concat", [name, e.ints(np.full(length, filler))], axis=0)
    cut = e.node("Slice", [long, e.ints([0]), e.ints([length])])
    return e.node("Reshape", [cut, e.ints([length])])


def count_below(e: Emitter, numbers: str, limit: int) -> str:
    """How many of these numbers are below the limit, [1]."""
    is_below = e.node("Cast", [e.node("Less", [numbers, e.ints(limit)])], to="int64")
    return e.node("ReduceSum", [is_below, e.ints([0])], keepdims=1)


def stacked(e: Emitter, images: Sequence[str]) -> str:
    """One tensor of the results of all images."""
    widened = [e.node("Unsqueeze", [name, e.ints([0])]) for name in images]
    return widened[0] if len(widened) == 1 else e.node("Concat", widened, axis=0)


def _boxes_per_class(node: Node) -> int:
    """Boxes per image and class."""
    most: int = min(node.params["max_boxes_selected"], node.shape(0)[1])
    return (
        most if most > 0 else refuse(node, "max_boxes_selected is 0, which selects nothing; expected at least 1")
    )


def _infer(node: Node) -> Shapes:
    batch, boxes, _ = expect_rank(node, 0, 3)
    classes = expect_rank(node, 1, 3)[1]
    expect_shape(node, 0, (batch, boxes, 4), "two corners per box")
    expect_shape(node, 1, (batch, classes, boxes), "a score per class and box")
    shapes = (batch * classes * _boxes_per_class(node), 3), (batch,)
    return shapes[: len(node.outputs)] if node.outputs else shapes


def _settings(node: Node) -> Settings:
    return Settings(node.params["iou_threshold"], node.params["score_threshold"])


def _reference(node: Node, arrays: Arrays) -> Results:
    boxes, scores = arrays
    selections, counts = [], []
    for number in range(len(boxes)):
        chosen = [
            (number, kind, box)
            for kind, row in enumerate(scores[number])
            for box in select(boxes[number], row, _settings(node), _boxes_per_class(node))
        ]
        room = scores.shape[1] * _boxes_per_class(node)
        counts.append(len(chosen))
        selections += chosen + [chosen[-1] if chosen else (number, 0, 0)] * (room - len(chosen))
    results = np.array(selections, np.int64), np.array(counts, np.int64)
    return results[: len(node.outputs)] if node.outputs else results


def _lower(node: Node, e: Emitter) -> None:
    boxes, scores, most = e.value(0), e.value(1), _boxes_per_class(node)
    batch, classes, _ = node.shape(1)
    selections, counts = [], []
    for number in range(batch):
        chosen = emit_select(e, image(e, boxes, number), image(e, scores, number), _settings(node), most)
        count = e.node("Shape", [chosen], start=0, end=1)
        last = e.node("Max", [e.node("Sub", [count, e.ints([1])]), e.ints([0])])
        rank = e.node("Min", [e.ints(np.arange(classes * most)), last])
        listed = e.node("Gather", [with_zero_row(e, chosen, (3,), np.int64), rank], axis=0)
        selections.append(e.node("Add", [listed, e.ints([number, 0, 0])]))
        counts.append(count)
    put_integers(node, e, 0, e.node("Concat", selections, axis=0))
    if len(node.outputs) > 1:
        put_integers(node, e, 1, e.node("Concat", counts, axis=0))


def _work(node: Node) -> Work:
    compared = node.outputs[0].shape[0] * node.shape(0)[1]
    return Work.on(node, vector_ops=12 * compared)


_SCORES = {1: (0.0, 1.0)}


_FIRST_FEATURE = 2


def _multi_infer(node: Node) -> Shapes:
    batch, boxes, _ = expect_rank(node, 0, 3)
    classes = expect_rank(node, 1, 3)[2]
    expect_shape(node, 0, (batch, boxes, 4), "two corners per box")
    expect_shape(node, 1, (batch, boxes, classes), "a score per box and class")
    features = node.inputs[_FIRST_FEATURE:]
    if len(node.outputs) != 4 + len(features):
        refuse(node, f"{len(node.outputs)} outputs for {len(features)} features; expected {4 + len(features)}")
    out = node.outputs[0].shape
    if len(out) != 3 or out[0] != batch or out[2] != 4:
        refuse(node, f"output 0 has shape {list(out)}; expected [{batch}, boxes, 4]")
    rests = [_feature_shape(node, number) for number in range(len(features))]
    return out, out[:2], out[:2], (batch,), *((*out[:2], *rest) for rest in rests)


def _feature_shape(node: Node, feature: int) -> Shape:
    """Shape of a feature of one box."""
    shape = node.shape(_FIRST_FEATURE + feature)
    if shape[:2] != node.shape(0)[:2]:
        refuse(node, f"feature {feature} has shape {list(shape)}; expected {list(node.shape(0)[:2])} and more")
    return shape[2:]


def _suppression(node: Node) -> WholeBoxes:
    classes, slots = node.shape(1)[2], node.outputs[0].shape[1]
    settings = Settings(node.params["iou_threshold"], node.params["score_threshold"])
    return WholeBoxes(settings, tuple(range(classes)), classes, slots)


def _multi_reference(node: Node, arrays: Arrays) -> Results:
    boxes, scores = arrays[:2]
    lists = [boxes, *arrays[_FIRST_FEATURE:]]
    chosen: list[list[Array]] = [[] for _ in lists]
    heights, labels, counts = [], [], []
    for number in range(len(boxes)):
        detections = _suppression(node).reference(boxes[number], scores[number])
        for each, gathered in zip(lists, chosen, strict=True):
            long = np.concatenate([each[number], np.zeros((1, *each.shape[2:]), each.dtype)])
            gathered.append(long[detections.boxes])
        heights.append(detections.scores)
        labels.append(detections.labels)
        counts.append(detections.count)
    first, *features = (np.stack(gathered) for gathered in chosen)
    return first, np.stack(heights), np.stack(labels), np.array(counts), *features


def _multi_lower(node: Node, e: Emitter) -> None:
    batch, total, _ = node.shape(0)
    boxes, scores = e.value(0), e.value(1)
    detections = [
        _suppression(node).emit(e, image(e, boxes, number), image(e, scores, number), total)
        for number in range(batch)
    ]

    def gathered(index: int) -> str:
        spec = node.input(index)
        whole = e.value(index)
        dtype = np.float32 if spec.dtype.is_fixed_point or spec.dtype.is_float else spec.dtype.numpy
        parts = []
        for number, each in enumerate(detections):
            one = e.node("Reshape", [image(e, whole, number), e.ints([total, *spec.shape[2:]])])
            parts.append(e.node("Gather", [with_zero_row(e, one, spec.shape[2:], dtype), each.boxes], axis=0))
        return stacked(e, parts)

    # Coordinates keep all their digits, unlike what floats are computed with.
    e.put_stored(0, gathered(0))
    e.put(1, stacked(e, [each.scores for each in detections]))
    put_integers(node, e, 2, stacked(e, [each.labels for each in detections]))
    put_integers(node, e, 3, e.node("Concat", [each.count for each in detections], axis=0))
    for index in range(_FIRST_FEATURE, len(node.inputs)):
        e.put(index + 2, gathered(index))


def _multi_work(node: Node) -> Work:
    compared = node.outputs[1].elements * node.shape(0)[1]
    return Work.on(node, vector_ops=12 * compared)


_RANGES = {1: (0.0, 1.0), 2: (0.0, 90.0)}
_FEATURES = "u8 s8 u16 s16 n32 i32 f32"


OPS = (
    OpDef(
        name="NonMaxSuppression",
        summary="(image, class, box) of the boxes in[0] with scores in[1] that no better one covers, and how many",
        inputs=TWO_INPUTS,
        outputs=(Port("out[0]"), Port("out[1]", optional=True)),
        types=rows("T T > i32 n32 : f16 f32", "u8|u16|f32 u16|u8 > i32 n32"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        params=(
            Param("iou_threshold", DType.FLOAT_32, mandatory=True),
            Param("score_threshold", DType.FLOAT_32, default=0.0),
            Param("max_boxes_selected", default=0),
        ),
        constraints=(
            Constraint("iou_threshold is from 0 to 1", lambda node: 0 <= node.params["iou_threshold"] <= 1),
            FIXED_SHAPES,
        ),
        samples=(
            Sample(((1, 9, 4), (1, 1, 9)), {"iou_threshold": 0.13, "max_boxes_selected": 9}, ranges=_SCORES),
            Sample(
                ((2, 12, 4), (2, 3, 12)),
                {"iou_threshold": 0.21, "score_threshold": 0.3, "max_boxes_selected": 5},
                ranges=_SCORES,
            ),
            # No overlap is too much, so that every row is filled.
            Sample(((2, 6, 4), (2, 2, 6)), {"iou_threshold": 1.0, "max_boxes_selected": 4}, ranges=_SCORES),
        ),
    ),
    OpDef(
        name="MultiClassNms",
        summary="boxes in[0] that none of a better score in[1] covers, with score and class, and their features",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2..]", optional=True, variadic=True)),
        outputs=(
            Port("out[0]"),
            Port("out[1]"),
            Port("out[2]"),
            Port("out[3]"),
            Port("out[4..]", optional=True, variadic=True),
        ),
        types=rows(
            f"u8|u16|f32 u16 T* > f32 u16 i32 n32 T* : {_FEATURES}",
            f"u8|u16|f32 u8 T* > f32 u8 i32 n32 T* : {_FEATURES}",
        ),
        infer=_multi_infer,
        reference=_multi_reference,
        lower=_multi_lower,
        work=_multi_work,
        params=(
            Param("iou_threshold", DType.FLOAT_32, mandatory=True),
            Param("score_threshold", DType.FLOAT_32, default=0.0),
            Param("soft_nms_sigma", DType.FLOAT_32, default=0.0),
        ),
        constraints=(
            Constraint("soft_nms_sigma is 0", lambda node: node.params["soft_nms_sigma"] == 0.0),
            FIXED_SHAPES,
        ),
        samples=(
            Sample(
                ((2, 9, 4), (2, 9, 2), (2, 9, 3)),
                {"iou_threshold": 0.13, "score_threshold": 0.3},
                ranges=_RANGES,
                outputs=((2, 14, 4), (2, 14), (2, 14), (2,), (2, 14, 3)),
            ),
            # No overlap is too much, so that every slot is filled.
            Sample(
                ((1, 6, 4), (1, 6, 3), (1, 6)),
                {"iou_threshold": 1.0},
                ranges=_RANGES,
                outputs=((1, 12, 4), (1, 12), (1, 12), (1,), (1, 12)),
            ),
        ),
    ),
)
