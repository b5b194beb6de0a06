"""``IOBinding``: inputs and outputs of a session's runs, named once, on memory that stays.

Values that were made for it, and outputs that it makes room for, lie in memory registered with the session's
context: the device reads and writes them where they are. Arrays of the caller's own are copied once per run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.session.values import CPU, OrtValue, array_at, check_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openhtp.frontend.model import ValueType
    from openhtp.session.inference import InferenceSession
    from openhtp.session.loading import Loaded

Array = npt.NDArray[Any]


class IOBinding:
    """Made by ``InferenceSession.io_binding``, run by ``run_with_iobinding``."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, OrtValue] = {}
        # None: room is made when the shape is known.
        self._outputs: dict[str, OrtValue | None] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: npt.ArrayLike) -> None:
        """Read an input from an array, as it is when a run begins."""
        self._bind_input(name, OrtValue(np.asarray(arr_on_cpu)))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Read an input from an address, as it is when a run begins. The memory must stay."""
        check_device(device_type, device_id)
        self._bind_input(name, OrtValue(array_at(buffer_ptr, shape, element_type, name)))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a value."""
        self._bind_input(name, _checked_value(name, ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = CPU,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Write an output to an address or, if none is given, to memory that the session makes for it."""
        check_device(device_type, device_id)
        if buffer_ptr is None:
            self._bind_output(name, None)
            return
        if element_type is None or shape is None:
            raise InvalidArgument(f"output {name!r} has a buffer_ptr; give its element_type and shape as well")
        self._bind_output(name, OrtValue(array_at(buffer_ptr, shape, element_type, name)))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output to a value."""
        self._bind_output(name, _checked_value(name, ortvalue))

    def synchronize_inputs(self) -> None:
        """Nothing is to be waited for: what was written is seen by the next run."""

    def synchronize_outputs(self) -> None:
        """Nothing is to be waited for: a run has returned when its outputs are there."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        missing = [name for name, value in self._outputs.items() if value is None]
        if missing:
            raise WrongState(f"outputs {missing} are not there yet; run_with_iobinding makes them")
        return [value for value in self._outputs.values() if value is not None]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Copies of the outputs of the last run."""
        return [value._array.copy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs.clear()

    def __repr__(self) -> str:
        return f"<IOBinding of inputs {list(self._inputs)} and outputs {list(self._outputs)}>"

    def _bind_input(self, name: str, value: OrtValue) -> None:
        _check_name(name, "input", [item.name for item in self._session.get_inputs()])
        self._session._make_reachable(value)
        self._inputs[name] = value

    def _bind_output(self, name: str, value: OrtValue | None) -> None:
        _check_name(name, "output", [item.name for item in self._session.get_outputs()])
        if value is not None:
            if not value._array.flags.writeable:
                raise InvalidArgument(f"output {name!r} is bound to an array that cannot be written")
            self._session._make_reachable(value)
        self._outputs[name] = value

    # What the session that runs it does

    def _feeds(self) -> dict[str, Array]:
        return {name: value._array for name, value in self._inputs.items()}

    def _make_room(self, loaded: Loaded) -> None:
        """Have a value for every output, in memory that the device writes."""
        for name, value in self._outputs.items():
            if value is None:
                kind = loaded.outputs[name]
                made = OrtValue(np.empty(kind.shape, kind.dtype), movable=True)
                self._session._make_reachable(made)
                self._outputs[name] = made

    def _in_place(self, loaded: Loaded) -> dict[str, Array]:
        """Where the graph itself may write outputs: those that are stored as the model declares them."""
        found = {}
        for name, value in self._outputs.items():
            assert value is not None
            array, kind, (dtype, shape) = value._array, loaded.outputs[name], loaded.stored[name]
            _check_fits(name, array, kind)
            if array.dtype == dtype and array.flags.c_contiguous:
                found[name] = array if array.shape == shape else array.reshape(shape)
        return found

    def _store(self, results: dict[str, Array]) -> None:
        """Take results that were not written in place."""
        for name, result in results.items():
            value = self._outputs[name]
            if value is None:
                self._outputs[name] = OrtValue(result)
                continue
            target = value._array
            _check_fits(name, target, result)
            np.copyto(target, result)


def _check_fits(name: str, bound: Array, given: Array | ValueType) -> None:
    if bound.shape != given.shape or bound.dtype != given.dtype:
        raise InvalidArgument(
            f"output {name!r} is bound to {bound.dtype}{list(bound.shape)}; the model gives"
            f" {given.dtype}{list(given.shape)}"
        )


def _check_name(name: object, kind: str, known: list[str]) -> None:
    if not isinstance(name, str) or name not in known:
        raise InvalidArgument(f"no {kind} is called {shown(name)}; the model has {', '.join(known)}")


def _checked_value(name: str, value: object) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise InvalidArgument(f"the value for {name!r} is a {type(value).__name__}; expected openhtp.ort.OrtValue")
    return value
