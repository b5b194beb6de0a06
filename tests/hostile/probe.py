"""A small graph whose results are known: what everybody else must be able to do while somebody misbehaves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import openhtp as htp
from tests.conftest import relu_graph
from tests.hostile.tally import Watch

SHAPE = (1, 8)


def sample(number: int) -> npt.NDArray[np.float32]:
    """An input that half precision holds exactly, another one for each of 1000 numbers."""
    return (np.arange(8, dtype=np.float32) - 3 + number % 1000).reshape(SHAPE) * np.float32(-1) ** (number % 2)


def is_right(number: int, outputs: dict[str, npt.NDArray[np.float32]]) -> bool:
    """Whether these are the outputs for that input."""
    return np.array_equal(outputs["y"], np.maximum(sample(number), 0))


class Neighbour:
    """A well-behaved client with a context of its own."""

    def __init__(self, device: htp.Device) -> None:
        self.context = device.create_context(queue_depth=20)
        self.graph = relu_graph(self.context, "neighbour", SHAPE)
        self._number = 0

    def check(self, watch: Watch) -> None:
        """One execution, which must succeed and be right."""
        self._number += 1
        with watch.call(f"neighbour.execute({self._number})"):
            try:
                outputs = self.graph.execute({"x": sample(self._number)})
            except htp.QnnError as error:
                watch.found("wrong", f"a neighbour was refused: {type(error).__name__}: {error}")
                return
            if not is_right(self._number, outputs):
                watch.found("wrong", f"a neighbour got {outputs['y']} for {sample(self._number)}")


def check_on_clean_context(device: htp.Device, watch: Watch) -> None:
    """Build, run and free a graph on a device that has seen bad days."""
    try:
        neighbour = Neighbour(device)
    except htp.QnnError as error:
        watch.found("wrong", f"no clean context on {device!r}: {type(error).__name__}: {error}")
        return
    neighbour.check(watch)
    neighbour.context.free()
