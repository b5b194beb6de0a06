"""``SessionOptions.add_free_dimension_override_by_name`` and ``_by_denotation``, honoured."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import onnxruntime
from onnx import helper

log = logging.getLogger(__name__)

_OPSET, _IR = 17, 8


def free_dimensions(options: Any, inputs: Sequence[Any]) -> dict[str, int]:
    """Sizes that the options give to a model's inputs, by ``input.axis``.

    ONNX Runtime does not tell what was set, so it is asked what becomes of a model that has these inputs and no
    nodes: such a model is at peace with whatever else the options say.
    """
    graph = helper.make_graph([], "inputs", inputs, inputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    # This session must not leave the files behind that the user's own session is asked for.
    before = options.optimized_model_filepath, options.enable_profiling
    options.optimized_model_filepath, options.enable_profiling = "", False
    try:
        asked = onnxruntime.InferenceSession(model.SerializeToString(), options)
    except Exception as error:  # Options may hold anything, made for the user's own model.
        log.warning("the free dimension overrides of the session options cannot be found out: %s", error)
        return {}
    finally:
        options.optimized_model_filepath, options.enable_profiling = before
    return {
        f"{value.name}.{axis}": size
        for value in asked.get_inputs()
        for axis, size in enumerate(value.shape)
        if isinstance(size, int)
    }
