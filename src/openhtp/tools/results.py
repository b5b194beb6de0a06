"""The output folder: ``Result_<n>/<tensor>.raw`` for each inference, and a description of the run."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.tools.raw import Array, raw_bytes, to_floats

METADATA = "execution_metadata.yaml"
_MOST_NAME = 200
_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f]")


class Written(enum.Enum):
    """In which types outputs are written."""

    FLOAT_ONLY = "float_only"
    NATIVE_ONLY = "native_only"
    FLOAT_AND_NATIVE = "float_and_native"

    @property
    def floats(self) -> bool:
        """Whether as 32-bit floats, into ``<tensor>.raw``."""
        return self is not Written.NATIVE_ONLY

    @property
    def native(self) -> bool:
        """Whether in the tensors' own types, into ``<tensor>_native.raw``."""
        return self is not Written.FLOAT_ONLY


def file_stems(names: Sequence[str]) -> dict[str, str]:
    """For each tensor the stem of its files: its name, without what no file can be called; each only once."""
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = _NOT_IN_NAMES.sub("_", name)[:_MOST_NAME] or "_"
        stem = f"_{stem}" if stem.startswith(".") else stem
        free, number = stem, 1
        while {free, free.removesuffix("_native"), f"{free}_native"} & taken:
            free, number = f"{stem}_{number}", number + 1
        taken.add(free)
        stems[name] = free
    return stems


class Results:
    """Writes the outputs of one graph, inference by inference."""

    def __init__(self, folder: Path, specs: Iterable[TensorSpec], form: Written, keep: int | None) -> None:
        self.folder = folder
        self.written = 0
        self._specs = {spec.name: spec for spec in specs}
        self._stems = file_stems(list(self._specs))
        self._form = form
        self._keep = keep

    def add(self, number: int, outputs: Mapping[str, Array]) -> None:
        """Write the outputs of an inference, unless enough are kept."""
        if self._keep is not None and self.written >= self._keep:
            return
        folder = make_folder(self.folder / f"Result_{number}")
        for name, spec in self._specs.items():
            stored, stem = outputs[name], self._stems[name]
            if self._form.floats:
                (folder / f"{stem}.raw").write_bytes(raw_bytes(to_floats(spec, stored)))
            if self._form.native:
                (folder / f"{stem}_native.raw").write_bytes(raw_bytes(stored))
        self.written += 1


def make_folder(path: Path) -> Path:
    """A folder that is there from now on."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"the folder {str(path)!r} cannot be made: {error.strerror}") from error
    return path


def metadata_yaml(graphs: Iterable[tuple[str, Sequence[TensorSpec], Sequence[TensorSpec], int]]) -> str:
    """The description of a run: of each graph its inputs, outputs and how many inferences were completed."""
    lines = ["graphs:"]
    for name, inputs, outputs, completed in graphs:
        lines += [f"  - graph_name: {_quoted(name)}", f"    inferences_completed: {completed}"]
        for title, specs in (("input_tensors", inputs), ("output_tensors", outputs)):
            lines.append(f"    {title}:")
            for spec in specs:
                lines += [f"      {line}" for line in _described(spec)]
    return "\n".join(lines) + "\n"


def _described(spec: TensorSpec) -> list[str]:
    found: dict[str, Any] = {
        "tensor_name": _quoted(spec.name),
        "dimensions": list(spec.shape),
        "datatype": spec.dtype.qnn_name,
    }
    if isinstance(spec.quant, ScaleOffset):
        found |= {"scale": repr(float(spec.quant.scale)), "offset": spec.quant.offset}
    lines = [f"{key}: {value}" for key, value in found.items()]
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _quoted(text: str) -> str:
    """Text as YAML holds it, whatever is in it."""
    return json.dumps(text)
