"""The one door to ONNX Runtime: everything here that uses it takes it from this module.

From 1.31 on it opens a store of usage events in the user's cache folder, from every process that makes a
session, and sends it where there is a network. Only the environment can prevent that, and only before the first
session; so the variable is set before the package is imported. A value that the user has set is left alone.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

TELEMETRY_SWITCH = "ORT_DISABLE_TELEMETRY"
MODELS_DECIDE = "ORT_LOAD_CONFIG_FROM_MODEL"
"""With this variable, the options of a session are those that its model names, and the caller's are dropped."""
os.environ.setdefault(TELEMETRY_SWITCH, "1")

import onnxruntime  # noqa: E402  # after the switch

__all__ = ["MODELS_DECIDE", "TELEMETRY_SWITCH", "onnxruntime", "part", "refusal_in_words"]

# The words with which ONNX Runtime refuses a file of a newer ONNX, and the remedy.
_TOO_NEW = (
    (r"IR version: (\d+), max supported IR version: (\d+)", "IR version", "model.ir_version ="),
    (r"Opset (\d+) is under development.* till opset (\d+)", "opset", "opset"),
)


def part(name: str) -> Any:
    """A module of the package that its top level does not bring in (``quantization``, say)."""
    return importlib.import_module(f"onnxruntime.{name}")


def refusal_in_words(error: Exception) -> str:
    """Why ONNX Runtime refuses a model. By default, the ``onnx`` package writes newer files than it reads."""
    for pattern, version, remedy in _TOO_NEW:
        match = re.search(pattern, str(error), re.DOTALL)
        if match is not None:
            return (
                f"the model has {version} {match[1]}, and at most {match[2]} is read by ONNX Runtime"
                f" {onnxruntime.__version__}; save it with {remedy} {match[2]}"
            )
    return str(error)
