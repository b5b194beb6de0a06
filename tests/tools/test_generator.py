"""``openhtp context-binary-generator``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openhtp.program.binary import read_binary
from openhtp.testing import record_calls
from tests.tools.conftest import model_bytes, read, run


def test_a_binary_of_two_models_runs(folder: Path) -> None:
    Path("triple.onnx").write_bytes(model_bytes(3.0))
    words = ("--model", "double.onnx,triple.onnx", "--binary_file", "both.serialized", "--weight_sharing")
    made = run("context-binary-generator", *words, "--set_output_tensors", "triple:between", "--json", "j.json")
    assert made.exit_code == 0, made.output
    told = json.loads(Path("j.json").read_text())
    assert told["binaries"] == [
        {
            "path": "output/both.serialized.bin",
            "soc": "SM8650",
            "bytes": Path("output/both.serialized.bin").stat().st_size,
            "graphs": ["double", "triple"],
        }
    ]
    ran = run(
        *("net-run", "--model", "output/both.serialized.bin", "--validate_binary", "--use_mmap"),
        *("--input_list", "list.txt,list.txt", "--output_dir", "ran", "--retrieve_context_timeout", 60_000_000),
    )
    assert ran.exit_code == 2, "the timeout is for --retrieve_context"
    ran = run(
        *("net-run", "--retrieve_context", "output/both.serialized.bin", "--validate_binary", "--use_mmap"),
        *("--input_list", "list.txt,list.txt", "--output_dir", "ran", "--retrieve_context_timeout", 60_000_000),
    )
    assert ran.exit_code == 0, ran.output
    assert read(Path("ran/triple/Result_0/between.raw")) == [-3.0, 0.0, 3.0, 6.0]
    assert read(Path("ran/double/Result_2/y.raw")) == [2.0, 4.0, 6.0, 8.0]


def test_options_of_the_config_and_of_the_command(folder: Path) -> None:
    Path("htp.json").write_text('{"graphs": [{"graph_names": ["double"], "vtcm_mb": 2, "hvx_threads": 2}]}')
    words = ("--model", "double.onnx", "--binary_file", "b", "--config_file", "htp.json")
    made = run("context-binary-generator", *words, "--hvx_threads_override", 3, "--htp_socs", "sm8750,SM8550")
    assert made.exit_code == 0, made.output
    for soc in ("SM8750", "SM8550"):
        binary = read_binary(Path(f"output/b.{soc}.bin").read_bytes())
        assert binary.info.soc == soc
        options = binary.graph_info("double").options
        assert (options.vtcm_bytes, options.hvx_threads) == (2 << 20, 3)


def test_schematics_and_the_op_mapping(folder: Path) -> None:
    words = ("--profiling_level", "detailed", "--profiling_option", "optrace", "--save_backend_op_mapping")
    made = run("context-binary-generator", "--model", "double.onnx", "--binary_file", "b", *words)
    assert made.exit_code == 0, made.output
    assert Path("double_schematic.bin").is_file()
    assert json.loads(Path("output/double_bottom_mapping.json").read_text())["model.cpp"] == "htp_graph"
    assert Path("output/qnn-profiling-data.log").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "double.onnx,sub/double.onnx", "--binary_file", "b"), "two models make a graph 'double'"),
        (("--model", "double.onnx", "--binary_file", "no/b"), "no folder"),
        (("--model", "double.onnx", "--binary_file", "b", "--enable_graphs", "other"), "'other'"),
        (("--model", "double.onnx", "--binary_file", "b", "--data_format_config", "list.txt"), "list.txt"),
        (
            ("--model", "double.onnx", "--binary_file", "b", "--data_format_config", "f.json"),
            "'cache', which",
        ),
        (("--model", "double.onnx", "--binary_file", "b", "--htp_socs", "sm1"), "sm1"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, words: tuple[str, ...], said: str) -> None:
    Path("sub").mkdir()
    tensor = {"tensor_name": "cache", "dataFormat": "QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT"}
    Path("f.json").write_text(json.dumps({"graphs": [{"graph_name": ["double"], "tensors": [tensor]}]}))
    Path("sub/double.onnx").write_bytes(model_bytes())
    done = run("context-binary-generator", *words)
    assert done.exit_code in (2, 14), done.output
    assert said in done.output
    assert not list(Path().rglob("*.bin"))


def test_the_config_of_several_binaries(folder: Path) -> None:
    for name in ("a", "b"):
        Path(f"{name}.onnx").write_bytes(model_bytes())
        assert run("context-binary-generator", "--model", f"{name}.onnx", "--binary_file", name).exit_code == 0
    words = ("--retrieve_context", "output/a.bin,output/b.bin", "--input_list", "list.txt,list.txt")
    Path("group.json").write_text('{"context": {"max_spill_fill_buffer_for_group": 4096, "group_id": 0}}')
    Path("list.json").write_text('{"groupContext": {"share_resources": true}}')
    Path("priority.json").write_text('{"graph_configs": [{"graph_name": "b", "graph_priority": "high"}]}')
    for config in ("group.json", "list.json", "priority.json"):
        with record_calls("rec"):
            done = run("net-run", *words, "--config_file", config, "--output_dir", f"{config}.out")
        assert done.exit_code == 0, done.output
        assert read(Path(f"{config}.out/b/Result_2/y.raw")) == [2.0, 4.0, 6.0, 8.0]
        text = Path("rec/saver_output.jsonl").read_text()
        assert ("register_multi_contexts" in text) == (config == "group.json")
        assert ("share_resources" in text) == (config == "list.json")
        assert ('"setConfig","object"' in text) == (config == "priority.json")


@pytest.mark.parametrize("command", ["net-run --input_list list.txt --model", "profile"])
def test_data_formats_are_taken_wherever_models_come_in(folder: Path, command: str) -> None:
    tensor = {"tensor_name": "cache", "dataFormat": "QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT"}
    # Tools name a graph after its file, everything else by its own name.
    names = ["double", "torch_graph"]
    Path("f.json").write_text(json.dumps({"graphs": [{"graph_name": names, "tensors": [tensor]}]}))
    done = run(*command.split(), "double.onnx", "--data_format_config", "f.json")
    assert done.exit_code != 0
    assert "'cache', which" in " ".join(done.output.split())
