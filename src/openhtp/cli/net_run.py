"""``openhtp net-run``: run models or context binaries on raw files, with the options of ``qnn-net-run``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from openhtp.cli import _tool_options as opt
from openhtp.cli._inputs import Dim, Freeze, parse_dims, parse_freeze
from openhtp.cli._terminal import JsonFile, TextTable, complain, confirm_written, say, show, write_json
from openhtp.cli._tool_options import option
from openhtp.config import BackendConfig, read_config
from openhtp.core.errors import InvalidArgument
from openhtp.runtime.instruments.saving_calls import saved
from openhtp.runtime.objects.op_packages import registered
from openhtp.tools import net_run as tool
from openhtp.tools.input_list import Repetition, split_lists
from openhtp.tools.models import GraphChanges, ToolTarget, is_binary, library_of, unused_keys
from openhtp.tools.net_run import NetRunOrder
from openhtp.tools.profiling import profiling_of
from openhtp.tools.raw import METADATA, OutputTypes

# The options of ``qnn-net-run`` that no other tool has, and the order that all of them make up.

_FORMS = tuple(form.value for form in OutputTypes)


InputLists = Annotated[
    str,
    option("input_list", "Raw files, a line per inference: files, or name:=file. One list per graph; __: none."),
]
Retrieve = Annotated[
    str | None, option("retrieve_context", "Context binary instead of --model; several with commas.")
]
Debug = Annotated[bool, option("debug", "All tensors become outputs. Not with a context binary.")]
NativeIn = Annotated[bool, option("use_native_input_files", "Files are in the tensors' own types, not float32.")]
NativeNames = Annotated[str | None, option("native_input_tensor_names", "Only these: graph0:t0,t1;graph1:t0.")]
NativeOut = Annotated[bool, option("use_native_output_files", "Write the tensors' own types, not float32.")]
InType = Annotated[str, option("input_data_type", "float or native: the older spelling.")]
OutType = Annotated[str | None, option("output_data_type", f"One of {', '.join(_FORMS)}.")]
Delay = Annotated[
    float | None, option("graph_profiling_start_delay", "Seconds before executions are profiled.", min=0.0)
]
Profiled = Annotated[int | None, option("graph_profiling_num_executions", "Executions that are profiled.", min=0)]
SharedBuffer = Annotated[bool, option("shared_buffer", "Inputs and outputs lie in shared memory.")]
HandleType = Annotated[str | None, option("io_tensor_mem_handle_type", "The same: ion or dma_buf.")]
Synchronous = Annotated[bool, option("synchronous", "Wait for each inference instead of queueing them.")]
Asynchronous = Annotated[bool, option("asynchronous", "Queue inferences (the default).")]
Inferences = Annotated[int | None, option("num_inferences", "Go over the list until so many are done.", min=1)]
Duration = Annotated[float | None, option("duration", "Go over the list for so many seconds.", min=0.0)]
Keep = Annotated[int | None, option("keep_num_outputs", "Write so many results.", min=0)]
Batch = Annotated[int, option("batch_multiplier", "Times the graph's own batch, in each execution.", min=1)]
Timeout = Annotated[int | None, option("timeout", "Most microseconds of an inference.", min=1)]
RetrieveTimeout = Annotated[
    int | None, option("retrieve_context_timeout", "Most microseconds that a binary may take to load.", min=1)
]
CacheSets = Annotated[
    int | None, option("max_input_cache_tensor_sets", "Sets of inputs that stay in memory; -1: all.", min=-1)
]
CacheSize = Annotated[int | None, option("max_input_cache_size_mb", "MB of them; 512 unless given.", min=0)]
Mmap = Annotated[bool, option("use_mmap", "Read only the needed parts of a binary (the default).")]
Validate = Annotated[bool, option("validate_binary", "Look at every byte of a binary first.")]
Updates = Annotated[
    str | None, option("binary_updates", "Sections of a binary to apply first: graph:=file, or file,file.")
]
Direct = Annotated[bool, option("direct_mode", "Refused: there is no LPAI.")]

Given = Mapping[str, Any]


def order_of(params: Given) -> NetRunOrder:
    """The order that the options make up; options that exclude each other are refused."""
    _check_exclusions(params)
    opt.refuse_foreign(params)
    config = None if params["config_file"] is None else read_config(params["config_file"])
    models, binaries = _sources(params)
    return NetRunOrder(
        where=ToolTarget(
            library=library_of(params["backend"]),
            soc=params["soc"],
            config=config,
            perf_profile=opt.check_perf_profile(params["perf_profile"]),
            op_packages=opt.packages_of(params["op_packages"]),
        ),
        models=models,
        binaries=binaries,
        lists=split_lists(params["input_list"]),
        output_dir=params["output_dir"],
        changes=GraphChanges(
            dims=parse_dims(params["dim"]),
            freeze=parse_freeze(params["freeze"]),
            all_outputs=params["debug"],
            outputs=opt.by_graph(params["set_output_tensors"], "--set_output_tensors"),
            formats=opt.formats_of(params["data_format_config"]),
        ),
        native_inputs=params["use_native_input_files"] or _native_input(params["input_data_type"]),
        native_names=opt.by_graph(params["native_input_tensor_names"], "--native_input_tensor_names"),
        written=_written(params),
        profiling=profiling_of(
            params["profiling_level"],
            params["profiling_option"],
            config,
            start_delay_s=params["graph_profiling_start_delay"],
            executions=params["graph_profiling_num_executions"],
        ),
        synchronous=params["synchronous"],
        repetition=Repetition(inferences=params["num_inferences"], duration_s=params["duration"]),
        keep=params["keep_num_outputs"],
        batch=params["batch_multiplier"],
        timeout_us=params["timeout"],
        retrieve_timeout_us=params["retrieve_context_timeout"],
        shared_buffers=_shared_buffers(params, config),
        cached_sets=params["max_input_cache_tensor_sets"],
        cached_mb=params["max_input_cache_size_mb"],
        validate=params["validate_binary"],
        updates=_updates(params["binary_updates"]),
    )


def _updates(text: str | None) -> list[tuple[str, Path]]:
    updates = []
    for part in [] if text is None else text.split(","):
        graph, mark, path = part.strip().rpartition(":=")
        if not path or (mark and not graph):
            raise InvalidArgument(f"--binary_updates {text!r}: {part!r} is no file; expected graph:=file or file")
        updates.append((graph, Path(path)))
    return updates


def _check_exclusions(params: Given) -> None:
    excluded = (
        ("synchronous", "asynchronous"),
        ("model", "retrieve_context"),
        ("debug", "set_output_tensors"),
        ("use_native_input_files", "native_input_tensor_names"),
        ("num_inferences", "duration"),
        ("max_input_cache_tensor_sets", "max_input_cache_size_mb"),
        ("retrieve_context", "debug"),
        ("retrieve_context", "set_output_tensors"),
    )
    for first, second in excluded:
        if params[first] not in (None, False) and params[second] not in (None, False):
            raise InvalidArgument(f"--{first} and --{second} exclude each other; give one of them")
    if params["model"] is None and params["retrieve_context"] is None:
        raise InvalidArgument("there is nothing to run; give --model FILE.onnx or --retrieve_context FILE.bin")
    if params["retrieve_context_timeout"] is not None and params["retrieve_context"] is None:
        raise InvalidArgument("--retrieve_context_timeout is for --retrieve_context, which is not given")


def _sources(params: Given) -> tuple[list[str], list[Path]]:
    """Models, or binaries; a binary may also be given as a model."""
    if params["retrieve_context"] is not None:
        return [], [Path(word) for word in opt.split_models(params["retrieve_context"], "--retrieve_context")]
    models = opt.split_models(params["model"], "--model")
    binaries = [model for model in models if Path(model).is_file() and is_binary(Path(model))]
    if not binaries:
        return models, []
    if len(binaries) < len(models):
        raise InvalidArgument(f"--model has {binaries[0]!r}, a context binary, beside ONNX files; run them apart")
    if params["debug"] or params["set_output_tensors"]:
        raise InvalidArgument(
            f"{binaries[0]!r} is a context binary, whose outputs are settled; give the ONNX file"
        )
    return [], [Path(name) for name in binaries]


def _native_input(word: str) -> bool:
    if word not in ("float", "native"):
        raise InvalidArgument(f"--input_data_type {word!r}; expected float or native")
    return word == "native"


def _written(params: Given) -> OutputTypes:
    word = params["output_data_type"]
    if word is not None and word not in _FORMS:
        raise InvalidArgument(f"--output_data_type {word!r}; expected one of {', '.join(_FORMS)}")
    if params["use_native_output_files"]:
        if word not in (None, OutputTypes.NATIVE_ONLY.value):
            raise InvalidArgument(f"--use_native_output_files with --output_data_type {word}; give one of them")
        return OutputTypes.NATIVE_ONLY
    return OutputTypes(word or OutputTypes.FLOAT_ONLY.value)


def _shared_buffers(params: Given, config: BackendConfig | None) -> bool:
    kind = params["io_tensor_mem_handle_type"]
    if kind not in (None, "ion", "dma_buf"):
        raise InvalidArgument(f"--io_tensor_mem_handle_type {kind!r}; expected ion or dma_buf")
    if kind is not None:
        return True
    return bool(params["shared_buffer"]) or (config is not None and config.mem_type is not None)


def net_run(
    ctx: typer.Context,
    input_list: InputLists,
    model: opt.Models = None,
    retrieve_context: Retrieve = None,
    backend: opt.BackendPath = None,
    output_dir: opt.OutputDir = Path("output"),
    debug: Debug = False,
    set_output_tensors: opt.SetOutputs = None,
    data_format_config: opt.DataFormats = None,
    dim: Dim = None,
    freeze: Freeze = None,
    use_native_input_files: NativeIn = False,
    native_input_tensor_names: NativeNames = None,
    use_native_output_files: NativeOut = False,
    input_data_type: InType = "float",
    output_data_type: OutType = None,
    profiling_level: opt.ProfilingLevel = None,
    profiling_option: opt.ProfilingOption = None,
    graph_profiling_start_delay: Delay = None,
    graph_profiling_num_executions: Profiled = None,
    perf_profile: opt.PerfProfile = None,
    config_file: opt.ToolConfig = None,
    shared_buffer: SharedBuffer = False,
    io_tensor_mem_handle_type: HandleType = None,
    synchronous: Synchronous = False,
    asynchronous: Asynchronous = False,
    num_inferences: Inferences = None,
    duration: Duration = None,
    keep_num_outputs: Keep = None,
    batch_multiplier: Batch = 1,
    timeout: Timeout = None,
    retrieve_context_timeout: RetrieveTimeout = None,
    max_input_cache_tensor_sets: CacheSets = None,
    max_input_cache_size_mb: CacheSize = None,
    use_mmap: Mmap = False,
    validate_binary: Validate = False,
    soc: opt.Soc = None,
    saver: opt.SaverFolder = None,
    platform_options: opt.PlatformOptions = None,
    binary_updates: Updates = None,
    direct_mode: Direct = False,
    dlc_path: opt.DlcPath = None,
    op_packages: opt.OpPackages = None,
    model_prefix: opt.ModelPrefix = None,
    log_level: opt.LogLevel = None,
    version: opt.Version = False,
    json_file: JsonFile = None,
) -> None:
    """Run models on raw files. Exit status 0, or 11 device, 14 compose, 15 finalize, 17 execute, 2 wrong use."""
    with opt.tool_errors(), opt.logged(log_level):
        order = order_of(ctx.params)
        packages = registered(order.where.op_packages)
        with packages, opt.progress() as tell, nullcontext() if saver is None else saved(saver):
            outcome = tool.net_run(order, tell)
        _report(outcome, order)
        write_json(json_file, _as_json(outcome))


def _report(outcome: tool.NetRunResult, order: tool.NetRunOrder) -> None:
    config = order.where.config
    for note in unused_keys(config, [run.name for run in outcome.graphs], stored=bool(order.binaries)):
        complain(f"note: {note}", "yellow")
    manner = "queued" if outcome.asynchronous else "one by one"
    profile = outcome.perf_profile or "none voted for"
    sheet = TextTable(f"{manner}; perf profile: {profile}", ("graph", "inferences", "inf/s (measured)", "written"))
    for run in outcome.graphs:
        sheet.add(run.name, str(run.inferences), f"{_rate(run):.1f}", str(run.written))
    show(sheet)
    for run in outcome.graphs:
        if run.written:
            say(f"outputs of {run.name}: {run.folder}/Result_0 to Result_{run.written - 1}")
    confirm_written(order.output_dir / METADATA)
    if outcome.log is not None:
        confirm_written(outcome.log, "(openhtp profile-viewer --input_log)")


def _rate(run: tool.GraphRun) -> float:
    return run.inferences / run.seconds if run.seconds else 0.0


def _as_json(outcome: tool.NetRunResult) -> dict[str, Any]:
    return {
        "asynchronous": outcome.asynchronous,
        "perf_profile": outcome.perf_profile,
        "profiling_log": None if outcome.log is None else str(outcome.log),
        "graphs": [
            {
                "name": run.name,
                "inferences": run.inferences,
                "seconds_measured": run.seconds,
                "results_written": run.written,
                "folder": str(run.folder),
                "outputs": [str(spec) for spec in run.outputs],
            }
            for run in outcome.graphs
        ],
    }


app = opt.plain_app(net_run)
