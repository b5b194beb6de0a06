"""``SessionOptions`` and ``RunOptions`` of ONNX Runtime, which also remember what it does not report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.checks import items_of, shown
from openhtp.core.errors import InvalidArgument
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.session.executable import Array
from openhtp.session.ort_errors import WrongKind, with_ort_errors
from openhtp.session.values import OrtValue, array_of

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
        """The same for constants whose data lies outside the model's file."""
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
