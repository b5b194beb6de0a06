"""Non-maximum suppression, shared by the detection ops: in numpy for their references, in ONNX for their lowering.

Boxes are pairs of opposite corners. The highest score wins, the first of equal ones; a box that overlaps one
already kept by more than the threshold (area in common over area covered) is dropped. Boxes without area overlap
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node
from openhtp.ops._opdef import Constraint

FIXED_SHAPES = Constraint("inputs are not dynamic", lambda node: not any(s.is_dynamic for s in node.inputs if s))

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
        given = np.float32(self.threshold)
        return np.nextafter(given, np.float32(-np.inf)) if self.at_least else given


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
    """The same for [1, boxes, 4] and [1, classes, boxes]: rows of (0, class, box), as many as there are."""
    limits = [
        e.const(np.array([most], np.int64)),
        e.const(np.array([settings.overlap], np.float32)),
        e.const(np.array([settings.exclusive_threshold], np.float32)),
    ]
    return e.node("NonMaxSuppression", [boxes, scores, *limits])


def ints(e: Emitter, numbers: npt.ArrayLike) -> str:
    """A constant of indices."""
    return e.const(np.array(numbers, np.int64))


def column(e: Emitter, rows: str, number: int) -> str:
    """One column of the rows that ``emit_select`` gives."""
    return e.node("Gather", [rows, ints(e, number)], axis=1)


def image(e: Emitter, name: str, number: int) -> str:
    """One image of a batch; the batch axis stays."""
    return e.node("Slice", [name, ints(e, [number]), ints(e, [number + 1]), ints(e, [0])])


def ended(e: Emitter, name: str, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> str:
    """A list with a row of zeros behind its end: what index "none" finds there. ``shape`` is that of one row."""
    return e.node("Concat", [name, e.const(np.zeros((1, *shape), dtype))], axis=0)


@dataclass(frozen=True, slots=True)
class Detections(Generic[T]):
    """What fills the slots of one image: the number of a box (that of all boxes for none), its score and class.

    Arrays in a reference, names of values in a lowering. ``count`` is the number of detections.
    """

    boxes: T
    scores: T
    labels: T
    count: T


@dataclass(frozen=True, slots=True)
class WholeBoxes:
    """Suppression across classes: a box competes with its highest score and is listed with its best classes.

    This is what the HTP does in MultiClassNms, and in DetectionOutput when that is to be fast. The number of
    detections it reports is that of boxes, however many classes each is listed with.
    """

    settings: Settings
    labels: tuple[int, ...]
    per_box: int
    slots: int

    def reference(self, boxes: Array, scores: Array) -> Detections[Array]:
        """On [boxes, 4] and [boxes, classes]."""
        total = len(boxes)
        kept = select(boxes, scores.max(axis=1), self.settings, self.slots)
        found: list[tuple[int, float, int]] = []
        for box in kept:
            order = np.argsort(-scores[box], kind="stable")[: self.per_box]
            found += [(box, float(scores[box, place]), self.labels[place]) for place in order]
        found = found[: self.slots] + [(total, 0.0, 0)] * (self.slots - len(found))
        numbers, heights, labels = zip(*found, strict=True)
        return Detections(np.array(numbers), np.array(heights), np.array(labels), np.array(len(kept)))

    def emit(self, e: Emitter, boxes: str, scores: str, total: int) -> Detections[str]:
        """On names of [1, boxes, 4] and [1, boxes, classes]."""
        classes, slots = len(self.labels), self.slots
        best = e.node("ReduceMax", [scores, ints(e, [2])], keepdims=1)
        rows = emit_select(e, boxes, e.node("Transpose", [best], perm=[0, 2, 1]), self.settings, slots)
        kept = fixed_length(e, column(e, rows, 2), slots, total)
        listed = ended(e, e.node("Reshape", [scores, ints(e, [total, classes])]), (classes,))
        ordered = e.nodes("TopK", [e.node("Gather", [listed, kept], axis=0), ints(e, [self.per_box])], 2, axis=1)
        heights, places = (self._first_slots(e, name) for name in ordered)
        owner = e.node("Gather", [kept, ints(e, np.arange(slots) // self.per_box)], axis=0)
        labels = e.node("Gather", [ints(e, self.labels), places], axis=0)
        there = e.node("Less", [owner, ints(e, total)])
        labels = e.node("Where", [there, labels, ints(e, 0)])
        return Detections(owner, heights, labels, count_below(e, kept, total))

    def _first_slots(self, e: Emitter, name: str) -> str:
        flat = e.node("Reshape", [name, ints(e, [self.slots * self.per_box])])
        return e.node("Slice", [flat, ints(e, [0]), ints(e, [self.slots])])


def fixed_length(e: Emitter, name: str, length: int, filler: int) -> str:
    """The beginning of a list of unknown length, filled up."""
    long = e.node("Concat", [name, ints(e, np.full(length, filler))], axis=0)
    cut = e.node("Slice", [long, ints(e, [0]), ints(e, [length])])
    return e.node("Reshape", [cut, ints(e, [length])])


def count_below(e: Emitter, numbers: str, limit: int) -> str:
    """How many of these numbers are below the limit, [1]."""
    there = e.node("Cast", [e.node("Less", [numbers, ints(e, limit)])], to="int64")
    return e.node("ReduceSum", [there, ints(e, [0])], keepdims=1)


def stacked(e: Emitter, images: Sequence[str]) -> str:
    """One tensor of the results of all images."""
    widened = [e.node("Unsqueeze", [name, ints(e, [0])]) for name in images]
    return widened[0] if len(widened) == 1 else e.node("Concat", widened, axis=0)


def put_integers(node: Node, e: Emitter, index: int, name: str) -> None:
    """Give an integer output in its own type."""
    e.put_stored(index, e.node("Cast", [name], to=node.outputs[index].dtype.numpy.name))
