"""Every tiling rule held to its word: an op computed piece by piece is the op computed whole."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ops_cases import all_cases, make_case, real

from openhtp.core.tensor import TensorSpec
from openhtp.ops import Node, find_op, op_names, resolve
from openhtp.ops._tiles import TileAxis, split_nowhere


def _cases() -> list[Any]:
    """The float (or else the first) case of every sample of every op that has a rule."""
    found = []
    for name in op_names():
        opdef = find_op(name)
        if opdef.tile is split_nowhere:
            continue
        cases = list(all_cases(opdef))
        for number, sample in enumerate(opdef.samples):
            of_sample = [parts for _, parts in cases if parts[1] is sample]
            floats = [parts for parts in of_sample if parts[2][0].is_float]
            found.append(pytest.param((floats or of_sample)[0], id=f"{name} {number}"))
    return found


def _cut(spec: TensorSpec | None, axis: int | None, begin: int, end: int) -> TensorSpec | None:
    if spec is None or axis is None:
        return spec
    return replace(spec, shape=(*spec.shape[:axis], end - begin, *spec.shape[axis + 1 :]))


def _piece(node: Node, arrays: list[np.ndarray], tile: TileAxis, first: int, last: int) -> np.ndarray:
    """Output rows from ``first`` to before ``last``, computed from what the rule says they are made of."""
    begin, end = tile.rows(first, last)
    specs, parts, params = [], [], dict(node.params)
    for spec, array, axis in zip(node.inputs, arrays, tile.inputs, strict=True):
        length = 0 if spec is None or axis is None else spec.shape[axis]
        inside = slice(max(begin, 0), min(end, length))
        specs.append(_cut(spec, axis, inside.start, inside.stop))
        parts.append(array if axis is None else array[(slice(None),) * axis + (inside,)])
        if "pad_amount" in params and axis is not None and array is arrays[0] and 0 < axis < array.ndim - 1:
            pads = np.array(params["pad_amount"]).reshape(-1, 2)
            pads[axis - 1] = max(-begin, 0), max(end - length, 0)
            params["pad_amount"] = pads.reshape(np.shape(params["pad_amount"]))
    output = _cut(node.outputs[0], tile.axis, first, last)
    assert output is not None
    cut = replace(node, inputs=tuple(specs), outputs=(output,), params=params)
    assert find_op(node.op).infer(cut) == (output.shape,)
    return find_op(node.op).reference(cut, parts)[0]


@pytest.mark.parametrize("parts", _cases())
def test_pieces_make_the_whole(parts: Any) -> None:
    case = make_case(*parts)
    node = resolve(case.call, case.stored)
    arrays = [np.zeros(0) if spec is None else real(spec, case.stored[spec.name]) for spec in node.inputs]
    for tile in case.opdef.tile(node):
        length = node.outputs[0].shape[tile.axis]
        for size in {1, max(1, length // 2), length}:
            edges = [*range(0, length, size), length]
            pieces = [_piece(node, arrays, tile, first, last) for first, last in itertools.pairwise(edges)]
            np.testing.assert_allclose(np.concatenate(pieces, tile.axis), case.exact[0], rtol=1e-12, atol=1e-12)


def test_most_ops_can_be_cut_somewhere() -> None:
    """The check above is of all ops with a rule; this one, that rules are not lost."""
    ruled = [name for name in op_names() if find_op(name).tile is not split_nowhere]
    assert len(ruled) >= 60, ruled


def test_a_wrong_rule_is_noticed() -> None:
    opdef = find_op("Conv2d")
    case = make_case(*next(iter(all_cases(opdef)))[1])
    node = resolve(case.call, case.stored)
    arrays = [np.zeros(0) if spec is None else real(spec, case.stored[spec.name]) for spec in node.inputs]
    rows = opdef.tile(node)[1]
    wrong = replace(rows, before=rows.before + 1)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(_piece(node, arrays, wrong, 1, 2), case.exact[0][:, 1:2], rtol=1e-9)


def test_neighbouring_windows_share_their_overlap() -> None:
    rows = TileAxis(axis=1, inputs=(1, None), reach=5, stride=2, before=1)
    assert rows.rows(0, 2) == (-1, 6)
    assert rows.rows(2, 3) == (3, 8)
