"""Models that a tool is given: ONNX files and model libraries composed into one context, or context binaries."""

from __future__ import annotations

import ctypes
import dataclasses
import difflib
import filecmp
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.graph import GraphHeld
from openhtp.capi.identity import backend_path
from openhtp.config import BackendConfig, parse_config
from openhtp.core.errors import BadModel, InvalidArgument, QnnError
from openhtp.core.files import read_file
from openhtp.core.shared_library import check_file, loading_failure
from openhtp.core.tensor import TensorKind
from openhtp.core.value_kinds import GroupRegistration
from openhtp.estimation import ZOO, zoo_model
from openhtp.frontend.data_formats import Formats, with_data_formats
from openhtp.frontend.onnx_import import load
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import ContextOrigin
from openhtp.program.container import MAGIC
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile, ProfileLog
from openhtp.runtime.objects.signal import Signal
from openhtp.tools.stages import ToolStage, during
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load as load_library

_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)
# Names of the emulator itself: scripts give them when the library is found by LD_LIBRARY_PATH.
_OURS = ("libQnnHtp.so", "QnnHtp.dll")
# The table goes by value, and its size differs between versions; three arguments follow it. Models call only early
# entries. So whatever size a model expects, it finds these entries, then zeros: no debugging, no log, level 0.
_ENTRIES, _ROOM = 40, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTarget:
    """The target of a tool: the emulator, or the library at a path; the chip, its options, its votes."""

    library: str | None = None
    soc: str | None = None
    config: BackendConfig | None = None
    perf_profile: str | None = None
    op_packages: tuple[str, ...] = ()

    def device_options(self) -> dict[str, Any]:
        """Options for ``Backend.create_device``: the command's chip wins over the config's."""
        options = {} if self.config is None else self.config.device_options()
        return {**options, "soc": self.soc} if self.soc else options


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChanges:
    """Changes of graphs before they are prepared: more outputs, other layouts, options over the config's.

    ``dims`` and ``freeze`` are for each ONNX file.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    freeze: Mapping[str, float | list[float]] = field(default_factory=dict)
    all_outputs: bool = False
    outputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    formats: Formats | None = None
    graph_options: Mapping[str, Any] = field(default_factory=dict)
    context_options: Mapping[str, Any] = field(default_factory=dict)


def library_of(backend: str | None) -> str | None:
    """The library that ``--backend`` names; None for the emulator, which needs none, and for its own library."""
    if backend is None or (backend in _OURS and not Path(backend).exists()) or _is_ours(Path(backend)):
        return None
    return backend


def _is_ours(path: Path) -> bool:
    """Whether a library is this package's own, or a copy of it."""
    try:
        return filecmp.cmp(path, backend_path(), shallow=False)
    except (OSError, QnnError):  # there is none, or ours was not built
        return False


@contextmanager
def opened_device(where: ToolTarget) -> Iterator[Device]:
    """Make a device with the votes of the config or the command."""
    with ExitStack() as stack:
        with during(ToolStage.DEVICE):
            backend = stack.enter_context(Backend(library=where.library))
            for package in where.op_packages:
                backend.register_op_package(package)
            device = stack.enter_context(backend.create_device(**where.device_options()))
            config = where.config
            if where.perf_profile is not None:
                config = (config or parse_config({})).with_perf_profile(where.perf_profile)
            if config is not None:
                config.vote(device)
        yield device


def is_binary(path: Path) -> bool:
    """Whether a file is a context binary of ours."""
    head = read_file(path, most=len(MAGIC), nbytes=len(MAGIC), what="a model or context binary", error=BadModel)
    return head == MAGIC


def graph_name(model: str) -> str:
    """The graph's name, as converters give it: the file's stem, made an identifier."""
    name = _NOT_IN_NAMES.sub("_", Path(model.removeprefix(ZOO)).stem)
    return f"_{name}" if name[:1].isdigit() or not name else name


def import_models(models: Sequence[str], changes: GraphChanges) -> list[IrGraph]:
    """ONNX files, networks of the zoo, or model libraries, as graphs of distinct names."""
    graphs: list[IrGraph] = []
    for graph in (graph for model in models for graph in _import(model, changes)):
        name = graph.name
        if any(name == other.name for other in graphs):
            raise InvalidArgument(f"two models make a graph {name!r}; rename one of {', '.join(map(str, models))}")
        chosen = with_outputs(graph, changes.outputs.get(name, ()), everything=changes.all_outputs)
        graphs.append(chosen if changes.formats is None else with_data_formats(chosen, changes.formats))
    unknown = [name for name in changes.outputs if name not in {graph.name for graph in graphs}]
    if unknown:
        names = ", ".join(graph.name for graph in graphs)
        raise InvalidArgument(f"--set_output_tensors names graph {unknown[0]!r}; there are {names}")
    return graphs


def _import(model: str, changes: GraphChanges) -> list[IrGraph]:
    """One model: a file, or a network of the zoo. A library's graphs have names of their own."""
    if not model.startswith(ZOO) and _is_model_library(Path(model)):
        return _library_graphs(Path(model))
    source: bytes | Path = zoo_model(model) if model.startswith(ZOO) else Path(model)
    graph = load(source, dims=changes.dims, freeze=changes.freeze)
    return [dataclasses.replace(graph, name=graph_name(model))]


class _Interface(ctypes.Structure):
    _fields_ = (("entries", ctypes.c_void_p * _ENTRIES), ("zeros", ctypes.c_void_p * (_ROOM - _ENTRIES)))


class _ComposedGraph(ctypes.Structure):
    """A model's information about a graph. Inputs and outputs are those of the graph itself."""

    _fields_ = (
        ("handle", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.c_void_p),
        ("input_count", ctypes.c_uint32),
        ("outputs", ctypes.c_void_p),
        ("output_count", ctypes.c_uint32),
    )


def _is_model_library(path: Path) -> bool:
    """Whether a file is named as a compiled library."""
    return path.suffix in (".so", ".dll")


def _library_graphs(path: Path) -> list[IrGraph]:
    """The graphs that a model library composes, under the names that it gives them."""
    model = _loaded(path)
    library = load_library(backend_path())
    backend = LibraryBackend(library)
    try:
        context = LibraryContext.create(backend.create_device())
        listing, count = ctypes.c_void_p(), ctypes.c_uint32()
        with _refusals() as refusals:
            # The tool's own config has the options of graphs, so the model gets none.
            code = model.QnnModel_composeGraphs(
                ctypes.c_void_p(backend.handle),
                _interface(library.provider),
                ctypes.c_void_p(context.handle),
                None,
                ctypes.c_uint32(0),
                ctypes.byref(listing),
                ctypes.byref(count),
                *(None, None, None),
            )
        if code:
            reason = refusals[-1] if refusals else "no call of it was refused"
            raise BadModel(f"{str(path)!r} composed no graphs (code {code}): {reason}")
        composed = (ctypes.POINTER(_ComposedGraph) * count.value).from_address(listing.value or 0)
        return [_graph(each.contents.handle) for each in composed]
    finally:
        backend.free()


@contextmanager
def _refusals() -> Iterator[list[str]]:
    """Lines of the C library's log: a call that it refuses is one, and the model itself only has a code."""
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, keeper = logging.getLogger("openhtp.capi"), Keeper(logging.INFO)
    level = log.level
    log.addHandler(keeper)
    log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        log.setLevel(level)
        log.removeHandler(keeper)


def _loaded(path: Path) -> ctypes.CDLL:
    check_file(path)
    try:
        model = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise loading_failure(path, error) from error
    if not hasattr(model, "QnnModel_composeGraphs"):
        raise BadModel(
            f"{str(path)!r} is no model library: it has no QnnModel_composeGraphs; expected one, or ONNX"
        )
    return model


def _interface(provider: int) -> _Interface:
    table = (ctypes.c_void_p * _ENTRIES).from_address(provider + ctypes.sizeof(struct("Provider")))
    return _Interface(entries=table)


def _graph(handle: int) -> IrGraph:
    draft = handles.find(GraphHeld, handle).graph.draft
    if draft is None:
        raise BadModel("the model library finalized its graph; expected one that is still to be prepared")
    return draft.finish()


def with_outputs(graph: IrGraph, names: Sequence[str], *, everything: bool = False) -> IrGraph:
    """The graph with more of its tensors as outputs."""
    between = [spec.name for spec in graph.tensors.values() if spec.kind is TensorKind.NATIVE]
    chosen = set(between) if everything else set(names)
    for name in chosen - set(between) - set(graph.output_names):
        near = difflib.get_close_matches(name, between, 3) or between[:3]
        raise InvalidArgument(
            f"graph {graph.name!r} has no tensor {name!r} between its nodes; it has {', '.join(near)}"
        )
    tensors = {
        name: dataclasses.replace(spec, kind=TensorKind.APP_READ) if name in chosen else spec
        for name, spec in graph.tensors.items()
    }
    return dataclasses.replace(graph, tensors=tensors)


def composed(
    device: Device,
    graphs: Sequence[IrGraph],
    config: BackendConfig | None,
    changes: GraphChanges,
    *,
    profile: Profile | None = None,
    log: ProfileLog | None = None,
) -> Context:
    """One context with all graphs, finalized. With a profile, the log has an entry for each."""
    with during(ToolStage.CREATE):
        options = {} if config is None else config.context_options(ContextOrigin.COMPOSED)
        context = device.create_context(**{**options, **changes.context_options})
        composed_graphs: list[Graph] = []
        for source in graphs:
            chosen = {} if config is None else config.graph_options(source.name)
            if "vtcm_mb" in changes.graph_options:
                chosen.pop("vtcm_bytes", None)
            composed_graphs.append(context.compose_graph(source, **{**chosen, **changes.graph_options}))
    for graph in composed_graphs:
        with during(ToolStage.FINALIZE):
            graph.finalize(profile=profile)
        if profile is not None and log is not None:
            log.add(profile)
    return context


def restored(
    device: Device,
    binaries: Sequence[Path],
    config: BackendConfig | None,
    *,
    timeout_us: int | None = None,
    profile: Profile | None = None,
    log: ProfileLog | None = None,
) -> list[Context]:
    """The contexts of binaries, in their order. The config may have them share buffers, as a list or a group."""

    def signal() -> Signal | None:
        return None if timeout_us is None else device.backend.create_signal(timeout_us)

    shared = {} if config is None else config.context_options(ContextOrigin.LIST)
    with during(ToolStage.CREATE):
        if shared.get("share_resources"):
            contexts = device.create_contexts_from_binaries(binaries, signal=signal(), **shared).result()
        else:
            contexts = []
            for binary in binaries:
                options = _options_of(config, contexts)
                with named_errors(binary):
                    context = device.create_context_from_binary(
                        binary, signal=signal(), profile=profile, **options
                    )
                contexts.append(context)
                if profile is not None and log is not None:
                    log.add(profile)
        for context in contexts:
            _give_priorities(context, config)
    return contexts


def _options_of(config: BackendConfig | None, before: Sequence[Context]) -> dict[str, Any]:
    if config is None:
        return {}
    options = config.context_options(ContextOrigin.BINARY)
    buffer = config.spill_fill_group_bytes
    if buffer is not None:
        first = before[0] if before else None
        options["register_multi_contexts"] = GroupRegistration(max_spill_fill_buffer=buffer, first=first)
    return options


@contextmanager
def named_errors(binary: Path) -> Iterator[None]:
    """Errors within name the file."""
    try:
        yield
    except QnnError as error:
        error.message = f"{str(binary)!r}: {error.message}"
        raise


def _give_priorities(context: Context, config: BackendConfig | None) -> None:
    """Graphs of a binary are prepared already; their priorities can still be changed."""
    if config is None:
        return
    for graph in executable(context):
        level = config.graph_options(graph.name).get("priority")
        if level is not None:
            graph.set_config(priority=level)


def executable(context: Context) -> list[Graph]:
    """Graphs that can be executed, in their order."""
    return [graph for graph in context.graphs.values() if graph.is_finalized]


def unused_keys(config: BackendConfig | None, names: Sequence[str], *, stored: bool) -> list[str]:
    """Keys of a config without effect, and why: the most frequent mistake with these files."""
    if config is None:
        return []
    if stored:
        unused = "/graphs has no effect: the graphs of a context binary are prepared already"
        return [f"{config.source}: {unused}"] if config.htp.get("graphs") else []
    return [
        f"{config.source}: options for graph {name!r} have no effect; there are {', '.join(names)}"
        for name in config.graph_names
        if name not in names
    ]
