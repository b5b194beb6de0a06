"""Helpers of the importer's tests: build small models, run them here and in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from openhtp.compiler.driver import compile_graph
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.engine.ort import OrtEngine
from openhtp.ir.graph import Graph

Arrays = dict[str, np.ndarray]


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    types: Mapping[str, int] | None = None,
) -> bytes:
    """A model with float inputs and outputs of unknown shape."""
    types = types or {}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def run_here(graph: Graph, feeds: Arrays) -> Arrays:
    """Compile and compute a graph in this process."""
    program = compile_graph(graph, "SM8650")
    loaded = OrtEngine().load(program)
    outputs = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
    run = loaded.bind({**{name: np.ascontiguousarray(array) for name, array in feeds.items()}, **outputs})
    for index in range(loaded.steps):
        run.step(index)
    return outputs


def run_ort(model: bytes, feeds: Arrays) -> Arrays:
    """What onnxruntime computes, one operator at a time as the file has them."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def sqnr(exact: np.ndarray, other: np.ndarray) -> float:
    """Signal to noise, in decibels."""
    signal, noise = np.sum(np.square(exact, dtype=float)), np.sum(np.square(exact - other, dtype=float))
    return float(10 * np.log10(signal / max(noise, 1e-30)))


def node(op_type: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """A node with space-separated inputs and outputs; ``-`` leaves one out."""
    names = [["" if name == "-" else name for name in side.split()] for side in (inputs, outputs)]
    domain = attrs.pop("domain", "")
    return helper.make_node(op_type, names[0], names[1], domain=domain, **attrs)
