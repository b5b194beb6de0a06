"""``qnn-context-binary-generator``: models are prepared and saved as one context binary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.files import write_file
from openhtp.hw.catalog import find_soc
from openhtp.ir.graph import Graph as IrGraph
from openhtp.report.netron import schematic_to_netron
from openhtp.report.profile_log import schematic_bytes
from openhtp.runtime.instruments.device_queries import library_binary, schematic_on
from openhtp.runtime.objects.context import Context
from openhtp.tools.models import GraphChanges, ToolTarget, composed, import_models, opened_device
from openhtp.tools.profiling import ProfileRecorder, ToolProfiling
from openhtp.tools.raw import file_stems, make_folder
from openhtp.tools.stages import Tell, ToolStage, during


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOrder:
    """An order: the models, the file, and the chips to save for; without chips, that of ``where``."""

    where: ToolTarget
    models: Sequence[str]
    binary_file: str
    output_dir: Path
    changes: GraphChanges = field(default_factory=GraphChanges)
    only: Sequence[str] = ()
    socs: Sequence[str] = ()
    profiling: ToolProfiling = field(default_factory=ToolProfiling)
    op_mapping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A file that was written."""

    path: Path
    soc: str
    nbytes: int
    graphs: tuple[str, ...]


@dataclass(slots=True)
class GeneratedFiles:
    """The files written: binaries, and files beside them."""

    binaries: list[SavedFile] = field(default_factory=list)
    beside: list[Path] = field(default_factory=list)


def generate(order: GenerationOrder, tell: Tell) -> GeneratedFiles:
    """Prepare and save. Each of several chips has a file of its own."""
    tell("Composing graphs", 0, None)
    with during(ToolStage.CREATE):
        graphs = _chosen(import_models(order.models, order.changes), order.only)
    make_folder(order.output_dir)
    outcome = GeneratedFiles()
    for number, soc in enumerate(order.socs or [None]):
        tell("Preparing", number, len(order.socs) or 1)
        where = order.where if soc is None else replace(order.where, soc=soc)
        path = _path(order, soc)
        if where.library is None:
            saved = _prepared(order, where, graphs, path, outcome)
        else:
            saved = _by_library(order, where, graphs, path)
        outcome.binaries.append(saved)
    return outcome


def _chosen(graphs: list[IrGraph], only: Sequence[str]) -> list[IrGraph]:
    names = [graph.name for graph in graphs]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise InvalidArgument(f"--enable_graphs names {unknown[0]!r}; the models make {', '.join(names)}")
    return [graph for graph in graphs if not only or graph.name in only]


def _path(order: GenerationOrder, soc: str | None) -> Path:
    """The file: always the given stem and ``.bin``; an absolute path is not put into the folder."""
    ending = ".bin" if soc is None else f".{find_soc(soc).name}.bin"
    path = order.output_dir / f"{order.binary_file}{ending}"
    if not path.parent.is_dir():
        raise InvalidArgument(f"--binary_file {order.binary_file!r}: there is no folder {str(path.parent)!r}")
    return path


def _prepared(
    order: GenerationOrder, where: ToolTarget, graphs: Sequence[IrGraph], path: Path, outcome: GeneratedFiles
) -> SavedFile:
    recorder = ProfileRecorder(order.profiling, order.output_dir)
    changes = _prepare_only(order.changes)
    with ExitStack() as stack:
        device = stack.enter_context(opened_device(where))
        profile = recorder.profile(device.backend)
        context = composed(device, graphs, where.config, changes, profile=profile, log=recorder.log)
        with during(ToolStage.FINALIZE):
            data = context.get_binary()
        write_file(path, data)
        if order.profiling.level == "optrace" or order.op_mapping:
            outcome.beside += _schematics(order, context)
        log = recorder.close(())
        outcome.beside += [] if log is None else [log]
        return SavedFile(path=path, soc=device.soc, nbytes=len(data), graphs=tuple(context.graphs))


def _schematics(order: GenerationOrder, context: Context) -> list[Path]:
    """Write the chip's kernels: for the trace viewer in the working directory, for Netron in the output folder."""
    written = []
    stems = file_stems(list(context.graphs))
    for graph in context.graphs.values():
        schematic = schematic_on(graph)
        if schematic is None:
            raise UnsupportedFeature(
                f"{context.device.soc} has no half precision, so there is no schematic of graph {graph.name!r};"
                " quantize it (openhtp quantize), or leave out optrace and --save_backend_op_mapping"
            )
        if order.profiling.level == "optrace":
            written.append(Path(f"{stems[graph.name]}_schematic.bin"))
            write_file(written[-1], schematic_bytes(schematic))
        if order.op_mapping:
            written.append(order.output_dir / f"{stems[graph.name]}_bottom_mapping.json")
            write_file(written[-1], f"{json.dumps(schematic_to_netron(schematic), indent=1)}\n".encode())
    return written


def _by_library(order: GenerationOrder, where: ToolTarget, graphs: Sequence[IrGraph], path: Path) -> SavedFile:
    """Saved by the library itself, in its own format."""
    if order.profiling.level is not None or order.op_mapping:
        raise UnsupportedFeature("profiles and op mappings are those of the emulator; leave out --backend")
    context_options = {} if where.config is None else where.config.context_options()
    sharing = {**context_options, **order.changes.context_options}.get("weight_sharing_enabled", False)
    with opened_device(where) as device:
        context = composed(device, graphs, where.config, _prepare_only(order.changes))
        with during(ToolStage.FINALIZE):
            data = library_binary(context, weight_sharing=bool(sharing))
        write_file(path, data)
        return SavedFile(path=path, soc=device.soc, nbytes=len(data), graphs=tuple(context.graphs))


def _prepare_only(changes: GraphChanges) -> GraphChanges:
    """Graphs are saved, and not set up to be executed."""
    return replace(changes, context_options={**changes.context_options, "prepare_only": True})
