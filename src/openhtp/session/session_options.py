"""``SessionOptions`` and ``RunOptions`` with what ONNX Runtime does not report, and the adapters of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openhtp.core.checks import items_of, shown
from openhtp.core.errors import BadBinary, InvalidArgument, UnsupportedFeature
from openhtp.core.files import read_file
from openhtp.core.units import GIB, KIB
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.session.executable import Array
from openhtp.session.options import run_entry
from openhtp.session.ort_errors import WrongKind, with_ort_errors
from openhtp.session.values import OrtValue, array_of

if TYPE_CHECKING:
    from openhtp.runtime.objects.graph import Graph

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class UserConstants:
    """Constants that take the place of those in a model: tensors by name, and files of external data by name."""

    tensors: dict[str, Array] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.files)


class SessionOptions(onnxruntime.SessionOptions):  # type: ignore[misc]
    """ONNX Runtime's session options. Constants that are given to it are used on the HTP, too."""

    def __init__(self) -> None:
        super().__init__()
        self.constants = UserConstants()
        # Sessions of ONNX Runtime read these where they lie.
        self._values: list[Any] = []

    @with_ort_errors
    def add_initializer(self, name: str, ort_value: OrtValue) -> None:
        """Use a value in place of the model's constant of that name. The memory of the value must stay."""
        if not isinstance(name, str) or not isinstance(ort_value, OrtValue):
            raise WrongKind(f"initializer {shown(name)} is {shown(ort_value)}; expected a name and an OrtValue")
        theirs = ort_value.in_ort()
        super().add_initializer(name, theirs)
        self._values.append(theirs)
        self.constants.tensors[name] = array_of(ort_value)

    @with_ort_errors
    def add_external_initializers(
        self, initializer_names: Sequence[str], initializer_values: Sequence[Any]
    ) -> None:
        """Add constants whose data lies outside the model's file."""
        names, values = _pair("initializer_names", initializer_names, "initializer_values", initializer_values)
        wrong = [value for value in values if not isinstance(value, OrtValue)]
        if wrong:
            raise WrongKind(f"an initializer is {shown(wrong[0])}; expected openhtp.ort.OrtValue")
        theirs = [value.in_ort() for value in values]
        super().add_external_initializers(names, theirs)
        self._values += theirs
        self.constants.tensors.update(zip(names, map(array_of, values), strict=True))

    @with_ort_errors
    def add_external_initializers_from_files_in_memory(
        self, file_names: Sequence[str], file_buffers: Sequence[bytes], file_lengths: Sequence[int]
    ) -> None:
        """Use bytes in place of the files that the model's external data lies in."""
        names, buffers = _pair("file_names", file_names, "file_buffers", file_buffers)
        _, lengths = _pair("file_names", file_names, "file_lengths", file_lengths)
        super().add_external_initializers_from_files_in_memory(names, buffers, lengths)
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            self.constants.files[name] = bytes(buffer)[:length]


class RunOptions(onnxruntime.RunOptions):  # type: ignore[misc]
    """ONNX Runtime's run options, which also tell whether they have adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.has_adapters = False

    def add_active_adapter(self, adapter: Any) -> None:
        """Apply an adapter of ONNX Runtime's during a run on its CPU kernels; a run on the HTP refuses it."""
        super().add_active_adapter(adapter)
        self.has_adapters = True


def _pair(first_name: str, first: object, second_name: str, second: object) -> tuple[list[Any], list[Any]]:
    """Two lists of the same length."""
    firsts, seconds = items_of(first, _MOST), items_of(second, _MOST)
    if firsts is None or seconds is None or not all(isinstance(name, str) for name in firsts):
        raise WrongKind(
            f"{first_name} and {second_name} are {shown(first)} and {shown(second)}; expected two lists"
        )
    if len(firsts) != len(seconds):
        raise InvalidArgument(f"{first_name} has {len(firsts)} entries and {second_name} {len(seconds)}")
    return firsts, seconds


def constants_of(sess_options: Any) -> UserConstants:
    """The constants of session options; none of ONNX Runtime's own options, which do not report them."""
    return sess_options.constants if isinstance(sess_options, SessionOptions) else UserConstants()


# Adapters that a run names: ``qnn.lora_config``, by ONNX Runtime's name. The entry is the path of a text file.
# Each line has the name of a graph and the path of a binary section, with a semicolon between them. An adapter
# stays until a later run names another, as in the QNN provider.


LORA_CONFIG = "qnn.lora_config"
_MOST_CONFIG_BYTES = 64 * KIB
_MOST_SECTION_BYTES = 4 * GIB


def apply_adapters(run_options: Any, graphs: Sequence[Graph | None]) -> None:
    """Apply the adapters that run options name to graphs of a session; all are read before any is applied."""
    path = run_entry(run_options, (LORA_CONFIG,))
    if isinstance(run_options, RunOptions) and run_options.has_adapters and any(graphs):
        raise UnsupportedFeature(
            f"run_options have an adapter of ONNX Runtime's; a graph on the HTP takes adapters by {LORA_CONFIG}"
        )
    if path is None:
        return
    by_name = {graph.name: graph for graph in graphs if graph is not None}
    if not by_name:
        raise InvalidArgument(
            f"{LORA_CONFIG} names adapters, but the session has no graph on the HTP that could take them"
        )
    for name, section in _sections(Path(path), list(by_name)):
        by_name[name].context.apply_binary_section(name, section)


def _sections(config: Path, known: Sequence[str]) -> list[tuple[str, bytes]]:
    """Graphs and the sections for them, as the file says."""
    text = read_file(config, most=_MOST_CONFIG_BYTES, what="adapters for graphs", error=InvalidArgument)
    sections = []
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{LORA_CONFIG} {str(config)!r}, line {number}"
        graph, separator, file = (part.strip() for part in line.partition(";"))
        if not graph or not separator or not file:
            raise InvalidArgument(f"{where} is {line!r}; expected <graph>;<file>")
        if graph not in known:
            raise InvalidArgument(f"{where} names graph {graph!r}; the session has {', '.join(map(repr, known))}")
        section = read_file(file, most=_MOST_SECTION_BYTES, what="a binary section", error=BadBinary)
        sections.append((graph, section))
    if not sections:
        raise InvalidArgument(f"{LORA_CONFIG} {str(config)!r} names no adapter; expected lines of <graph>;<file>")
    return sections
