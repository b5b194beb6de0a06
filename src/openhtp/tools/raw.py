"""Raw files: the elements of a tensor one after the other, little endian, as 32-bit floats or in its own type."""

from __future__ import annotations

import enum
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec, batched
from openhtp.core.units import GIB

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
_MOST_BYTES = 2 * GIB


class RawForm(enum.Enum):
    """How the elements of files are written."""

    FLOAT = "float"
    NATIVE = "native"

    def itemsize(self, spec: TensorSpec) -> int:
        """Bytes of one element."""
        return 4 if self is RawForm.FLOAT else spec.dtype.itemsize

    @property
    def option(self) -> str:
        """The advice that makes a tool read files in the other form."""
        return "leave out --use_native_input_files" if self is RawForm.NATIVE else "give --use_native_input_files"


@dataclass(frozen=True, slots=True)
class RawPiece:
    """The content of a file: some parts of an execution's batch, in the tensor's stored type."""

    array: Array
    parts: int


def read_piece(path: Path, where: str, spec: TensorSpec, form: RawForm, batch: int) -> RawPiece:
    """A file for an input of an execution that is ``batch`` times the graph's.

    It holds the whole batch, or one element of it: then several lines make up an execution.
    """
    data = read_file(path, most=_MOST_BYTES, what=f"the raw data of input {spec.name!r}", error=InvalidArgument)
    whole = spec.elements * batch
    parts = spec.shape[0] * batch if spec.shape else 1
    size = form.itemsize(spec)
    if len(data) == whole * size:
        count, elements = parts, whole
    elif parts > 1 and len(data) == whole // parts * size:
        count, elements = 1, whole // parts
    else:
        raise InvalidArgument(_wrong_size(path, where, spec, form, batch, len(data)))
    shape = batched(spec.shape, batch) if count == parts else (1, *spec.shape[1:])
    if form is RawForm.NATIVE:
        stored = np.frombuffer(data, spec.dtype.numpy.newbyteorder("<"), elements).astype(spec.dtype.numpy)
    else:
        floats = np.frombuffer(data, "<f4", elements)
        _suspect(path, where, spec, floats)
        stored = to_stored(spec, floats.reshape(shape))
    return RawPiece(stored.reshape(shape), count)


def _wrong_size(path: Path, where: str, spec: TensorSpec, form: RawForm, batch: int, nbytes: int) -> str:
    other = RawForm.FLOAT if form is RawForm.NATIVE else RawForm.NATIVE
    whole = spec.elements * batch
    text = (
        f"{where}: {str(path)!r} has {nbytes} bytes; input {spec} takes {whole * form.itemsize(spec)}"
        f" ({'float32' if form is RawForm.FLOAT else spec.dtype.short}{'' if batch == 1 else f', {batch} times'})"
    )
    if nbytes == whole * other.itemsize(spec):
        kind = "its own type" if other is RawForm.NATIVE else "float32"
        text += f". It fits as {kind}: {form.option}"
    return text


def _suspect(path: Path, where: str, spec: TensorSpec, floats: Array) -> None:
    """Warn about 4-byte integers that are read as floats: such floats are next to nothing, and never whole."""
    if spec.dtype.is_float or spec.dtype.is_fixed_point or not floats.size:
        return
    if not np.array_equal(floats, np.rint(floats)):
        log.warning(
            "%s: %r is read as float32 for input %s, and its numbers are not whole; if it holds %s, give"
            " --use_native_input_files",
            where,
            str(path),
            spec,
            spec.dtype.short,
        )


def to_stored(spec: TensorSpec, floats: Array) -> Array:
    """Real numbers in a tensor's own type: quantized by its encoding, or rounded to whole numbers."""
    kind = spec.dtype
    if kind.is_float:
        with np.errstate(over="ignore"):
            return floats.astype(kind.numpy)
    numbers = np.nan_to_num(floats.astype(np.float64))
    if kind.numpy.kind == "b":
        return np.not_equal(numbers, 0)
    low, high = kind.integer_range
    if spec.quant is not None:
        return spec.quant.quantize(numbers, low, high).astype(kind.numpy)
    whole = np.rint(numbers)
    # The largest 64-bit integers are no floats, so what lies beyond is put in as an integer.
    above, below = whole >= high, whole <= low
    stored = np.where(above | below, 0.0, whole).astype(kind.numpy)
    stored[above], stored[below] = high, low
    return stored


def to_floats(spec: TensorSpec, stored: Array) -> Array:
    """The values of stored elements, as 32-bit floats."""
    if spec.quant is not None and spec.dtype.is_fixed_point:
        return spec.quant.dequantize(stored).astype(np.float32)
    return stored.astype(np.float32)


def raw_bytes(array: Array) -> bytes:
    """An array as a raw file holds it."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


# The output folder: ``Result_<n>/<tensor>.raw`` for each inference, and a description of the run.


METADATA = "execution_metadata.yaml"
_MOST_NAME = 200
_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f]")


class OutputTypes(enum.Enum):
    """In which types outputs are written."""

    FLOAT_ONLY = "float_only"
    NATIVE_ONLY = "native_only"
    FLOAT_AND_NATIVE = "float_and_native"

    @property
    def floats(self) -> bool:
        """Whether as 32-bit floats, into ``<tensor>.raw``."""
        return self is not OutputTypes.NATIVE_ONLY

    @property
    def native(self) -> bool:
        """Whether in the tensors' own types, into ``<tensor>_native.raw``."""
        return self is not OutputTypes.FLOAT_ONLY


def file_stems(names: Sequence[str]) -> dict[str, str]:
    """The stem of each tensor's files: its name without characters that file names cannot have, made unique."""
    stems: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        stem = _NOT_IN_NAMES.sub("_", name)[:_MOST_NAME] or "_"
        stem = f"_{stem}" if stem.startswith(".") else stem
        free, number = stem, 1
        while {free, free.removesuffix("_native"), f"{free}_native"} & used:
            free, number = f"{stem}_{number}", number + 1
        used.add(free)
        stems[name] = free
    return stems


class OutputWriter:
    """Writes the outputs of one graph, inference by inference."""

    def __init__(self, folder: Path, specs: Iterable[TensorSpec], form: OutputTypes, keep: int | None) -> None:
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
    """Make a folder, unless it exists."""
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
    description: dict[str, Any] = {
        "tensor_name": _quoted(spec.name),
        "dimensions": list(spec.shape),
        "datatype": spec.dtype.qnn_name,
    }
    if isinstance(spec.quant, ScaleOffset):
        description |= {"scale": repr(float(spec.quant.scale)), "offset": spec.quant.offset}
    lines = [f"{key}: {value}" for key, value in description.items()]
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _quoted(text: str) -> str:
    """Any text as a YAML string."""
    return json.dumps(text)
