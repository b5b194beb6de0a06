"""Scripts that are written for the vendor's tools find every option that they use."""

from __future__ import annotations

import click
import pytest
import typer

from openhtp.cli.main import app

COMMON = (
    "model backend output_dir config_file profiling_level profiling_option log_level platform_options op_packages"
)
DOCUMENTED = {
    "net-run": f"{COMMON} retrieve_context input_list debug set_output_tensors use_native_input_files"
    " native_input_tensor_names use_native_output_files input_data_type output_data_type perf_profile"
    " shared_buffer io_tensor_mem_handle_type synchronous asynchronous num_inferences duration keep_num_outputs"
    " batch_multiplier timeout retrieve_context_timeout max_input_cache_tensor_sets max_input_cache_size_mb"
    " use_mmap validate_binary graph_profiling_start_delay graph_profiling_num_executions version",
    "context-binary-generator": f"{COMMON} binary_file enable_intermediate_outputs set_output_tensors"
    " input_output_tensor_mem_type htp_socs vtcm_override hvx_threads_override data_format_config"
    " reference_weight_sharing_enabled_override save_backend_op_mapping version",
    "throughput-net-run": "config output version",
    "context-binary-utility": "context_binary json_file version",
    "profile-viewer": "input_log output reader schematic zoom_start zoom_end config dlc gzip"
    " standardized_json_output extract_opaque_objects version",
    "platform-validator": "backend directory dsp_type buildVariant testBackend deviceId coreVersion libVersion"
    " targetPath remoteHost debug version",
}


@pytest.mark.parametrize("tool", DOCUMENTED)
def test_every_documented_option_is_taken(tool: str) -> None:
    group = typer.main.get_command(app)
    command = group.get_command(click.Context(group), tool)  # type: ignore[attr-defined]
    taken = {option for parameter in command.params for option in parameter.opts}
    assert {f"--{name}" for name in DOCUMENTED[tool].split()} <= taken
    assert "--json" in taken
