"""Numbers that samples do not hold: infinities and no numbers at all."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from one_op import Given, call_of
from onnx import helper
from ops_cases import Case, all_cases, make_case, real, run_case

import openhtp as htp
from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.tensor import TensorKind
from openhtp.engine.lowering import lower_program
from openhtp.ir.builder import GraphBuilder
from openhtp.ops import find_op, op_names, resolve

X = np.array([[1.0, np.inf, -np.inf, np.nan]], np.float32)


@pytest.mark.parametrize(
    ("op", "params", "expected"),
    [
        ("IsNan", {}, [0, 0, 0, 1]),
        ("IsInf", {}, [0, 1, 1, 0]),
        ("IsInf", {"detect_negative": False}, [0, 1, 0, 0]),
        ("IsInf", {"detect_positive": False}, [0, 0, 1, 0]),
    ],
)
def test_what_is_found(op: str, params: dict[str, bool], expected: list[int]) -> None:
    with htp.Backend() as backend:
        graph = backend.create_device(transport="inprocess").create_context().create_graph("g")
        x = graph.add_tensor("x", X.shape, "float32", kind="app_write")
        o = graph.add_tensor("o", X.shape, "bool", kind="app_read")
        graph.add_node(op, inputs=[x], outputs=[o], params=params)
        graph.finalize()
        assert graph.execute({"x": X})["o"].astype(int).tolist() == [expected]


@pytest.mark.parametrize(("word", "between"), [("n8", 6), ("u8", 6), ("s8", 6), ("u16", 6), ("n32", 7)])
def test_casts_of_numbers_that_a_type_lacks_keep_the_lowest_bits(word: str, between: int) -> None:
    """On every processor: straight from a float, a negative number as an unsigned one is 0 on some of them."""
    numbers = np.array([[-1.0, -3.75, 300.75, -40000.0, 40000.0]], np.float32)
    case = call_of("Cast", [Given(numbers)], [(numbers.shape, word)], {})
    (cast,) = run_case(case)
    np.testing.assert_array_equal(cast, np.trunc(numbers).astype(np.int64).astype(cast.dtype))
    builder = GraphBuilder("cast")
    for spec in (*case.call.inputs, *case.call.outputs):
        assert spec is not None
        builder.add_tensor(spec)
    builder.add_node(case.call)
    model = lower_program(compile_graph(builder.finish(), "SM8650")).model
    targets = [node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"]
    assert targets[-2:] == [between, helper.np_dtype_to_tensor_dtype(cast.dtype)]


_LARGEST_OF_THE_REST = "the largest, or smallest, of the other numbers, as on ONNX Runtime"
_TOUCHED = "the reference adds up or multiplies by 0 what the engine does not touch"
_COORDINATE = "a coordinate that is no number lies outside of the picture"
# tests/frontend/test_special_values.py holds their ONNX forms against ONNX Runtime.
_ELSEWHERE = {
    **dict.fromkeys(("PoolMax2d", "PoolMax3d", "ReduceMax", "ReduceMin"), _LARGEST_OF_THE_REST),
    **dict.fromkeys(
        ("Resize", "ResizeBilinear", "ResizeNearestNeighbor", "CumulativeSum", "Lrn", "Stft"), _TOUCHED
    ),
    **dict.fromkeys(("GridSample", "ImageProjectionTransform"), _COORDINATE),
    "RoiAlign": "the engine refuses regions that are no numbers",
    "ExtractGlimpse": "the reference draws noise between the smallest and the largest number",
    "ElementWisePower": "the reference has no power of minus infinity",
    "ElementWiseRsqrt": "the reference has 0 for minus infinity, which has no root",
}


def _float_samples() -> list[Any]:
    """One case for every sample that takes and gives 32-bit floats, as far as it takes and gives floats."""
    cases = []
    for name in op_names():
        for words, parts in all_cases(find_op(name)):
            types = (*parts[2], *parts[3])
            plain = all(dtype is DType.FLOAT_32 or not (dtype.is_float or dtype.is_fixed_point) for dtype in types)
            if plain and DType.FLOAT_32 in parts[2]:
                cases.append(pytest.param(parts, id=f"{name} {words}"))
    return cases


def _kinds(array: np.ndarray) -> np.ndarray:
    numbers = np.asarray(array, np.float64)
    return np.select([np.isnan(numbers), np.isposinf(numbers), np.isneginf(numbers)], ["nan", "inf", "-inf"], "")


@pytest.mark.parametrize("parts", _float_samples())
def test_every_op_passes_them_on(parts: Any) -> None:
    """Into each input in turn; results are NaN and infinite where the op's reference is."""
    opdef = parts[0]
    case = make_case(*parts)
    for spec in case.call.inputs:
        if spec is None or spec.kind is TensorKind.STATIC or spec.dtype is not DType.FLOAT_32:
            continue
        for value in (np.nan, np.inf, -np.inf):
            array = case.stored[spec.name].copy()
            array.reshape(-1)[array.size // 2] = value
            _check(
                replace(case, stored={**case.stored, spec.name: array}), f"{value} in {spec.name} of {opdef.name}"
            )


def _check(case: Case, where: str) -> None:
    if case.opdef.name in _ELSEWHERE:
        with contextlib.suppress(htp.QnnError):
            run_case(case)
        return
    inputs = case.call.inputs
    arrays = [np.zeros(0) if spec is None else real(spec, case.stored[spec.name]) for spec in inputs]
    with np.errstate(all="ignore"):
        exact = case.opdef.reference(resolve(case.call, case.stored), arrays)
    for got, wanted in zip(run_case(case), exact, strict=True):
        if got.dtype.kind == "f":
            np.testing.assert_array_equal(_kinds(got), _kinds(wanted), where)
