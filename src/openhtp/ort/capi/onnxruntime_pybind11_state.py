"""The names of ``onnxruntime.capi.onnxruntime_pybind11_state``: its own, which our errors are, too."""

from __future__ import annotations

from typing import Any

from openhtp.engine.onnxruntime import part

_theirs = part("capi.onnxruntime_pybind11_state")


def __getattr__(name: str) -> Any:
    return getattr(_theirs, name)


def __dir__() -> list[str]:
    return dir(_theirs)
