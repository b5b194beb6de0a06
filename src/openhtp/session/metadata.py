"""What a session tells about its model, in ONNX Runtime's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.frontend.model import OnnxModel, ValueType
from openhtp.frontend.onnx_reader import value_type

_WORDS = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Name, type and shape of an input or output, in ONNX Runtime's words."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """What the file says about itself."""

    graph_name: str
    producer_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


def type_in_words(dtype: np.dtype[Any]) -> str:
    """``tensor(float)`` and its like."""
    return f"tensor({_WORDS.get(dtype.name, dtype.name)})"


def node_args(values: Mapping[str, ValueType]) -> list[NodeArg]:
    """Inputs or outputs as ONNX Runtime lists them."""
    return [NodeArg(name, type_in_words(kind.dtype), list(kind.shape)) for name, kind in values.items()]


def described(value: Any) -> NodeArg:
    """An input or output as its file has it; sizes that are left open are names, or None."""
    kind = value.type.tensor_type
    shape = [dim.dim_value if dim.dim_value > 0 else dim.dim_param or None for dim in kind.shape.dim]
    return NodeArg(value.name, type_in_words(value_type(kind.elem_type, value.name)), shape)


def metadata_of(model: OnnxModel) -> ModelMetadata:
    """What a file that was read here says about itself."""
    return ModelMetadata(
        graph_name=model.name,
        producer_name=model.producer,
        domain=model.domain,
        description=model.description,
        graph_description="",
        version=model.version,
        custom_metadata_map=dict(model.metadata),
    )
