"""The context cache: a session writes its compiled graph to a file, a later one starts from it.

The file is an ONNX model of one EPContext node, as the QNN provider writes it. Session options, named as in ONNX
Runtime: ``ep.context_enable`` writes the file when the session is created, ``ep.context_file_path`` names it
(default: the model's name with ``_ctx.onnx``), ``ep.context_embed_mode`` "0" puts the binary into a file of its
own beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import helper

from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.core.files import write_file
from openhtp.core.units import GIB
from openhtp.frontend.model import MICROSOFT, OnnxModel, ValueType
from openhtp.frontend.onnx_reader import read_external

# No session could hold more.
_MOST_BINARY_BYTES = 4 * GIB
# What this emulation stands for, written into context files.
_SDK_VERSION = "openhtp"
_SOURCES = ("QNN", "QNNExecutionProvider", "OpenHTP")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextModel:
    """What an EPContext file says: the graph's name, and the context itself or the name of the file with it."""

    graph: str
    data: bytes | None
    file: str | None


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """Where to write, and whether the binary goes inside."""

    path: Path
    embed: bool


def read_cache_request(entries: Mapping[str, str], model_path: Path | None) -> CacheRequest | None:
    """What the session options ask for."""
    if entries.get("ep.context_enable", "0") != "1":
        return None
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


def write_context_model(
    graph: str,
    inputs: Mapping[str, ValueType],
    outputs: Mapping[str, ValueType],
    content: bytes | str,
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
        ep_sdk_version=_SDK_VERSION,
        partition_name=graph,
        source="QNN",
    )
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
