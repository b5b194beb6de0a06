"""A model with other constants than those in its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from openhtp.core.checks import shown
from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.frontend.onnx_reader import ModelSource, model_bytes, open_model, read_tensor


def with_constants(
    source: ModelSource, tensors: Mapping[str, npt.NDArray[Any]], files: Mapping[str, bytes]
) -> bytes:
    """The model with these tensors in place of its constants of their names, all of its data inside.

    ``files`` has external data by the names of the files that it would lie in.
    """
    proto, folder, _ = open_model(source)
    known = {tensor.name: tensor for tensor in proto.graph.initializer}
    unknown = [name for name in tensors if name not in known]
    if unknown:
        raise InvalidArgument(f"the model has no initializer {shown(unknown[0])}; it has {shown(list(known))}")
    for name, tensor in known.items():
        if name in tensors:
            tensor.CopyFrom(numpy_helper.from_array(_fitting(name, tensor, tensors[name]), name))
        elif tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(_external(tensor, folder, files), name))
    return model_bytes(proto)


def _fitting(name: str, tensor: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    wanted = numpy_helper.from_array(np.empty(0, array.dtype)).data_type
    if list(array.shape) != list(tensor.dims) or wanted != tensor.data_type:
        kind = TensorProto.DataType.Name(tensor.data_type).lower()
        raise InvalidArgument(
            f"initializer {name!r} is {array.dtype}{list(array.shape)}; the model has {kind}{list(tensor.dims)}"
        )
    return np.ascontiguousarray(array)


def _external(tensor: Any, folder: Any, files: Mapping[str, bytes]) -> npt.NDArray[Any]:
    reference = {item.key: item.value for item in tensor.external_data}
    data = files.get(reference.get("location", ""))
    if data is None:
        return read_tensor(tensor, folder)
    try:
        offset = int(reference.get("offset", 0))
        length = int(reference.get("length", len(data) - offset))
    except ValueError:
        raise BadModel(f"tensor {tensor.name!r} has external data at no number: {reference}") from None
    if not 0 <= offset <= offset + length <= len(data):
        raise BadModel(
            f"tensor {tensor.name!r} takes bytes {offset}..{offset + length} of a file of {len(data)} bytes"
        )
    inside = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    inside.raw_data = data[offset : offset + length]
    return read_tensor(inside, None)
