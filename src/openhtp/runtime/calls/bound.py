"""Arguments that were checked and bound once, for executions that use the same arrays again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from openhtp.runtime.calls.arguments import Arguments, Ports

if TYPE_CHECKING:
    from openhtp.runtime.calls.call import Call
    from openhtp.runtime.calls.execution import Execution
    from openhtp.runtime.links.link import Link

Array = npt.NDArray[Any]


class Shortcut(Protocol):
    """A graph on arrays that are used where they lie."""

    @property
    def is_short(self) -> bool:
        """Whether it is computed sooner than it is queued, as far as is known."""

    def run(self) -> bool:
        """Compute on this thread; False if it has to go through the queue."""

    def submit(self, execution: Execution, call: Call, timeout_at: int, profile_level: int) -> None:
        """Queue an execution."""


def shortcut(link: Link, number: int, ports: Ports, arguments: Arguments) -> Shortcut | None:
    """The link's way to compute on just these arrays, if there is one and they allow it.

    All must be given, in the sizes that the graph declares, and no result may lie where something is read. What
    is looked at in every execution, as sparse inputs are, goes the usual way.
    """
    if arguments.dims or arguments.batch != 1 or ports.is_dynamic or arguments.count != len(ports.specs):
        return None
    if ports.sparse:
        return None
    found: dict[int, Array | None] = {**arguments.raw_inputs, **arguments.raw_outputs}
    found |= {port: array for port, (_, _, array) in arguments.registered.items()}
    arrays: dict[str, Array] = {}
    for port, array in found.items():
        if array is None or not array.flags.c_contiguous or not array.flags.aligned:
            return None
        arrays[ports.specs[port].name] = array
    return None if _overlap(ports, arrays) else link.shortcut(number, arrays)


def _overlap(ports: Ports, arrays: Mapping[str, Array]) -> bool:
    """Whether an output shares memory with anything else."""
    names = [spec.name for spec in ports.specs]
    return any(
        np.may_share_memory(arrays[written], arrays[other])
        for place, written in enumerate(names[ports.inputs :], ports.inputs)
        for other in names[:place]
    )
