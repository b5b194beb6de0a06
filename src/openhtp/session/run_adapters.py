"""Adapters that a run names: ``qnn.lora_config``, by ONNX Runtime's name.

The entry is the path of a text file. Each line has the name of a graph and the path of a binary section, with a
semicolon between them. An adapter stays until a later run names another, as in the QNN provider.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openhtp.core.errors import BadBinary, InvalidArgument, UnsupportedFeature
from openhtp.core.files import read_file
from openhtp.core.units import GIB, KIB
from openhtp.session.options import run_entry
from openhtp.session.session_options import RunOptions

if TYPE_CHECKING:
    from openhtp.runtime.objects.graph import Graph

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
