"""The modules of ``onnxruntime.capi`` by their names: the classes of ``openhtp.ort`` are ours, others theirs."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from openhtp import ort
from openhtp.engine.onnxruntime import part

__path__: list[str] = []  # a package, as theirs is; its modules are made below

_OF_CLASSES = "onnxruntime_inference_collection"


class CapiModule(ModuleType):
    """A module of ONNX Runtime's; in the one with its classes, those that we have are ours."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{__name__}.{name}", f"The names of ``onnxruntime.capi.{name}``.")
        self._theirs = part(f"capi.{name}")
        self._ours = ort.__all__ if name == _OF_CLASSES else []

    def __getattr__(self, name: str) -> Any:
        return getattr(ort if name in self._ours else self._theirs, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._theirs), *self._ours})


for _name in ("_pybind_state", "onnxruntime_pybind11_state", _OF_CLASSES):
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = CapiModule(_name)
