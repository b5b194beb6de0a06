"""MultiClassNms: boxes that no better one covers, each with its classes, and what else belongs to them.

Across all classes, as ``_suppression.WholeBoxes`` says. Slots that are not needed hold zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, Work, touched_bytes
from openhtp.ops._shapes import expect_rank, expect_shape, refuse
from openhtp.ops._suppression import FIXED_SHAPES, Settings, WholeBoxes, ended, image, ints, put_integers, stacked
from openhtp.ops._types import rows

_FIRST_FEATURE = 2


def _infer(node: Node) -> tuple[Shape, ...]:
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
    rests = [_rest(node, number) for number in range(len(features))]
    return out, out[:2], out[:2], (batch,), *((*out[:2], *rest) for rest in rests)


def _rest(node: Node, feature: int) -> Shape:
    """Shape of a feature of one box."""
    shape = node.shape(_FIRST_FEATURE + feature)
    if shape[:2] != node.shape(0)[:2]:
        refuse(node, f"feature {feature} has shape {list(shape)}; expected {list(node.shape(0)[:2])} and more")
    return shape[2:]


def _rule(node: Node) -> WholeBoxes:
    classes, slots = node.shape(1)[2], node.outputs[0].shape[1]
    settings = Settings(node.params["iou_threshold"], node.params["score_threshold"])
    return WholeBoxes(settings, tuple(range(classes)), classes, slots)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    boxes, scores = arrays[:2]
    lists = [boxes, *arrays[_FIRST_FEATURE:]]
    chosen: list[list[Array]] = [[] for _ in lists]
    heights, labels, counts = [], [], []
    for number in range(len(boxes)):
        found = _rule(node).reference(boxes[number], scores[number])
        for each, gathered in zip(lists, chosen, strict=True):
            long = np.concatenate([each[number], np.zeros((1, *each.shape[2:]), each.dtype)])
            gathered.append(long[found.boxes])
        heights.append(found.scores)
        labels.append(found.labels)
        counts.append(found.count)
    first, *features = (np.stack(gathered) for gathered in chosen)
    return first, np.stack(heights), np.stack(labels), np.array(counts), *features


def _lower(node: Node, e: Emitter) -> None:
    batch, total, _ = node.shape(0)
    boxes, scores = e.value(0), e.value(1)
    found = [
        _rule(node).emit(e, image(e, boxes, number), image(e, scores, number), total) for number in range(batch)
    ]

    def gathered(index: int) -> str:
        given = node.input(index)
        whole = e.value(index)
        held = np.float32 if given.dtype.is_fixed_point or given.dtype.is_float else given.dtype.numpy
        parts = []
        for number, each in enumerate(found):
            one = e.node("Reshape", [image(e, whole, number), ints(e, [total, *given.shape[2:]])])
            parts.append(e.node("Gather", [ended(e, one, given.shape[2:], held), each.boxes], axis=0))
        return stacked(e, parts)

    # Coordinates keep all their digits, unlike what floats are computed with.
    e.put_stored(0, gathered(0))
    e.put(1, stacked(e, [each.scores for each in found]))
    put_integers(node, e, 2, stacked(e, [each.labels for each in found]))
    put_integers(node, e, 3, e.node("Concat", [each.count for each in found], axis=0))
    for index in range(_FIRST_FEATURE, len(node.inputs)):
        e.put(index + 2, gathered(index))


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    compared = node.outputs[1].elements * node.shape(0)[1]
    return Work(vector_ops=12 * compared, bytes_read=read, bytes_written=written)


_RANGES = {1: (0.0, 1.0), 2: (0.0, 90.0)}
_FEATURES = "u8 s8 u16 s16 n32 i32 f32"

OPS = (
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
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
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
