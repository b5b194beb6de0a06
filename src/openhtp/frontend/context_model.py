"""ONNX files that hold a compiled context instead of a network: one EPContext node, as the QNN provider's do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from openhtp.core.errors import BadModel
from openhtp.frontend.model import MICROSOFT, OnnxModel, ValueType

_SOURCES = ("QNN", "QNNExecutionProvider", "OpenHTP")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextModel:
    """What an EPContext file says: the graph's name, and the context itself or the name of the file with it."""

    graph: str
    data: bytes | None
    file: str | None


def write_context_model(
    graph: str,
    inputs: Mapping[str, ValueType],
    outputs: Mapping[str, ValueType],
    content: bytes | str,
    *,
    version: str,
    metadata: Mapping[str, str],
) -> bytes:
    """A file with the context embedded (bytes), or with a reference to the file that has it (a name)."""
    node = helper.make_node(
        "EPContext",
        list(inputs),
        list(outputs),
        name=f"QNN_{graph}",
        domain=MICROSOFT,
        main_context=1,
        embed_mode=int(isinstance(content, bytes)),
        ep_cache_context=content,
        ep_sdk_version=version,
        partition_name=graph,
        source="QNN",
    )
    made = helper.make_graph([node], graph, _described(inputs), _described(outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=8, producer_name="openhtp")
    helper.set_model_props(model, dict(metadata))
    data: bytes = model.SerializeToString()
    return data


def _described(values: Mapping[str, ValueType]) -> Sequence[object]:
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype)), kind.shape)
        for name, kind in values.items()
    ]


def read_context_model(model: OnnxModel) -> ContextModel | None:
    """The context that a model holds, or None if it is a network."""
    nodes = [node for node in model.nodes if node.op_type == "EPContext" and node.domain == MICROSOFT]
    if not nodes:
        return None
    node = nodes[0]
    if len(model.nodes) > 1:
        raise BadModel(f"{node.title}: {len(model.nodes)} nodes beside each other; expected one EPContext alone")
    if node.attr("source", "QNN") not in _SOURCES:
        raise BadModel(f"{node.title}: the context was made by {node.attr('source')!r}; expected 'QNN'")
    content = node.attr("ep_cache_context")
    if content is None:
        raise BadModel(f"{node.title}: there is no context in it")
    data = content if isinstance(content, bytes) else str(content).encode()
    embedded = bool(node.attr("embed_mode", 1))
    name = node.attr("partition_name") or node.name
    return ContextModel(
        graph=name, data=data if embedded else None, file=None if embedded else data.decode(errors="replace")
    )
