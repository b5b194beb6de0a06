"""The context cache: a session writes its compiled graph to a file, and later sessions start from that file.

The file is an ONNX model as the QNN provider writes it: an EPContext node for each graph on the HTP, and whatever
else the model has for the CPU. The first of these nodes, the main one, has the context with all the graphs.

Session options, named as in ONNX Runtime: ``ep.context_enable`` writes the file when the session is created,
``ep.context_file_path`` names it (default: the model's name with ``_ctx.onnx``), ``ep.context_embed_mode`` "0"
puts the binary into a file of its own beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedFeature
from openhtp.core.files import write_file
from openhtp.core.units import GIB
from openhtp.frontend.model import MICROSOFT, OnnxModel, OnnxNode, ValueType
from openhtp.frontend.onnx_reader import read_external
from openhtp.frontend.partitioning import EP_CONTEXT, ModelPart

# No session could hold more.
_MOST_BINARY_BYTES = 4 * GIB
# The version of the SDK in context files: they name this emulation.
_SDK_VERSION = "openhtp"
SHARE = "ep.share_ep_contexts"
_SOURCES = ("QNN", "QNNExecutionProvider", "OpenHTP")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextModel:
    """The content of an EPContext file: the graph's name, and the context itself or the name of its file."""

    graph: str
    data: bytes | None
    file: str | None


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """Where to write, and whether the binary goes inside."""

    path: Path
    embed: bool


def read_cache_request(entries: Mapping[str, str], model_path: Path | None) -> CacheRequest | None:
    """The context file that the session options ask for."""
    if entries.get("ep.context_enable", "0") != "1":
        return None
    if SHARE in entries and entries[SHARE] == "1":
        raise UnsupportedFeature(
            f"{SHARE} with ep.context_enable: sessions do not write into one context; compile the models together"
            " with openhtp context-binary-generator, or give each a context of its own"
        )
    name = entries.get("ep.context_file_path", "")
    if not name and model_path is None:
        raise InvalidArgument("a model given as bytes has no name; set ep.context_file_path")
    path = Path(name) if name else model_path.with_name(f"{model_path.stem}_ctx.onnx")  # type: ignore[union-attr]
    if path.exists():
        raise InvalidArgument(f"{str(path)!r} exists already; remove it, or set ep.context_file_path")
    return CacheRequest(path, entries.get("ep.context_embed_mode", "1") != "0")


def write_cache(request: CacheRequest, binary: bytes, make_model: Callable[[bytes | str], bytes]) -> None:
    """Write the ONNX file that is made for the binary, and the binary beside it unless it is embedded."""
    content: bytes | str = binary
    if not request.embed:
        digest = hashlib.sha256(binary).hexdigest()[:16]
        content = f"{request.path.name}_QNNExecutionProvider_QNN_{digest}_1_0.bin"
        write_file(request.path.with_name(content), binary)
    write_file(request.path, make_model(content))


def context_bytes(model: ContextModel, folder: Path | None) -> bytes:
    """The binary that a context model holds or refers to."""
    if model.data is not None:
        return model.data
    if not model.file:
        raise BadModel("the context model names no file with the binary")
    return read_external({"location": model.file}, folder, model.graph, most=_MOST_BINARY_BYTES)


def write_parts_model(
    proto: ModelProto, parts: Sequence[ModelPart], names: Sequence[str], content: bytes | str
) -> bytes:
    """A context file of a model in parts; ``names`` are those of its graphs on the HTP, in order."""
    graph, left = proto.graph, list(names)
    nodes: list[Any] = []
    constants: dict[str, Any] = {}
    between: dict[str, Any] = {}
    for part in parts:
        own = ModelProto.FromString(part.model).graph
        between |= {value.name: value for value in (*own.input, *own.output)}
        if part.on_htp:
            is_main = len(left) == len(names)
            nodes.append(
                _context_node(left.pop(0), part.inputs, part.outputs, content if is_main else None, content)
            )
        else:
            nodes += own.node
            constants |= {tensor.name: tensor for tensor in own.initializer}
    edges = {value.name for value in (*graph.input, *graph.output)}
    inputs = [value for value in graph.input if value.name not in {tensor.name for tensor in graph.initializer}]
    described = [value for name, value in between.items() if name not in edges]
    whole = helper.make_graph(
        nodes, graph.name, inputs, graph.output, list(constants.values()), value_info=described
    )
    opsets = [each for each in proto.opset_import if each.domain != MICROSOFT]
    opsets.append(helper.make_opsetid(MICROSOFT, 1))
    model = helper.make_model(whole, opset_imports=opsets, ir_version=proto.ir_version, producer_name="openhtp")
    model.metadata_props.extend(proto.metadata_props)
    return bytes(model.SerializeToString())


def _context_node(
    graph: str, inputs: Iterable[str], outputs: Iterable[str], content: bytes | str | None, form: bytes | str
) -> Any:
    """The node of a graph. The main one has ``content``, and ``form`` says whether it is embedded."""
    return helper.make_node(
        "EPContext",
        list(inputs),
        list(outputs),
        name=graph,  # by which the QNN provider finds it
        domain=MICROSOFT,
        main_context=int(content is not None),
        embed_mode=int(isinstance(form, bytes)),
        ep_sdk_version=_SDK_VERSION,
        partition_name=graph,
        source="QNN",
        **({} if content is None else {"ep_cache_context": content}),
    )


def write_context_model(
    graph: str,
    inputs: Mapping[str, ValueType],
    outputs: Mapping[str, ValueType],
    content: bytes | str,
    metadata: Mapping[str, str],
) -> bytes:
    """A file with the context embedded (bytes), or with a reference to the file that has it (a name)."""
    node = _context_node(graph, inputs, outputs, content, content)
    proto = helper.make_graph([node], graph, _described(inputs), _described(outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(proto, opset_imports=opsets, ir_version=8, producer_name="openhtp")
    helper.set_model_props(model, dict(metadata))
    return bytes(model.SerializeToString())


def _described(values: Mapping[str, ValueType]) -> Sequence[object]:
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype)), kind.shape)
        for name, kind in values.items()
    ]


def read_context_model(model: OnnxModel) -> ContextModel | None:
    """The context that a model holds, or None if it is a network.

    Raises:
        UnsupportedFeature: The model has other nodes, too: it runs in parts.
    """
    nodes = _context_nodes(model)
    if not nodes:
        return None
    others = [node.title for node in model.nodes if node is not nodes[0]]
    if others:
        raise UnsupportedFeature(f"{nodes[0].title}: the context model has other nodes, too: {', '.join(others)}")
    return _read_node(nodes[0])


def read_main_context(model: OnnxModel) -> ContextModel:
    """The context of a model in parts: that of its main node."""
    nodes = _context_nodes(model)
    main = [node for node in nodes if node.attr("main_context", 1)]
    if len(main) != 1:
        raise BadModel(
            f"{len(main)} of {len(nodes)} EPContext nodes have main_context 1; expected one that has all graphs"
        )
    return _read_node(main[0])


def _context_nodes(model: OnnxModel) -> list[OnnxNode]:
    return [node for node in model.nodes if node.op_type == EP_CONTEXT and node.domain == MICROSOFT]


def _read_node(node: OnnxNode) -> ContextModel:
    if node.attr("source", "QNN") not in _SOURCES:
        raise BadModel(f"{node.title}: the context was made by {node.attr('source')!r}; expected 'QNN'")
    content = node.attr("ep_cache_context")
    if content is None:
        raise BadModel(f"{node.title}: it has no context")
    data = content if isinstance(content, bytes) else str(content).encode()
    embedded = bool(node.attr("embed_mode", 1))
    name = node.attr("partition_name") or node.name
    return ContextModel(
        graph=name, data=data if embedded else None, file=None if embedded else data.decode(errors="replace")
    )
