"""Which files a model consists of."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from openhtp.core.errors import BadModel
from openhtp.core.files import read_file
from openhtp.frontend.onnx_reader import MAX_FILE_BYTES


def external_files(source: Path) -> list[Path]:
    """Files beside a model that hold data of its initializers, each once, as far as they are there."""
    data = read_file(source, most=MAX_FILE_BYTES, what="an ONNX model", error=BadModel)
    try:
        model = ModelProto.FromString(data)
    except DecodeError:
        return []  # whoever reads it for good says what is wrong with it
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    found = [source.parent / name for name in sorted(names)]
    return [path for path in found if path.is_file()]
