"""ONNX models as QNN graphs: ``load`` imports one; ``openhtp.onnx.backend`` is ONNX's own test interface.

Knows the frontend and the runtime. Start at ``openhtp.frontend.onnx_import``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from openhtp.frontend import onnx_import
from openhtp.frontend.data_formats import read_data_formats, with_data_formats
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.onnx_reader import ModelSource
from openhtp.ir.graph import Graph

__all__ = ["load"]


def load(
    source: ModelSource,
    *,
    dims: Dims | None = None,
    freeze: Freeze | None = None,
    data_format_config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Graph:
    """Import an ONNX file (or its bytes, or a ``ModelProto``) as a QNN graph with fixed shapes.

    Inputs and outputs keep their ONNX names, types and axes. ``dims`` fixes dimensions that the file leaves open,
    by their name in the file or as ``"input.axis"``; ``freeze`` makes inputs constants: ``{"sr": 16000}``.
    ``data_format_config`` is a file (or what it holds) that says which inputs and outputs of which graph lie in
    the HMX weight layout. Raises BadModel for a broken file and UnsupportedOp or UnsupportedFeature, naming the
    node, for what an HTP does not take.
    """
    formats = None if data_format_config is None else read_data_formats(data_format_config)
    graph = onnx_import.load(source, dims, freeze)
    return graph if formats is None else with_data_formats(graph, formats)
