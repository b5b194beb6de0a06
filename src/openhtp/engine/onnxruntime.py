"""The one door to ONNX Runtime: everything here that uses it takes it from this module.

From 1.31 on it opens a store of usage events in the user's cache folder, from every process that makes a
session, and sends it where there is a network. Only the environment can prevent that, and only before the first
session; so the variable is set before the package is imported. A value that the user has set is left alone.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

TELEMETRY_SWITCH = "ORT_DISABLE_TELEMETRY"
os.environ.setdefault(TELEMETRY_SWITCH, "1")

import onnxruntime  # noqa: E402  # after the switch

__all__ = ["TELEMETRY_SWITCH", "onnxruntime", "part"]


def part(name: str) -> Any:
    """A module of the package that its top level does not bring in (``quantization``, say)."""
    return importlib.import_module(f"onnxruntime.{name}")
