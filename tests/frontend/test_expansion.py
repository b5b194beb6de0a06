"""Operators without a QNN op of their own, written as others: against onnxruntime, or ONNX's own definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from import_cases import Arrays, model_of, node, run_here, run_ort, sqnr
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import openhtp as htp
from openhtp.onnx import load


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(0, 1, shape).astype(np.float32)


def _one(op: str, *arrays: np.ndarray, opset: int = 18, constants: Arrays | None = None, **attrs: Any) -> None:
    """One operator on computed inputs is what ONNX says it is, to half precision."""
    feeds = {f"x{index}": array for index, array in enumerate(arrays)}
    inputs = " ".join([*feeds, *(constants or {})])
    shapes = {name: array.shape for name, array in feeds.items()}
    model = model_of([node(op, inputs, "y", **attrs)], shapes, ["y"], constants, opset=opset)
    (exact,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)
    y = run_here(load(model), feeds)["y"]
    assert y.shape == (exact.shape or (1,))
    assert sqnr(np.asarray(exact).reshape(y.shape), y) > 50


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bihd,bjhd->bhij", [(2, 5, 3, 4), (2, 6, 3, 4)]),
        ("bhij,bjhd->bihd", [(2, 3, 5, 6), (2, 6, 3, 4)]),
        ("bihd,hde->bie", [(1, 5, 3, 4), (3, 4, 7)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("bnd,bd->bn", [(2, 3, 4), (2, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ijk->j", [(2, 3, 4)]),
        ("i,i->", [(5,), (5,)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    _one("Einsum", *(_random(*shape) for shape in shapes), equation=equation)


def test_einsum_of_a_diagonal_is_refused() -> None:
    model = model_of([node("Einsum", "x", "y", name="e1", equation="ii->i")], {"x": [3, 3]}, ["y"], opset=18)
    with pytest.raises(htp.UnsupportedOp, match=r"node 'e1' \(Einsum\).*repeats a letter.*MatMul"):
        load(model)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("shift", [None, -1, 2])
def test_trilu(upper: int, shift: int | None) -> None:
    constants = None if shift is None else {"k": np.array(shift, np.int64)}
    _one("Trilu", _random(2, 4, 5), constants=constants, upper=upper)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_with_axes_of_both_kinds(op: str, keepdims: int) -> None:
    x = np.abs(_random(2, 3, 4)) + 0.1
    _one(op, x, constants={"axes": np.array([1, -1], np.int64)}, keepdims=keepdims)
    _one(op, x, opset=13, axes=[1], keepdims=keepdims)
    _one(op, x, keepdims=keepdims)


def test_log_sum_exp_does_not_overflow_half_precision() -> None:
    x = np.array([[20.0, 19.0, 3.0]], np.float32)
    _one("ReduceLogSumExp", x, constants={"axes": np.array([1], np.int64)})


@pytest.mark.parametrize(
    ("op", "opset", "attrs"),
    [
        ("Celu", 12, {"alpha": 0.7}),
        ("Mish", 18, {}),
        ("Selu", 18, {"gamma": 1.3}),
        ("Shrink", 18, {"lambd": 0.3, "bias": 0.1}),
        ("Softsign", 18, {}),
        ("Swish", 24, {"alpha": 1.7}),
        ("ThresholdedRelu", 18, {}),
    ],
)
def test_functions_of_onnx_keep_their_attributes_and_defaults(op: str, opset: int, attrs: dict[str, Any]) -> None:
    _one(op, _random(2, 3, 4), opset=opset, **attrs)


def test_newest_forms_of_transformers() -> None:
    q, k = _random(1, 4, 6, 8), _random(1, 2, 6, 8)
    _one("Attention", q, k, k, opset=23, is_causal=1)
    table = {"cos": _random(1, 6, 4), "sin": _random(1, 6, 4)}
    _one("RotaryEmbedding", q, constants=table, opset=23)
    _one("RMSNormalization", _random(2, 5, 16), constants={"w": _random(16)}, opset=23, epsilon=1e-3)


def test_not_a_number_is_found() -> None:
    nodes = [node("IsNaN", "x", "b"), node("Where", "b zero x", "y")]
    model = model_of(nodes, {"x": [3]}, ["y"], {"zero": np.float32(7.0)})
    y = run_here(load(model), {"x": np.array([1.0, np.nan, 2.0], np.float32)})["y"]
    assert y.tolist() == [1.0, 7.0, 2.0]


def _branches(condition: bool) -> bytes:
    def side(op: str) -> onnx.GraphProto:
        inner = [node("Add", "x c", "t"), node(op, "t", "z")]
        outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
        return helper.make_graph(inner, op, [], outputs, [numpy_helper.from_array(np.float32([0.25]), "c")])

    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "d"),
        node("Equal", "d want", "is_it"),
        node("If", "is_it", "y1", name="i1", then_branch=side("Relu"), else_branch=side("Neg")),
        # The same names inside, a second time.
        node("If", "is_it", "y2", name="i2", then_branch=side("Abs"), else_branch=side("Neg")),
    ]
    constants = {"zero": np.array(0), "want": np.array(3 if condition else 4)}
    return model_of(nodes, {"x": [3]}, ["y1", "y2"], constants)


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_that_is_known_is_taken(condition: bool) -> None:
    feeds = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}
    model = _branches(condition)
    exact, found = run_ort(model, feeds), run_here(load(model), feeds)
    for name in ("y1", "y2"):
        np.testing.assert_allclose(found[name], exact[name])


def test_a_branch_that_depends_on_data_is_refused() -> None:
    model = onnx.load_from_string(_branches(True))
    model.graph.node[2].input[1] = "asked"
    model.graph.input.append(helper.make_tensor_value_info("asked", TensorProto.INT64, []))
    with pytest.raises(htp.UnsupportedOp, match=r"node 'i1' \(If\): its condition is computed.*Where"):
        load(model.SerializeToString())


def test_functions_of_the_model_are_put_in_place() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("LeakyRelu", ["b"], ["u"])]
    body[1].attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    )
    body.append(helper.make_node("Sub", ["t", "u"], ["y"]))
    function = helper.make_function("own", "Both", ["a", "b"], ["y"], body, opsets, ["slope"])
    calls = [
        node("Both", "x0 x1", "m", domain="own", slope=0.5),
        node("Both", "m x1", "y", domain="own", slope=0.1),
    ]
    model = onnx.load_from_string(model_of(calls, {"x0": [4], "x1": [4]}, ["y"]))
    model.functions.append(function)
    model.opset_import.append(opsets[1])
    data, feeds = model.SerializeToString(), {"x0": _random(4), "x1": _random(4) - 1}
    assert sqnr(run_ort(data, feeds)["y"], run_here(load(data), feeds)["y"]) > 60


def test_a_value_without_elements_is_named_as_what_an_htp_does_not_have() -> None:
    """Whether it is computed or, as here, known beforehand: it is no mistake of the model's."""
    bounds = {"begin": np.array([9]), "end": np.array([12]), "axes": np.array([1])}
    model = model_of([node("Slice", "x begin end axes", "y")], {"x": [4, 5]}, ["y"], bounds)
    with pytest.raises(htp.UnsupportedFeature, match=r"value 'y' of shape \[4, 0\] has no elements"):
        load(model)
