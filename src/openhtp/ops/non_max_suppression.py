"""NonMaxSuppression: per image and class, the boxes that no better one covers.

There is room for as many as could be selected; rows that are not needed repeat the last selection of their image
(or name its first box, if there is none), so that gathering by them is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, Work, touched_bytes
from openhtp.ops._shapes import expect_rank, expect_shape, refuse
from openhtp.ops._suppression import FIXED_SHAPES, Settings, emit_select, ended, image, ints, put_integers, select
from openhtp.ops._types import rows


def _most(node: Node) -> int:
    """Boxes per image and class."""
    most: int = min(node.params["max_boxes_selected"], node.shape(0)[1])
    return (
        most if most > 0 else refuse(node, "max_boxes_selected is 0, which selects nothing; expected at least 1")
    )


def _infer(node: Node) -> tuple[Shape, ...]:
    batch, boxes, _ = expect_rank(node, 0, 3)
    classes = expect_rank(node, 1, 3)[1]
    expect_shape(node, 0, (batch, boxes, 4), "two corners per box")
    expect_shape(node, 1, (batch, classes, boxes), "a score per class and box")
    shapes = (batch * classes * _most(node), 3), (batch,)
    return shapes[: len(node.outputs)] if node.outputs else shapes


def _settings(node: Node) -> Settings:
    return Settings(node.params["iou_threshold"], node.params["score_threshold"])


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    boxes, scores = arrays
    found, counts = [], []
    for number in range(len(boxes)):
        chosen = [
            (number, kind, box)
            for kind, row in enumerate(scores[number])
            for box in select(boxes[number], row, _settings(node), _most(node))
        ]
        room = scores.shape[1] * _most(node)
        counts.append(len(chosen))
        found += chosen + [chosen[-1] if chosen else (number, 0, 0)] * (room - len(chosen))
    results = np.array(found, np.int64), np.array(counts, np.int64)
    return results[: len(node.outputs)] if node.outputs else results


def _lower(node: Node, e: Emitter) -> None:
    boxes, scores, most = e.value(0), e.value(1), _most(node)
    batch, classes, _ = node.shape(1)
    found, counts = [], []
    for number in range(batch):
        chosen = emit_select(e, image(e, boxes, number), image(e, scores, number), _settings(node), most)
        count = e.node("Shape", [chosen], start=0, end=1)
        last = e.node("Max", [e.node("Sub", [count, ints(e, [1])]), ints(e, [0])])
        place = e.node("Min", [ints(e, np.arange(classes * most)), last])
        listed = e.node("Gather", [ended(e, chosen, (3,), np.int64), place], axis=0)
        found.append(e.node("Add", [listed, ints(e, [number, 0, 0])]))
        counts.append(count)
    put_integers(node, e, 0, e.node("Concat", found, axis=0))
    if len(node.outputs) > 1:
        put_integers(node, e, 1, e.node("Concat", counts, axis=0))


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    compared = node.outputs[0].shape[0] * node.shape(0)[1]
    return Work(vector_ops=12 * compared, bytes_read=read, bytes_written=written)


_SCORES = {1: (0.0, 1.0)}

OPS = (
    OpDef(
        name="NonMaxSuppression",
        summary="(image, class, box) of the boxes in[0] with scores in[1] that no better one covers, and how many",
        inputs=(Port("in[0]"), Port("in[1]")),
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
)
