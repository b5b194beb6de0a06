"""The names of ``onnxruntime.capi.onnxruntime_inference_collection``; the classes of ``openhtp.ort`` are ours."""

from __future__ import annotations

from typing import Any

from openhtp import ort
from openhtp.engine.onnxruntime import part

_theirs = part("capi.onnxruntime_inference_collection")


def __getattr__(name: str) -> Any:
    return getattr(ort, name) if name in ort.__all__ else getattr(_theirs, name)


def __dir__() -> list[str]:
    return sorted({*dir(_theirs), *ort.__all__})
