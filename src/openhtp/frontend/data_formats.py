"""Data format files: which tensors of which graphs lie in another layout than row by row.

::

    {"graphs": [{"graph_name": "token_ar1_cl4096_1_of_1",
                 "tensors": [{"tensor_name": "past_key_0_in",
                              "dataFormat": "QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT"}]}]}
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import BadModel, error_context
from openhtp.core.files import read_file
from openhtp.ir.graph import Graph

Formats = Mapping[str, Mapping[str, DataFormat]]

_MOST_BYTES = 64 << 20


class _TensorFormat(msgspec.Struct, forbid_unknown_fields=True):
    tensor_name: str
    format: str | int = msgspec.field(name="dataFormat")


class _Graph(msgspec.Struct, forbid_unknown_fields=True):
    graph_name: str | list[str]
    tensors: list[_TensorFormat]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    graphs: list[_Graph]


def read_data_formats(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, dict[str, DataFormat]]:
    """Data formats by graph and tensor, from a file or from a mapping of the same form."""
    try:
        if isinstance(source, Mapping):
            content = msgspec.convert(source, _File)
        else:
            text = read_file(source, most=_MOST_BYTES, what="a data format configuration", error=BadModel)
            content = msgspec.json.decode(text, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = "the data format configuration" if isinstance(source, Mapping) else repr(str(source))
        raise BadModel(f"{where} cannot be read: {error}; expected graphs with tensors") from error
    by_graph: dict[str, dict[str, DataFormat]] = {}
    for graph in content.graphs:
        names = [graph.graph_name] if isinstance(graph.graph_name, str) else graph.graph_name
        for name in names:
            formats = by_graph.setdefault(name, {})
            for tensor in graph.tensors:
                with error_context(graph=name, tensor=tensor.tensor_name):
                    formats[tensor.tensor_name] = DataFormat.parse(tensor.format)
    return by_graph


def with_data_formats(graph: Graph, formats: Formats) -> Graph:
    """The graph with its tensors in these formats. Entries for other graphs are ignored.

    Raises BadModel for a tensor that the graph does not have among its inputs and outputs.
    """
    wanted = formats.get(graph.name)
    if not wanted:
        return graph
    ends = {spec.name for spec in (*graph.inputs, *graph.outputs)}
    unknown = [name for name in wanted if name not in ends]
    if unknown:
        raise BadModel(
            f"the data format configuration names {unknown[0]!r}, which graph {graph.name!r} neither reads nor"
            f" returns; it has {', '.join(sorted(ends)[:8])}{', ...' if len(ends) > 8 else ''}"
        )
    tensors = {
        name: dataclasses.replace(spec, data_format=wanted[name]) if name in wanted else spec
        for name, spec in graph.tensors.items()
    }
    return Graph(graph.name, tensors, graph.statics, graph.nodes)
