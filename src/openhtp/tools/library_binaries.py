"""Context binaries that a library saved in its own format: run by that library, one execution at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.core.errors import BadBinary, QnnError
from openhtp.core.files import read_file
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import GIB
from openhtp.hw.catalog import find_soc
from openhtp.tools.models import Where
from openhtp.tools.raw import Array
from openhtp.tools.stages import Stage, during
from openhtp.vendor.worker import GraphRef, VendorProcess

_MOST_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output."""

    name: str
    spec: TensorSpec


class LibraryGraph:
    """A graph in the library's process, as far as a tool needs it."""

    def __init__(self, process: VendorProcess, graph: GraphRef) -> None:
        self.name = graph.name
        self.inputs = [Port(spec.name, spec) for spec in graph.inputs]
        self.outputs = [Port(spec.name, spec) for spec in graph.outputs]
        self._process, self._graph = process, graph

    def execute(self, inputs: Mapping[str, Array], outputs: object = None, **_: Any) -> dict[str, Array]:
        """Run once and wait."""
        return self._process.execute(self._graph, inputs)


@contextmanager
def opened_binaries(where: Where, binaries: Sequence[Path]) -> Iterator[list[LibraryGraph]]:
    """The graphs of binaries, in a process with the library of ``where``."""
    with during(Stage.DEVICE):
        soc = where.device_options().get("soc")
        process = VendorProcess(where.library, soc=None if soc is None else find_soc(soc).soc_model)
    with process:
        graphs: list[LibraryGraph] = []
        for binary in binaries:
            with during(Stage.CREATE):
                blob = read_file(binary, most=_MOST_BYTES, what="a context binary", error=BadBinary)
                try:
                    context = process.from_binary(blob)
                except QnnError as error:
                    error.message = f"{str(binary)!r}: {error.message}"
                    raise
            graphs += [LibraryGraph(process, graph) for graph in context.graphs.values()]
        yield graphs
