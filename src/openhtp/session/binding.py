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
from openhtp.session.executable import Array, check_fits
from openhtp.session.values import CPU, OrtValue, array_at, array_of, check_device, move_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openhtp.session.executable import Executable
    from openhtp.session.inference import InferenceSession


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
        return [array_of(value).copy() for value in self.get_outputs()]

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
        move_to(value, self._session.executable.value_context)
        self._inputs[name] = value

    def _bind_output(self, name: str, value: OrtValue | None) -> None:
        _check_name(name, "output", [item.name for item in self._session.get_outputs()])
        if value is not None:
            if not array_of(value).flags.writeable:
                raise InvalidArgument(f"output {name!r} is bound to an array that cannot be written")
            move_to(value, self._session.executable.value_context)
        self._outputs[name] = value


# What the session that runs it does


def is_binding_of(binding: object, session: InferenceSession) -> bool:
    """Whether a session made a binding."""
    return isinstance(binding, IOBinding) and binding._session is session


def feeds_of(binding: IOBinding) -> dict[str, Array]:
    """The inputs, as they are now."""
    return {name: array_of(value) for name, value in binding._inputs.items()}


def targets_of(binding: IOBinding, executable: Executable) -> dict[str, Array]:
    """Where outputs go. Those without a value get one, if there is memory for it that the device writes itself."""
    for name, value in binding._outputs.items():
        if value is None:
            binding._outputs[name] = executable.room_for(name)
    return {name: array_of(value) for name, value in binding._outputs.items() if value is not None}


def output_names(binding: IOBinding) -> list[str]:
    """The outputs in the order in which they were bound."""
    return list(binding._outputs)


def take_results(binding: IOBinding, results: Mapping[str, Array]) -> None:
    """Take the results of a run; those that were written in place are there already."""
    for name, result in results.items():
        value = binding._outputs.get(name)
        if value is None:
            binding._outputs[name] = OrtValue(result)
        elif array_of(value) is not result:
            check_fits(name, array_of(value), result)
            np.copyto(array_of(value), result)


def _check_name(name: object, kind: str, known: list[str]) -> None:
    if not isinstance(name, str) or name not in known:
        raise InvalidArgument(f"no {kind} is called {shown(name)}; the model has {', '.join(known)}")


def _checked_value(name: str, value: object) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise InvalidArgument(f"the value for {name!r} is a {type(value).__name__}; expected openhtp.ort.OrtValue")
    return value
