"""``openhtp net-run``: run models or context binaries on raw files, with the options of ``qnn-net-run``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from openhtp.cli import _net_run_options as own, _tool_options as opt
from openhtp.cli._terminal import JsonFile, complain, confirm_written, say, show, write_json
from openhtp.cli._text_table import TextTable
from openhtp.runtime.instruments.saving_calls import saved
from openhtp.tools import net_run as tool
from openhtp.tools.models import unused_keys
from openhtp.tools.results import METADATA


def net_run(
    ctx: typer.Context,
    input_list: own.InputLists,
    model: opt.Models = None,
    retrieve_context: own.Retrieve = None,
    backend: opt.BackendPath = None,
    output_dir: opt.OutputDir = Path("output"),
    debug: own.Debug = False,
    set_output_tensors: opt.SetOutputs = None,
    data_format_config: opt.DataFormats = None,
    use_native_input_files: own.NativeIn = False,
    native_input_tensor_names: own.NativeNames = None,
    use_native_output_files: own.NativeOut = False,
    input_data_type: own.InType = "float",
    output_data_type: own.OutType = None,
    profiling_level: opt.ProfilingLevel = None,
    profiling_option: opt.ProfilingOption = None,
    graph_profiling_start_delay: own.Delay = None,
    graph_profiling_num_executions: own.Profiled = None,
    perf_profile: opt.PerfProfile = None,
    config_file: opt.ToolConfig = None,
    shared_buffer: own.SharedBuffer = False,
    io_tensor_mem_handle_type: own.HandleType = None,
    synchronous: own.Synchronous = False,
    asynchronous: own.Asynchronous = False,
    num_inferences: own.Inferences = None,
    duration: own.Duration = None,
    keep_num_outputs: own.Keep = None,
    batch_multiplier: own.Batch = 1,
    timeout: own.Timeout = None,
    retrieve_context_timeout: own.RetrieveTimeout = None,
    max_input_cache_tensor_sets: own.CacheSets = None,
    max_input_cache_size_mb: own.CacheSize = None,
    use_mmap: own.Mmap = False,
    validate_binary: own.Validate = False,
    soc: opt.Soc = None,
    saver: opt.SaverFolder = None,
    platform_options: opt.PlatformOptions = None,
    binary_updates: own.Updates = None,
    direct_mode: own.Direct = False,
    dlc_path: opt.DlcPath = None,
    op_packages: opt.OpPackages = None,
    model_prefix: opt.ModelPrefix = None,
    log_level: opt.LogLevel = None,
    version: opt.Version = False,
    json_file: JsonFile = None,
) -> None:
    """Run models on raw files. Exit status 0, or 11 device, 14 compose, 15 finalize, 17 execute, 2 wrong use."""
    with opt.tool_errors(), opt.logged(log_level):
        order = own.order_of(ctx.params)
        with opt.progress() as tell, nullcontext() if saver is None else saved(saver):
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
