"""The three attention-mask patterns are computed as one op, and only they are."""

from __future__ import annotations

import numpy as np
import pytest
from import_cases import model_of, node, run_here
from onnx import TensorProto

from openhtp.compiler.driver import compile_graph, portable_program
from openhtp.onnx import load

_HEADS, _LONG = 2, 8
_SHAPE = (1, _HEADS, 4, _LONG)


def _pair(
    name: str, after: str, constants: dict[str, np.ndarray], low: float, high: float, kind: str
) -> list[object]:
    top = int(np.iinfo(kind).max)
    scale = (high - low) / top
    constants |= {f"{name}_s": np.float32(scale), f"{name}_z": np.array(round(-low / scale), kind)}
    return [
        node("QuantizeLinear", f"{name} {name}_s {name}_z", f"{name}_q", domain="com.microsoft"),
        node("DequantizeLinear", f"{name}_q {name}_s {name}_z", after, domain="com.microsoft"),
    ]


def _model(pattern: str, *, addend: float = -30.0, kind: str = "uint16", axis: int = -1) -> bytes:
    constants: dict[str, np.ndarray] = {"b": np.array([addend], np.float32)}
    nodes = _pair("x", "xd", constants, -4, 4, kind)
    types = {}
    if pattern == "C":
        types["mask"] = TensorProto.UINT8
        nodes.append(node("Cast", "mask", "keep", to=TensorProto.BOOL))
    else:
        constants["zero"] = np.zeros(1, np.float32)
        nodes += _pair("mask", "md", constants, 0, 1, "uint16")
        nodes.append(node("Equal", "md zero", "is_zero" if pattern == "B" else "keep"))
        if pattern == "B":
            nodes.append(node("Not", "is_zero", "keep"))
    nodes.append(node("ReduceMin", "xd", "least", axes=[-1]))
    nodes += _pair("least", "ld", constants, -4, 4, kind)
    nodes += _pair("b", "bd", constants, min(addend, -1.0), 0, kind)
    nodes.append(node("Add", "ld bd", "low"))
    nodes += _pair("low", "lowd", constants, addend - 4, 4, kind)
    nodes.append(node("Where", "keep xd lowd", "chosen"))
    nodes += _pair("chosen", "cd", constants, addend - 4, 4, kind)
    nodes.append(node("Softmax", "cd", "p", axis=axis))
    nodes += _pair("p", "y", constants, 0, 1, kind)
    return model_of(nodes, {"x": _SHAPE, "mask": (1, 1, 4, _LONG)}, ["y"], constants, types=types)


def _feeds(pattern: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    random = np.random.default_rng(1)
    keep = random.random((1, 1, 4, _LONG)) < 0.6
    keep[..., 0] = True
    keep[0, 0, 3] = False
    mask = (~keep if pattern == "A" else keep).astype(np.uint8 if pattern == "C" else np.float32)
    return {"x": random.uniform(-4, 4, _SHAPE).astype(np.float32), "mask": mask}, keep


def _exact(x: np.ndarray, keep: np.ndarray) -> np.ndarray:
    power = np.where(keep, np.exp(x.astype(float)), 0.0)
    total = power.sum(-1, keepdims=True)
    return np.divide(power, total, out=np.zeros_like(power), where=total > 0)


def _added_mask(kind: str) -> bytes:
    """What it replaces: the mask is added to the scores, whose range has to hold both."""
    constants: dict[str, np.ndarray] = {}
    nodes = [*_pair("x", "xd", constants, -4, 4, kind), *_pair("mask", "md", constants, -30, 0, kind)]
    nodes.append(node("Add", "xd md", "sum"))
    nodes += _pair("sum", "sd", constants, -34, 4, kind)
    nodes.append(node("Softmax", "sd", "p", axis=-1))
    nodes += _pair("p", "y", constants, 0, 1, kind)
    return model_of(nodes, {"x": _SHAPE, "mask": (1, 1, 4, _LONG)}, ["y"], constants)


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_accuracy_is_better_than_with_a_mask_that_is_added(kind: str) -> None:
    feeds, keep = _feeds("B")
    rows = keep[0, 0].any(-1)  # where all is hidden, a sum knows nothing of it
    exact = _exact(feeds["x"], keep)[..., rows, :]
    errors = {}
    for way, model in (("masked", _model("B", kind=kind)), ("added", _added_mask(kind))):
        mask = feeds["mask"] if way == "masked" else np.where(keep, 0, -30).astype(np.float32)
        results = run_here(load(model), {"x": feeds["x"], "mask": mask})["y"][..., rows, :]
        errors[way] = float(np.sqrt(np.mean((results - exact) ** 2)))
    assert errors["masked"] < errors["added"] / 2


@pytest.mark.parametrize("pattern", ["A", "B", "C"])
@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_pattern_is_one_op_and_masks_exactly(pattern: str, kind: str) -> None:
    graph = load(_model(pattern, kind=kind))
    ops = [kernel.op for kernel in compile_graph(graph, "SM8650").kernels]
    assert ops.count("SelectSoftmax") == 1
    assert not {"Softmax", "ElementWiseSelect", "ReduceMin", "ElementWiseAdd"} & set(ops)
    assert {"Softmax", "ElementWiseSelect", "ReduceMin"} <= {node.op for node in portable_program(graph).nodes}
    feeds, keep = _feeds(pattern)
    y = run_here(graph, feeds)["y"]
    exact = _exact(feeds["x"], keep)
    assert np.all(y[np.broadcast_to(~keep, y.shape)] == 0)
    # One step of the output, and what one step of the input does to it.
    step = 8 / np.iinfo(kind).max
    assert np.abs(y - exact).max() < 1 / np.iinfo(kind).max + step + 1e-3


@pytest.mark.parametrize("change", [{"addend": -19.0}, {"axis": 1}])
def test_what_is_not_the_pattern_is_left_alone(change: dict[str, float]) -> None:
    program = compile_graph(load(_model("B", **change)), "SM8650")
    assert "SelectSoftmax" not in {kernel.op for kernel in program.kernels}


def test_float_models_are_left_alone() -> None:
    nodes = [
        node("Not", "m", "keep"),
        node("ReduceMin", "x", "least", axes=[-1]),
        node("Add", "least b", "low"),
        node("Where", "keep x low", "chosen"),
        node("Softmax", "chosen", "y"),
    ]
    constants = {"b": np.array([-30.0], np.float32)}
    shapes = {"x": _SHAPE, "m": (1, 1, 4, _LONG)}
    graph = load(model_of(nodes, shapes, ["y"], constants, types={"m": TensorProto.BOOL}))
    assert "SelectSoftmax" not in {kernel.op for kernel in compile_graph(graph, "SM8650").kernels}
