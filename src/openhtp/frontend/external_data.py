"""Weights that lie in a file beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from openhtp.core.errors import BadModel
from openhtp.core.files import read_file


def read_external(place: Mapping[str, str], folder: Path | None, tensor: str, *, most: int) -> bytes:
    """At most ``most`` bytes of a tensor. Its file must be a plain one inside the model's folder, links or not."""
    location = place.get("location", "")
    if folder is None:
        raise BadModel(f"tensor {tensor!r} is in the file {location!r}; load the model by its path, not its bytes")
    root = folder.resolve()
    try:
        path = (root / location).resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise BadModel(f"tensor {tensor!r} is in {location[:80]!r}, which is no file name: {error}") from error
    if not location or not path.is_relative_to(root) or path == root:
        raise BadModel(
            f"tensor {tensor!r} is in {location!r}, outside the model's folder; external data must lie inside it"
        )
    try:
        offset, length = int(place.get("offset", 0)), int(place.get("length", -1))
    except ValueError:
        raise BadModel(f"tensor {tensor!r} has external data at no number: {dict(place)}") from None
    if not is_file:
        raise BadModel(f"tensor {tensor!r} is in {location!r}, which is not a file")
    held = path.stat().st_size
    if length < 0:
        length = held - offset
    if offset < 0 or length < 0 or offset + length > held:
        raise BadModel(
            f"tensor {tensor!r} takes bytes {offset}..{offset + length} of {location!r}, which has {held}"
        )
    return read_file(path, most=most, what=f"tensor {tensor!r}", error=BadModel, offset=offset, nbytes=length)
