"""What ``qnn_saver_path`` asks for: the calls that make up the graph, on disk.

The vendor's saver writes C code; this writes the same calls as JSON, with constants in one binary file beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from openhtp.core.quant import Encoding, ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.ir.graph import Graph

FOLDER = "saver_output"


def save_calls(graph: Graph, folder: Path) -> Path:
    """Write ``<graph>.json`` and ``<graph>.bin`` into a folder; returns the former."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in graph.name) or "graph"
    offsets: dict[str, int] = {}
    with (folder / f"{name}.bin").open("wb") as data:
        for tensor, array in graph.statics.items():
            offsets[tensor] = data.tell()
            data.write(array.tobytes())
    calls = [{"call": "tensorCreateGraphTensor", **_tensor(spec, offsets)} for spec in graph.tensors.values()]
    calls += [
        {
            "call": "graphAddNode",
            "name": node.name,
            "op": node.op,
            "inputs": list(node.inputs),
            "outputs": list(node.outputs),
            "params": {key: np.asarray(value).tolist() for key, value in node.params.items()},
        }
        for node in graph.nodes
    ]
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"graph": graph.name, "calls": calls}, indent=1), encoding="utf-8")
    return path


def _tensor(spec: TensorSpec, offsets: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": spec.name,
        "type": spec.kind.name,
        "dataType": spec.dtype.qnn_name,
        "dimensions": list(spec.shape),
    }
    if spec.quant is not None:
        made["quantizeParams"] = _encoding(spec.quant)
    if spec.name in offsets:
        made["data"] = {"offset": offsets[spec.name], "bytes": spec.nbytes}
    return made


def _encoding(quant: Encoding) -> dict[str, Any]:
    if isinstance(quant, ScaleOffset):
        return {"scale": quant.scale, "offset": quant.offset}
    return {"axis": quant.axis, "scales": list(quant.scales), "offsets": list(quant.offsets)}
