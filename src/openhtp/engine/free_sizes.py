"""Parts that fit images of any size, so that graphs of one network for several sizes can have the same sessions.

What the runtime makes of the filters of an 8-bit convolution stays in its session, and no other can use it. It
does not depend on the image. So where several graphs are loaded together, the models of such parts leave open how
many images they get, and how large: where two graphs are cut at the same places, their parts are equal, and one
session serves both. Every number stays what it was, and so does the time (decision 026).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from openhtp.engine.onnx_graph import model_bytes, parse_model
from openhtp.engine.strips import is_channel_last

_IMAGE = 4


def with_free_sizes(part: bytes) -> bytes:
    """The model of a part with the sizes of its ends left open, if it has convolutions in channel-last order.

    What is no model stays as it is, for the runtime to refuse.
    """
    try:
        model: ModelProto = parse_model(part)
    except DecodeError:
        return part
    if not any(map(is_channel_last, model.graph.node)):
        return part
    _free((*model.graph.input, *model.graph.output))
    return model_bytes(model)


def _free(ends: Iterable[Any]) -> None:
    """Give names to all sizes of images, in whichever order: channels the runtime compares with the filters."""
    for end in ends:
        sizes = end.type.tensor_type.shape.dim
        if len(sizes) == _IMAGE:
            for axis, size in enumerate(sizes):
                size.dim_param = f"{end.name}.{axis}"
