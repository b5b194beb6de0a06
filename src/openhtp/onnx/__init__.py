"""ONNX models as QNN graphs: ``load`` imports one; ``openhtp.onnx.backend`` is ONNX's own test interface.

Knows the frontend and the runtime. Start at ``openhtp.frontend.onnx_import``.
"""

from __future__ import annotations

from openhtp.frontend import onnx_import
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.onnx_reader import ModelSource
from openhtp.ir.graph import Graph

__all__ = ["load"]


def load(source: ModelSource, *, dims: Dims | None = None, freeze: Freeze | None = None) -> Graph:
    """Import an ONNX file (or its bytes, or a ``ModelProto``) as a QNN graph with fixed shapes.

    Inputs and outputs keep their ONNX names, types and axes. ``dims`` fixes dimensions that the file leaves open,
    by their name in the file or as ``"input.axis"``; ``freeze`` makes inputs constants: ``{"sr": 16000}``. Raises
    BadModel for a broken file and UnsupportedOp or UnsupportedFeature, naming the node, for what an HTP does not
    take.
    """
    return onnx_import.load(source, dims, freeze)
