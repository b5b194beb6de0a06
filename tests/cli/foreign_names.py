"""Names that a terminal, a log, an SVG or a page must not obey, and files whose every name is one of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from openhtp import zoo

TITLE = "\x1b]0;evil\x07"
EVIL = f"{TITLE}\x1b[31m\r\nwrote forged [bold]b[/] [/] <script>&\u202e\u200b\x9b2J\x7f"
"""Sets a title, colours, begins a line anew and one more, is markup of two kinds, and turns its reader around."""
FORGED = "wrote forged"
"""What would stand at the beginning of a line if a line break in a name were one."""


def named(name: str) -> str:
    """A name with all of that in it."""
    return f"{name}{EVIL}"


def write_model(path: Path) -> Path:
    """Two layers, one with an operator that the HTP does not have; every name in it is hostile."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", [named("x"), named("w0")], [named("a")], name=named("first")),
        helper.make_node("Relu", [named("a")], [named("b")], name=named("relu")),
        helper.make_node("Det", [named("square")], [named("d")], name=named("det")),
        helper.make_node("Add", [named("b"), named("d")], [named("e")], name=named("sum")),
        helper.make_node("MatMul", [named("e"), named("w1")], [named("y")], name=named("last")),
    ]
    graph = helper.make_graph(
        nodes,
        named("graph"),
        [_floats("x", (1, 16)), _floats("square", (1, 4, 4))],
        [_floats("y", (1, 16))],
        [numpy_helper.from_array(each, named(f"w{place}")) for place, each in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def write_network(path: Path) -> Path:
    """A network of the zoo, with hostile names for its nodes, and activations that could be better."""
    model = onnx.load_from_string(zoo.small_cnn())
    for node in model.graph.node:
        node.name = named(node.name)
        node.op_type = node.op_type.replace("Relu", "Tanh")
    onnx.save(model, path)
    return path


def write_plain_model(path: Path, size: int) -> Path:
    """One layer that the HTP takes as it is."""
    weights = np.eye(size, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", [named("x"), named("w")], [named("y")], name=named("layer"))],
        named("graph"),
        [_floats("x", (1, size))],
        [_floats("y", (1, size))],
        [numpy_helper.from_array(weights, named("w"))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def _floats(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(named(name), TensorProto.FLOAT, shape)


def scenario(clients: tuple[str, ...]) -> dict[str, object]:
    """Clients that make each other wait, and miss deadlines."""
    return {
        "name": named("scenario"),
        "unit": "ms",
        "duration": 100,
        "device": {"soc": "SM8650"},
        "clients": [
            {"name": name, "priority": "low" if place else "high", "deadline": 13, "run": 12}
            for place, name in enumerate(clients)
        ],
        "events": [{"client": name, "every": 20} for name in clients],
    }


def write_scenario(path: Path, *more: str) -> Path:
    """YAML knows JSON."""
    path.write_text(json.dumps(scenario((named("camera"), named("voice"), *more))), encoding="utf-8")
    return path
