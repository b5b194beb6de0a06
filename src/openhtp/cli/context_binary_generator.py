"""``openhtp context-binary-generator``: models as one context binary, with the vendor's options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from openhtp.cli import _tool_options as opt
from openhtp.cli._inputs import Dim, Freeze, parse_dims, parse_freeze
from openhtp.cli._terminal import JsonFile, TextTable, complain, confirm_written, show, write_json
from openhtp.cli._tool_options import option
from openhtp.config import read_config
from openhtp.core.errors import InvalidArgument
from openhtp.core.units import bytes_in_words
from openhtp.runtime.objects.op_packages import registered
from openhtp.tools.generating import GeneratedFiles, GenerationOrder, generate
from openhtp.tools.models import GraphChanges, ToolTarget, library_of, unused_keys
from openhtp.tools.profiling import profiling_of

BinaryFile = Annotated[str, option("binary_file", "Stem of the file: .bin is appended, always.")]
EnableGraphs = Annotated[str | None, option("enable_graphs", "Only these graphs, with commas.")]
Intermediate = Annotated[bool, option("enable_intermediate_outputs", "All tensors become outputs.")]
MemType = Annotated[str, option("input_output_tensor_mem_type", "raw or memhandle; either can be used with both.")]
Socs = Annotated[str | None, option("htp_socs", "Chips, with commas: a file for each, <stem>.<SOC>.bin.")]
Vtcm = Annotated[int | None, option("vtcm_override", "MB of VTCM of all graphs; 0: all that there is.", min=0)]
Hvx = Annotated[int | None, option("hvx_threads_override", "HVX threads of all graphs.", min=1)]
Sharing = Annotated[
    bool | None,
    typer.Option(
        "--weight_sharing/--no_weight_sharing", help="Weights that graphs have in common are there once."
    ),
]
SharingOverride = Annotated[
    str | None, option("reference_weight_sharing_enabled_override", "The same: true or false.")
]
OpMapping = Annotated[bool, option("save_backend_op_mapping", "Write <graph>_bottom_mapping.json, for Netron.")]


def context_binary_generator(
    ctx: typer.Context,
    model: opt.Models,
    binary_file: BinaryFile,
    backend: opt.BackendPath = None,
    output_dir: opt.OutputDir = Path("output"),
    config_file: opt.ToolConfig = None,
    data_format_config: opt.DataFormats = None,
    dim: Dim = None,
    freeze: Freeze = None,
    enable_graphs: EnableGraphs = None,
    set_output_tensors: opt.SetOutputs = None,
    enable_intermediate_outputs: Intermediate = False,
    input_output_tensor_mem_type: MemType = "raw",
    htp_socs: Socs = None,
    vtcm_override: Vtcm = None,
    hvx_threads_override: Hvx = None,
    weight_sharing: Sharing = None,
    reference_weight_sharing_enabled_override: SharingOverride = None,
    save_backend_op_mapping: OpMapping = False,
    profiling_level: opt.ProfilingLevel = None,
    profiling_option: opt.ProfilingOption = None,
    soc: opt.Soc = None,
    platform_options: opt.PlatformOptions = None,
    adapter_weight_config: opt.AdapterConfig = None,
    dlc_path: opt.DlcPath = None,
    op_packages: opt.OpPackages = None,
    model_prefix: opt.ModelPrefix = None,
    log_level: opt.LogLevel = None,
    version: opt.Version = False,
    json_file: JsonFile = None,
) -> None:
    """Save models as a context binary. With --backend, the library at that path saves it in its own format."""
    with opt.tool_errors(), opt.logged(log_level):
        order = _order_of(ctx.params)
        with registered(order.where.op_packages), opt.progress() as tell:
            outcome = generate(order, tell)
        _report(outcome, order)
        write_json(json_file, _as_json(outcome))


def _order_of(params: dict[str, Any]) -> GenerationOrder:
    opt.refuse_foreign(params)
    if params["set_output_tensors"] and params["enable_intermediate_outputs"]:
        raise InvalidArgument("--set_output_tensors and --enable_intermediate_outputs exclude each other")
    if params["input_output_tensor_mem_type"] not in ("raw", "memhandle"):
        raise InvalidArgument(
            f"--input_output_tensor_mem_type {params['input_output_tensor_mem_type']!r}; expected raw or memhandle"
        )
    config = None if params["config_file"] is None else read_config(params["config_file"])
    level = params["profiling_level"]
    if level == "client":
        raise InvalidArgument("--profiling_level client is for net-run; expected basic, detailed or backend")
    return GenerationOrder(
        where=ToolTarget(
            library=library_of(params["backend"]),
            soc=params["soc"],
            config=config,
            op_packages=opt.packages_of(params["op_packages"]),
        ),
        models=opt.split_models(params["model"], "--model"),
        binary_file=params["binary_file"],
        output_dir=params["output_dir"],
        changes=GraphChanges(
            dims=parse_dims(params["dim"]),
            freeze=parse_freeze(params["freeze"]),
            all_outputs=params["enable_intermediate_outputs"],
            outputs=opt.by_graph(params["set_output_tensors"], "--set_output_tensors"),
            formats=opt.formats_of(params["data_format_config"]),
            graph_options=_graph_options(params),
            context_options=_context_options(params),
        ),
        only=opt.split_models(params["enable_graphs"], "--enable_graphs"),
        socs=opt.split_models(params["htp_socs"], "--htp_socs"),
        profiling=profiling_of(level, params["profiling_option"], config),
        op_mapping=params["save_backend_op_mapping"],
    )


def _graph_options(params: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if params["vtcm_override"] is not None:
        options["vtcm_mb"] = params["vtcm_override"] or "max"
    if params["hvx_threads_override"] is not None:
        options["hvx_threads"] = params["hvx_threads_override"]
    return options


def _context_options(params: dict[str, Any]) -> dict[str, Any]:
    word = params["reference_weight_sharing_enabled_override"]
    if word not in (None, "true", "false"):
        raise InvalidArgument(f"--reference_weight_sharing_enabled_override {word!r}; expected true or false")
    chosen = params["weight_sharing"] if word is None else word == "true"
    return {} if chosen is None else {"weight_sharing_enabled": chosen}


def _report(outcome: GeneratedFiles, order: GenerationOrder) -> None:
    names = [name for saved in outcome.binaries[:1] for name in saved.graphs]
    for note in unused_keys(order.where.config, names, stored=False):
        complain(f"note: {note}", "yellow")
    sheet = TextTable("", ("binary", "SoC", "size", "graphs"), ("SoC", "graphs"))
    for saved in outcome.binaries:
        sheet.add(saved.path.name, saved.soc, bytes_in_words(saved.nbytes), ", ".join(saved.graphs))
    show(sheet)
    for path in (*(saved.path for saved in outcome.binaries), *outcome.beside):
        confirm_written(path)


def _as_json(outcome: GeneratedFiles) -> dict[str, Any]:
    return {
        "binaries": [
            {"path": str(saved.path), "soc": saved.soc, "bytes": saved.nbytes, "graphs": list(saved.graphs)}
            for saved in outcome.binaries
        ],
        "beside": [str(path) for path in outcome.beside],
    }


app = opt.plain_app(context_binary_generator)
