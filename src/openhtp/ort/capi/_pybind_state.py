"""The names of ``onnxruntime.capi._pybind_state``: ONNX Runtime's own, which errors of ours are, too."""

from __future__ import annotations

from typing import Any

from openhtp.engine.onnxruntime import part

_theirs = part("capi._pybind_state")


def __getattr__(name: str) -> Any:
    return getattr(_theirs, name)


def __dir__() -> list[str]:
    return dir(_theirs)
