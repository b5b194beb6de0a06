"""Branches that samples take, written in place of their Ifs, so that values inside can be looked at by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, ModelProto, helper

from openhtp.core.errors import UnsupportedFeature
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.probing import with_outputs

Array = npt.NDArray[Any]
# Ifs inside Ifs are settled from the outside in.
_DEEPEST = 16


def settled(model: bytes, samples: Sequence[Mapping[str, Array]]) -> bytes:
    """The model with the branch that all samples take in place of each If; where they differ, the If stays."""
    for _ in range(_DEEPEST):
        proto = ModelProto.FromString(model)
        branches = _taken(model, proto.graph, samples)
        if not branches:
            return model
        _settle(proto.graph, branches)
        model = proto.SerializeToString()
    return model


def plain_session(model: bytes) -> Any:
    """ONNX Runtime without its optimisations: those crash on some Ifs whose condition is a constant."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UnsupportedFeature(f"onnxruntime cannot look into the model: {error}") from error


def all_inputs(node: Any) -> Iterator[str]:
    """The names that a node reads, also inside its branches and loops."""
    yield from node.input
    for body in _bodies(node):
        for inner in body.node:
            yield from all_inputs(inner)
        yield from (value.name for value in body.output)


def _bodies(node: Any) -> list[Any]:
    """The graphs inside a node: branches of an If, the body of a Loop."""
    return [item.g for item in node.attribute if item.type == AttributeProto.GRAPH]


def _taken(model: bytes, graph: Any, samples: Sequence[Mapping[str, Array]]) -> dict[str, str]:
    """The branch of each If, by the first output of the If."""
    conditions = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "If"}
    if not conditions or not samples:
        return {}
    names = list(dict.fromkeys(conditions.values()))
    session = plain_session(with_outputs(model, names))
    wanted = {value.name for value in session.get_inputs()}
    runs = [
        session.run(names, {name: array for name, array in feeds.items() if name in wanted}) for feeds in samples
    ]
    values = {name: {bool(np.all(run[index])) for run in runs} for index, name in enumerate(names)}
    return {
        output: "then_branch" if True in values[name] else "else_branch"
        for output, name in conditions.items()
        if len(values[name]) == 1
    }


def _settle(graph: Any, branches: Mapping[str, str]) -> None:
    """Put the nodes of the taken branches where their Ifs are, in place."""
    used = {name for node in graph.node for name in (*node.output, *all_inputs(node))}
    nodes = []
    for node in graph.node:
        branch = node.op_type == "If" and branches.get(node.output[0])
        if not branch:
            nodes.append(node)
            continue
        body = next(item.g for item in node.attribute if item.name == branch)
        own = [
            *(tensor.name for tensor in body.initializer),
            *(name for each in body.node for name in each.output),
        ]
        # Two branches may use one name, each for itself.
        renamed = {name: f"{node.output[0]}/{name}" for name in own if name in used or name in branches}
        used.update(own)
        for tensor in body.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)
            graph.initializer.append(tensor)
        _rename(body.node, renamed)
        nodes += body.node
        for value, output in zip(body.output, node.output, strict=True):
            name = renamed.get(value.name, value.name)
            nodes.append(helper.make_node("Identity", [name], [output], f"{node.name or output}/{output}"))
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _rename(nodes: Iterable[Any], renamed: Mapping[str, str]) -> None:
    """Give values other names, also inside the graphs of the nodes."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
        for body in _bodies(node):
            _rename(body.node, renamed)
            for value in body.output:
                value.name = renamed.get(value.name, value.name)
