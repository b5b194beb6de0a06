"""Context binaries that a library saved in its own format: run by that library, on a device of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from openhtp.core.errors import BadBinary, QnnError
from openhtp.core.files import read_file
from openhtp.core.units import GIB
from openhtp.runtime.instruments.device_queries import open_library_binary
from openhtp.runtime.objects.graph import Graph
from openhtp.tools.models import ToolTarget, opened_device
from openhtp.tools.stages import Stage, during

_MOST_BYTES = 4 * GIB


@contextmanager
def opened_binaries(where: ToolTarget, binaries: Sequence[Path]) -> Iterator[list[Graph]]:
    """The graphs of binaries, on a device with the library of ``where``."""
    with opened_device(where) as device:
        graphs: list[Graph] = []
        for binary in binaries:
            with during(Stage.CREATE):
                blob = read_file(binary, most=_MOST_BYTES, what="a context binary", error=BadBinary)
                try:
                    context = open_library_binary(device, blob)
                except QnnError as error:
                    error.message = f"{str(binary)!r}: {error.message}"
                    raise
            graphs += context.graphs.values()
        yield graphs
