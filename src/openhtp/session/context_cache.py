"""The context cache: a session writes its compiled graph to a file, a later one starts from it.

Session options, named as in ONNX Runtime: ``ep.context_enable`` writes the file when the session is created,
``ep.context_file_path`` names it (default: the model's name with ``_ctx.onnx``), ``ep.context_embed_mode`` "0"
puts the binary into a file of its own beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.core.units import GIB
from openhtp.core.writing import write_file
from openhtp.frontend.context_model import ContextModel
from openhtp.frontend.external_data import read_external

# No session could hold more.
_MOST_BINARY_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """Where to write, and whether the binary goes inside."""

    path: Path
    embed: bool


def read_request(entries: Mapping[str, str], model_path: Path | None) -> CacheRequest | None:
    """What the session options ask for."""
    if entries.get("ep.context_enable", "0") != "1":
        return None
    name = entries.get("ep.context_file_path", "")
    if not name and model_path is None:
        raise InvalidArgument("a model given as bytes has no name; set ep.context_file_path")
    path = Path(name) if name else model_path.with_name(f"{model_path.stem}_ctx.onnx")  # type: ignore[union-attr]
    if path.exists():
        raise InvalidArgument(f"{str(path)!r} exists already; remove it, or set ep.context_file_path")
    return CacheRequest(path, entries.get("ep.context_embed_mode", "1") != "0")


def write_cache(request: CacheRequest, binary: bytes, make_model: Callable[[bytes | str], bytes]) -> None:
    """Write the ONNX file that is made for the binary, and the binary beside it unless it is embedded."""
    content: bytes | str = binary
    if not request.embed:
        digest = hashlib.sha256(binary).hexdigest()[:16]
        content = f"{request.path.name}_QNNExecutionProvider_QNN_{digest}_1_0.bin"
        write_file(request.path.with_name(content), binary)
    write_file(request.path, make_model(content))


def context_bytes(model: ContextModel, folder: Path | None) -> bytes:
    """The binary that a context model holds or refers to."""
    if model.data is not None:
        return model.data
    if not model.file:
        raise BadModel("the context model names no file with the binary")
    return read_external({"location": model.file}, folder, model.graph, most=_MOST_BINARY_BYTES)
