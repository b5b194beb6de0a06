"""A package of operators for the tests: good ones, and one for each way in which a function can be wrong."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

import openhtp as htp
from openhtp.ops import Node, Work


def same(node: Node) -> tuple[tuple[int, ...], ...]:
    """The shape of the first input."""
    return (node.shape(0),)


def swish(node: Node, arrays: Any) -> Any:
    """x * sigmoid(beta * x)."""
    return (arrays[0] / (1 + np.exp(-node.params["beta"] * arrays[0])),)


def swish_work(node: Node) -> Work:
    """Eight vector operations for each number."""
    return Work.on(node, vector_ops=8 * node.outputs[0].elements)


def two(node: Node) -> tuple[tuple[int, ...], ...]:
    """A sum for each row, and where its largest number is."""
    return node.shape(0)[:-1], node.shape(0)[:-1]


def sum_and_place(node: Node, arrays: Any) -> Any:
    """The sum and the place of the largest number of each row."""
    return arrays[0].sum(-1), arrays[0].argmax(-1)


def flip(node: Node, arrays: Any) -> Any:
    """Stored numbers, turned over."""
    return 255 - arrays[0]


def threads_of(node: Node, arrays: Any) -> Any:
    """How many rows this call was given."""
    return np.full(node.outputs[0].shape, float(arrays[0].shape[0]))


def raises(node: Node, arrays: Any) -> Any:
    """Fail."""
    raise ValueError("no such luck")


def hangs(node: Node, arrays: Any) -> Any:
    """Wait for ever."""
    while True:
        threading.Event().wait(0.01)


PACKAGE = htp.OpPackage(
    "tests.ops",
    "1.2.0",
    [
        htp.Operator(
            "Swish",
            same,
            swish,
            work=swish_work,
            params={"beta": 1.0},
            constraints={"beta is above 0": lambda node: bool(node.params["beta"] > 0)},
        ),
        htp.Operator("SumAndPlace", two, sum_and_place, outputs=2, onnx_types=(None, "int64")),
        htp.Operator("Flip", same, flip, stored=True, types=("u8 > u8",)),
        htp.Operator("Rows", same, threads_of, split_axis=0, pieces=4),
        htp.Operator("Relu", same, lambda node, arrays: -np.maximum(arrays[0], 0)),
        htp.Operator("Raises", same, raises),
        htp.Operator("Hangs", same, hangs, time_limit_s=0.2),
        htp.Operator("Exits", same, lambda node, arrays: exit(3)),
        htp.Operator("WrongShape", same, lambda node, arrays: arrays[0][:1]),
        htp.Operator("WrongCount", same, lambda node, arrays: (arrays[0], arrays[0])),
        htp.Operator("WrongType", same, lambda node, arrays: arrays[0].astype("complex64")),
        htp.Operator("Words", same, lambda node, arrays: "words"),
        htp.Operator("BadRule", lambda node: 1 // 0, raises),
        htp.Operator("BadWork", same, swish, work=lambda node: 7, params={"beta": 1.0}),  # type: ignore[arg-type,return-value]
    ],
)
