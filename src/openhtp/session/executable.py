"""The interface of a loaded model, wherever it runs, and the words in which a session describes it.

Knows ONNX Runtime's words for a model. Three modules implement ``Executable``: ``on_htp.py``, ``in_parts.py`` and
``on_cpu.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import items_of, shown, type_in_words as shown_type
from openhtp.core.errors import InvalidArgument
from openhtp.frontend.model import ValueType
from openhtp.frontend.onnx_reader import value_type
from openhtp.frontend.partitioning import AssignedNode
from openhtp.session.ort_errors import MissingInput, UnusableInput, WrongKind

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.graph import Graph
    from openhtp.session.hosts import Stay
    from openhtp.session.pending import Carrier, PendingRun
    from openhtp.session.profiling import AnyProfile
    from openhtp.session.values import OrtValue

Array = npt.NDArray[Any]
Results = list[Array]

_WORDS = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class AssignedPart:
    """Nodes that run together: their provider, and the reason why each is on the CPU."""

    provider: str
    nodes: tuple[AssignedNode, ...]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Name, type and shape of an input or output, in ONNX Runtime's words."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """The file's description of itself."""

    graph_name: str
    producer_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(slots=True, kw_only=True)
class RunCall:
    """One run that was asked for, checked."""

    names: Sequence[str]
    feeds: dict[str, Array]
    run_options: Any
    # Arrays of the caller's for some of the outputs.
    targets: Mapping[str, Array]
    # Filled by the run.
    profile: Any = None
    # Called when a queued run is over, before any callback of the user's.
    noted: Callable[[], None] | None = None


class Executable(Protocol):
    """A loaded model. ``str()`` says where it runs. The defaults here are for a model without a device."""

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    metadata: ModelMetadata
    # The graph of each part; None for a part on the CPU.
    graphs: Sequence[Graph | None] = (None,)
    # Whether it computes all floats in half precision, as an HTP does.
    half_precision: bool = False
    # The device that the model is on; None on the CPU.
    stay: Stay | None = None
    is_closed: bool = False

    @property
    @abstractmethod
    def assigned(self) -> list[AssignedPart]:
        """Which nodes run together and where, in running order."""

    @property
    def value_context(self) -> Context | None:
        """The context in whose memory values may lie; None if runs copy them in any case."""
        return None

    def room_for(self, output: str) -> OrtValue | None:
        """A value for an output in that memory; None where there is none."""
        return None

    def new_profile(self, level: str, max_events: int | None = None) -> AnyProfile | None:
        """A profile for one run; None if ONNX Runtime profiles by itself."""
        return None

    @abstractmethod
    def checked(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
    ) -> tuple[Sequence[str], dict[str, Array]]:
        """Check the names of a run's outputs, and give its inputs the form that ``run`` takes."""

    @abstractmethod
    def run(self, call: RunCall) -> Results:
        """Run once and wait; outputs that could be written into their target are that target."""

    def queue(self, call: RunCall, carrier: Carrier) -> PendingRun:
        """Queue a run."""
        return carrier.compute(call, self.run)

    def end_profiling(self) -> str:
        """The file of ONNX Runtime's own profile; empty if there is none."""
        return ""

    def close(self) -> None:
        """Free what the model has on a device, and leave the device."""
        self.is_closed = True
        if self.stay is not None:
            self.stay.end()


def checked_names(output_names: object, known: Sequence[str]) -> list[str]:
    """The names of the outputs of a run: the given ones, or all."""
    if output_names is None:
        return list(known)
    names = items_of(output_names, len(known) + 1)
    if names is None:
        raise WrongKind(f"output_names is {shown(output_names)}; expected a list of names, or None")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise InvalidArgument(f"no output is called {shown(name)}; the model has {', '.join(known)}")
    return names or list(known)


def check_feed(feeds: object, required: Sequence[str]) -> None:
    """Refuse what is no mapping, or lacks a required input."""
    # A dictionary is a mapping: the question takes longer.
    if type(feeds) is not dict and not isinstance(feeds, Mapping):
        raise WrongKind(f"input_feed is {shown_type(feeds)}; expected a mapping of names to arrays")
    missing = [name for name in required if name not in feeds]
    if missing:
        raise MissingInput(f"Required inputs ({missing}) are missing from input feed ({list(feeds)})")


def array_for(name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """A fed value as an array. As in ONNX Runtime, a list gets the type that the model wants."""
    try:
        return np.array(value, dtype) if isinstance(value, list) else np.asarray(value)
    except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise UnusableInput(
            f"input {name!r} cannot be made from {shown_type(value)}: {error}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        ) from error


def dtype_in_words(words: str) -> np.dtype[Any] | None:
    """The numpy type of ``tensor(float)`` and its like; None for anything but tensors of numbers."""
    name = words.removeprefix("tensor(").removesuffix(")")
    name = {numpy: theirs for theirs, numpy in _WORDS.items()}.get(name, name)
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        return None
    return dtype if words.startswith("tensor(") and dtype.kind in "biuf" else None


def check_fits(name: str, target: Array, result: Array | ValueType) -> None:
    """Refuse a target of another type or shape than the output has."""
    if target.shape != result.shape or target.dtype != result.dtype:
        raise InvalidArgument(
            f"output {name!r} is bound to {target.dtype}{list(target.shape)}; the model gives"
            f" {result.dtype}{list(result.shape)}"
        )


def type_in_words(dtype: np.dtype[Any]) -> str:
    """``tensor(float)`` and its like."""
    return f"tensor({_WORDS.get(dtype.name, dtype.name)})"


def node_args(values: Mapping[str, ValueType]) -> list[NodeArg]:
    """Inputs or outputs as ONNX Runtime lists them."""
    return [NodeArg(name, type_in_words(kind.dtype), list(kind.shape)) for name, kind in values.items()]


def described(value: Any) -> NodeArg:
    """An input or output as its file has it; sizes that are left open are names, or None."""
    kind = value.type.tensor_type
    shape = [dim.dim_value if dim.dim_value > 0 else dim.dim_param or None for dim in kind.shape.dim]
    return NodeArg(value.name, type_in_words(value_type(kind.elem_type, value.name)), shape)
