"""DetectionOutput: boxes decoded from anchors, then those that no better one covers.

A box is an anchor moved and stretched: its centre by the first two numbers of in[1], in sizes of the anchor, its
height and width by the exponentials of the others; all four are divided by their scaling factors first. REGULAR
suppresses within each class and sorts the remaining boxes by score; FAST is ``non_max_suppression.WholeBoxes``.
Slots that are not needed hold zeros.
"""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results, Shape, Shapes, put_integers
from openhtp.ops._opdef import FIXED_SHAPES, Constraint, OpDef, Param, Port, Sample, Work, rows
from openhtp.ops._shapes import expect_rank, expect_shape, refuse
from openhtp.ops.non_max_suppression import (
    Detections,
    Settings,
    WholeBoxes,
    column,
    count_below,
    emit_select,
    image,
    select,
    stacked,
    with_zero_row,
)

_FAST, _REGULAR = 0, 1


def _infer(node: Node) -> Shapes:
    batch, anchors, _ = expect_rank(node, 0, 3)
    expect_shape(node, 1, (batch, anchors, 4), "a box per anchor")
    expect_shape(node, 2, (batch * anchors, 4), "the anchors of all images")
    out = node.outputs[0].shape
    if len(out) != 2 or out[0] != batch:
        refuse(node, f"output 0 has shape {list(out)}; expected [{batch}, detections]")
    return out, (*out, 4), out, (batch,)


def _classes(node: Node) -> list[int]:
    """The classes that take part."""
    background, total = node.params["background_class_idx"], node.shape(0)[2]
    wanted = node.params["use_bg_in_nms" if node.params["nms_type"] == _REGULAR else "output_background"]
    return [number for number in range(total) if wanted or number != background]


def _labels(node: Node) -> list[int]:
    """Labels of the classes. Without the background, later classes move down by one, and the background is -1."""
    background = node.params["background_class_idx"]
    if node.params["output_background"]:
        return _classes(node)
    return [-1 if number == background else number - (number > background) for number in _classes(node)]


def _limit(node: Node, most: int) -> int:
    limit = int(node.params["detection_limit"])
    return min(limit, most) if limit > 0 else most


def _suppression(node: Node) -> WholeBoxes:
    settings = Settings(node.params["iou_threshold"], node.params["confidence_threshold"])
    labels = tuple(_labels(node))
    return WholeBoxes(settings, labels, _limit(node, len(labels)), node.outputs[0].shape[1])


def _regular_settings(node: Node) -> Settings:
    return Settings(node.params["iou_threshold"], node.params["confidence_threshold"], at_least=False)


def _decoded(node: Node, moves: Array, anchors: Array) -> Array:
    moves = moves / np.asarray(node.params["delta_scaling_factors"], np.float64)
    middle = anchors[..., :2] + moves[..., :2] * anchors[..., 2:]
    half = np.exp(moves[..., 2:]) * anchors[..., 2:] / 2
    return np.concatenate([middle - half, middle + half], axis=-1)


def _regular(node: Node, boxes: Array, scores: Array) -> Detections[Array]:
    slots, total = node.outputs[0].shape[1], len(boxes)
    detections = [
        (box, float(scores[box, kind]), label)
        for kind, label in zip(_classes(node), _labels(node), strict=True)
        for box in select(boxes, scores[:, kind], _regular_settings(node), _limit(node, total))
    ]
    detections = sorted(detections, key=lambda each: -each[1])[:slots]
    count = len(detections)
    detections += [(total, 0.0, 0)] * (slots - count)
    numbers, heights, labels = zip(*detections, strict=True)
    return Detections(np.array(numbers), np.array(heights), np.array(labels), np.array(count))


def _reference(node: Node, arrays: Arrays) -> Results:
    scores, moves, anchors = arrays
    batch, total, _ = scores.shape
    boxes = _decoded(node, moves, anchors.reshape(batch, total, 4))
    results = []
    for number in range(batch):
        if node.params["nms_type"] == _REGULAR:
            detections = _regular(node, boxes[number], scores[number])
        else:
            detections = _suppression(node).reference(boxes[number], scores[number][:, _classes(node)])
        places = np.concatenate([boxes[number], np.zeros((1, 4))])[detections.boxes]
        results.append((detections.scores, places, detections.labels, detections.count))
    heights, corners, labels, counts = (np.stack(each) for each in zip(*results, strict=True))
    return heights, corners, labels, counts


def _emit_decoded(node: Node, e: Emitter) -> str:
    batch, total, _ = node.shape(0)
    factors = e.floats(node.params["delta_scaling_factors"])
    pairs = e.ints([2, 2])
    shift, stretch = e.nodes("Split", [e.node("Div", [e.value(1), factors]), pairs], 2, axis=2)
    centre, extent = e.nodes("Split", [e.reshaped(2, (batch, total, 4)), pairs], 2, axis=2)
    middle = e.node("Add", [centre, e.node("Mul", [shift, extent])])
    half = e.node("Mul", [e.node("Mul", [e.node("Exp", [stretch]), extent]), e.floats(0.5)])
    return e.node("Concat", [e.node("Sub", [middle, half]), e.node("Add", [middle, half])], axis=2)


def _emit_regular(node: Node, e: Emitter, boxes: str, scores: str) -> Detections[str]:
    """On one image: boxes [1, boxes, 4], scores [1, boxes, classes that take part]."""
    total, kinds, slots = node.shape(0)[1], len(_classes(node)), node.outputs[0].shape[1]
    by_class = e.node("Transpose", [scores], perm=[0, 2, 1])
    rows_ = emit_select(e, boxes, by_class, _regular_settings(node), _limit(node, total))
    # A selection is one number: an index into the table of scores. An index behind the table selects nothing.
    anchor = e.node("Add", [e.node("Mul", [column(e, rows_, 1), e.ints(total)]), column(e, rows_, 2)])
    long = e.node("Concat", [anchor, e.ints(np.full(slots, kinds * total))], axis=0)
    table = e.node("Reshape", [by_class, e.ints([kinds * total])])
    lowest = e.floats([np.finfo(np.float32).min])
    ranked = e.node("Gather", [e.node("Concat", [table, lowest], axis=0), long], axis=0)
    _, order = e.nodes("TopK", [ranked, e.ints([slots])], 2, axis=0)
    chosen = e.node("Gather", [long, order], axis=0)
    heights = e.node("Gather", [with_zero_row(e, table, ()), chosen], axis=0)
    labels = np.append(np.repeat(_labels(node), total), 0)
    numbers = np.append(np.tile(np.arange(total), kinds), total)
    return Detections(
        e.node("Gather", [e.ints(numbers), chosen], axis=0),
        heights,
        e.node("Gather", [e.ints(labels), chosen], axis=0),
        count_below(e, chosen, kinds * total),
    )


def _lower(node: Node, e: Emitter) -> None:
    batch, total, _ = node.shape(0)
    boxes = _emit_decoded(node, e)
    scores = e.node("Gather", [e.value(0), e.ints(_classes(node))], axis=2)
    detections, corners = [], []
    for number in range(batch):
        box, score = image(e, boxes, number), image(e, scores, number)
        if node.params["nms_type"] == _REGULAR:
            each = _emit_regular(node, e, box, score)
        else:
            each = _suppression(node).emit(e, box, score, total)
        detections.append(each)
        listed = with_zero_row(e, e.node("Reshape", [box, e.ints([total, 4])]), (4,))
        corners.append(e.node("Gather", [listed, each.boxes], axis=0))
    e.put(0, stacked(e, [each.scores for each in detections]))
    # Coordinates keep all their digits, unlike what floats are computed with.
    e.put_stored(1, stacked(e, corners))
    put_integers(node, e, 2, stacked(e, [each.labels for each in detections]))
    put_integers(node, e, 3, e.node("Concat", [each.count for each in detections], axis=0))


def _work(node: Node) -> Work:
    anchors = node.input(1).elements // 4
    compared = node.outputs[0].elements * anchors
    return Work.on(node, vector_ops=12 * compared + 20 * anchors)


def _sample(shape: Shape, slots: int, **params: object) -> Sample:
    batch, anchors, _ = shape
    usual = {"delta_scaling_factors": [10.0, 10.0, 5.0, 5.0], "confidence_threshold": 0.2, "iou_threshold": 0.31}
    return Sample(
        (shape, (batch, anchors, 4), (batch * anchors, 4)),
        {**usual, **params},
        ranges={0: (0.0, 1.0), 1: (-2.0, 2.0), 2: (0.1, 1.0)},
        outputs=((batch, slots), (batch, slots, 4), (batch, slots), (batch,)),
    )


OPS = (
    OpDef(
        name="DetectionOutput",
        summary="scores, corners and classes of the boxes in[1] on anchors in[2] that none of a better score in[0]"
        " covers, and their number",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]")),
        outputs=(Port("out[0]"), Port("out[1]"), Port("out[2]"), Port("out[3]")),
        types=rows(
            "T T T > T f32 i32 n32 : f16 f32",
            "T u8 u8 > T f32 i32 n32 : u16 u8",
            "T u16 u16 > T f32 i32 n32 : u16 u8",
            "T f32 f32 > T f32 i32 n32 : u16 u8",
        ),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        params=(
            Param("delta_scaling_factors", DType.FLOAT_32, rank=1, mandatory=True),
            Param("confidence_threshold", DType.FLOAT_32, mandatory=True),
            Param("iou_threshold", DType.FLOAT_32, mandatory=True),
            Param("nms_type", default=_FAST, choices={"FAST": _FAST, "REGULAR": _REGULAR}),
            Param("background_class_idx", default=0),
            Param("use_bg_in_nms", DType.BOOL_8, default=False),
            Param("output_background", DType.BOOL_8, default=True),
            Param("share_location", DType.BOOL_8, default=True),
            Param("nms_eta", DType.FLOAT_32, default=1.0),
            Param("detection_limit", DType.INT_32, default=-1),
        ),
        constraints=(
            Constraint("share_location is true", lambda node: node.params["share_location"]),
            Constraint(
                "nms_eta is 1 unless nms_type is FAST",
                lambda node: node.params["nms_type"] == _FAST or node.params["nms_eta"] == 1.0,
            ),
            Constraint("a class takes part", lambda node: bool(_classes(node))),
            FIXED_SHAPES,
        ),
        samples=(
            _sample((1, 8, 3), 12, nms_type="REGULAR"),
            _sample(
                (2, 6, 3), 9, nms_type="REGULAR", use_bg_in_nms=True, output_background=False, detection_limit=3
            ),
            _sample((1, 8, 4), 6, detection_limit=1),
            _sample((1, 8, 3), 9, detection_limit=2, output_background=False),
        ),
    ),
)
