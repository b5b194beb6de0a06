"""ONNX Runtime's own session, for models that are left to the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from openhtp.core.errors import BadModel
from openhtp.core.files import open_file
from openhtp.frontend.onnx_reader import MAX_FILE_BYTES
from openhtp.session.options import CPU


def cpu_session(make: Callable[..., Any], source: bytes | Path, options: Any) -> Any:
    """The session that ``make`` makes. It reads files by itself, so what the path leads to is looked at before."""
    if isinstance(source, Path):
        with open_file(source, most=MAX_FILE_BYTES, what="an ONNX model", error=BadModel):
            pass
    try:
        return make(source if isinstance(source, bytes) else str(source), options, providers=[CPU])
    except Exception as error:  # it has no class for all of its own
        raise BadModel(f"ONNX Runtime cannot take the model: {error}") from error
