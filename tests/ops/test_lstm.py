"""Lstm: both ways of computing it agree, and what is not offered says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ops_cases import Case, real, run_case

from openhtp.core.errors import InvalidArgument, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import find_op, resolve
from openhtp.ops._opdef import TYPE_WORDS

BATCH, FEATURES, UNITS, STEPS = 2, 4, 5, 3
FIXED = {0: "u8", 10: "u8", 11: "s16", **dict.fromkeys((7, 8, 9, 21, 23), "s32")}
FIXED |= dict.fromkeys((*range(12, 16), *range(18, 21)), "s16")
QUANTS = {"u8": ScaleOffset(2 / 255, -128), "s8": ScaleOffset(1 / 127, 0), "s16": ScaleOffset(2.0**-13, 0)}
QUANTS["s32"] = ScaleOffset(2.0**-20, 0)


def lstm_case(
    word: str, changed: dict[int, Any], *, fixed: bool = False, steps: int = STEPS, **params: Any
) -> Case:
    """An ordinary Lstm with some inputs changed (None leaves one out)."""
    rng = np.random.default_rng(7)
    arrays: dict[int, Any] = {0: rng.uniform(-1, 1, (steps, BATCH, FEATURES))}
    arrays |= {n: rng.uniform(-0.6, 0.6, (UNITS, FEATURES)) for n in (1, 2, 3, 16)}
    arrays |= {n: rng.uniform(-0.6, 0.6, (UNITS, UNITS)) for n in (4, 5, 6, 17)}
    arrays |= {n: rng.uniform(-0.6, 0.6, UNITS) for n in (7, 8, 9, 21)}
    arrays |= {n: rng.uniform(-1, 1, (BATCH, UNITS)) for n in (10, 11)} | changed
    specs, stored = [], {}
    for number in range(max(arrays) + 1):
        array = arrays.get(number)
        if array is None:
            specs.append(None)
            continue
        kind = TensorKind.APP_WRITE if number in (0, 10, 11) else TensorKind.STATIC
        used = FIXED.get(number, word) if fixed else word
        dtype, quant = TYPE_WORDS[used], QUANTS.get(used)
        spec = TensorSpec(f"x{number}", array.shape, dtype, quant, kind)
        held = array if quant is None else quant.quantize(array, *dtype.integer_range)
        specs.append(spec)
        stored[spec.name] = np.ascontiguousarray(held, dtype.numpy)
    out = len(arrays[22]) if arrays.get(22) is not None else UNITS
    words = ("u8", "s16", "u8") if fixed else (word,) * 3
    shapes = ((steps, BATCH, out), (BATCH, UNITS), (BATCH, out))
    outputs = tuple(
        TensorSpec(f"y{index}", shape, TYPE_WORDS[used], QUANTS.get(used), TensorKind.APP_READ)
        for index, (shape, used) in enumerate(zip(shapes, words, strict=True))
    )
    return Case(find_op("Lstm"), OpCall("Lstm", "node", tuple(specs), outputs, params), stored, ())


def results(case: Case) -> list[np.ndarray]:
    resolve(case.call, case.stored)
    return [real(spec, got) for spec, got in zip(case.call.outputs, run_case(case), strict=True)]


@pytest.mark.parametrize("direction", ["FORWARD", "REVERSE"])
def test_a_projection_that_changes_nothing_changes_nothing(direction: str) -> None:
    """Without a projection ONNX's operator computes; with one, the steps are written out."""
    plain = results(lstm_case("f32", {}, direction=direction))
    written = results(lstm_case("f32", {22: np.eye(UNITS), 23: np.zeros(UNITS)}, direction=direction))
    for one, other in zip(plain, written, strict=True):
        np.testing.assert_allclose(one, other, atol=2.0**-10)
    assert np.abs(plain[0]).max() > 0.1


def test_the_input_gate_is_what_the_forget_gate_leaves() -> None:
    """1 - sigmoid(z) is sigmoid(-z): the coupled gate equals one with all signs changed."""
    same = lstm_case("f32", {})
    names = {16: "x1", 17: "x4", 21: "x7"}
    opposite = {number: -same.stored[name].astype(float) for number, name in names.items()}
    coupled = results(lstm_case("f32", dict.fromkeys(names)))
    for one, other in zip(coupled, results(lstm_case("f32", opposite)), strict=True):
        np.testing.assert_allclose(one, other, atol=2.0**-10)


@pytest.mark.parametrize("weights", ["u8", "s8"])
def test_fixed_point_is_near_to_floats(weights: str) -> None:
    exact = results(lstm_case("f32", {}))
    for one, other in zip(results(lstm_case(weights, {}, fixed=True)), exact, strict=True):
        np.testing.assert_allclose(one, other, atol=0.03)


def test_states_are_kept_within_their_limits() -> None:
    projection = {22: np.eye(UNITS) * 3}
    sequence, cell, hidden = results(
        lstm_case("f32", projection, cell_clip_threshold=0.25, output_clip_threshold=0.5)
    )
    assert np.abs(cell).max() == 0.25
    assert np.abs(hidden).max() == np.abs(sequence).max() == 0.5


@pytest.mark.parametrize(
    ("word", "changed", "params", "reason"),
    [
        ("f32", {12: np.ones(UNITS)}, {}, "normalization is for fixed point"),
        ("u8", {}, {"direction": "REVERSE"}, "direction is FORWARD in fixed point"),
    ],
)
def test_what_is_not_offered(word: str, changed: Any, params: Any, reason: str) -> None:
    case = lstm_case(word, changed, fixed=word == "u8", **params)
    with pytest.raises(UnsupportedOp, match=reason):
        resolve(case.call, case.stored)


def test_half_an_input_gate_is_refused() -> None:
    case = lstm_case("f32", {17: None})
    with pytest.raises(InvalidArgument, match="all of them or none"):
        resolve(case.call, case.stored)
