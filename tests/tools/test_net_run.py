"""``openhtp net-run``: the vendor's options, lists, folders and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.zoo.feeds import random_feeds
from tests.tools.conftest import model_bytes, read, run, write


def test_outputs_are_those_of_onnxruntime(folder: Path) -> None:
    model = zoo.small_cnn()
    Path("cnn.onnx").write_bytes(model)
    feeds = random_feeds(model, 2, seed=4)
    for number, sample in enumerate(feeds):
        write(Path(f"in{number}.raw"), sample["input"])
    Path("cnn.txt").write_text("in0.raw\nin1.raw\n")
    done = run("net-run", "--model", "cnn.onnx", "--input_list", "cnn.txt", "--backend", "libQnnHtp.so")
    assert done.exit_code == 0, done.output
    exact = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for number, sample in enumerate(feeds):
        (wanted,) = exact.run(None, sample)
        data = np.array(read(Path(f"output/Result_{number}/output.raw"))).reshape(wanted.shape)
        assert np.abs(data - wanted).max() < 0.01 * np.abs(wanted).max(), "half precision"


def test_the_folder_and_the_description(folder: Path) -> None:
    done = run(
        "net-run", "--model=double.onnx", "--input_list=list.txt", "--output_dir", "o/p", "--json", "j.json"
    )
    assert done.exit_code == 0, done.output
    assert sorted(str(path) for path in Path("o/p").rglob("*.*")) == [
        "o/p/Result_0/y.raw",
        "o/p/Result_1/y.raw",
        "o/p/Result_2/y.raw",
        "o/p/execution_metadata.yaml",
    ]
    assert read(Path("o/p/Result_2/y.raw")) == [2.0, 4.0, 6.0, 8.0]
    text = Path("o/p/execution_metadata.yaml").read_text()
    assert 'graph_name: "double"' in text
    assert "inferences_completed: 3" in text
    told = json.loads(Path("j.json").read_text())
    assert told["asynchronous"] is True
    assert told["graphs"][0]["inferences"] == 3


def test_loops_keep_and_wait(folder: Path) -> None:
    words = ("--num_inferences", 7, "--keep_num_outputs", 4, "--synchronous", "--json", "-")
    done = run("net-run", "--model", "double.onnx", "--input_list", "list.txt", *words)
    told = json.loads(done.stdout)
    assert told["asynchronous"] is False
    assert (told["graphs"][0]["inferences"], told["graphs"][0]["results_written"]) == (7, 4)
    assert read(Path("output/Result_3/y.raw")) == read(Path("output/Result_0/y.raw")) == [0.0, 0.0, 2.0, 4.0]


def test_shared_buffers_by_the_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[int] = []
    real = htp.Context.register_memory

    def register(self: htp.Context, nbytes: int, **more: object) -> htp.Mem:
        registered.append(nbytes)
        return real(self, nbytes, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(htp.Context, "register_memory", register)
    Path("htp.json").write_text('{"memory": {"mem_type": "shared_buffer"}}')
    words = ("net-run", "--model", "double.onnx", "--input_list", "list.txt")
    for more in ((), ("--config_file", "htp.json")):
        done = run(*words, *more)
        assert done.exit_code == 0, done.output
        assert read(Path("output/Result_2/y.raw")) == [2.0, 4.0, 6.0, 8.0]
        assert bool(registered) is bool(more)


def test_several_graphs_have_folders_and_one_is_left_out(folder: Path) -> None:
    Path("triple.onnx").write_bytes(model_bytes(3.0))
    Path("none.onnx").write_bytes(model_bytes(9.0))
    words = ("--model", "double.onnx,triple.onnx,none.onnx", "--input_list", "list.txt,list.txt,__")
    done = run("net-run", *words, "--shared_buffer")
    assert done.exit_code == 0, done.output
    assert read(Path("output/triple/Result_2/y.raw")) == [3.0, 6.0, 9.0, 12.0]
    assert read(Path("output/double/Result_2/y.raw")) == [2.0, 4.0, 6.0, 8.0]
    assert not Path("output/none").exists()


def test_native_types_and_what_is_read_as_what(folder: Path) -> None:
    Path("ids.onnx").write_bytes(model_bytes(1.0, ids=True))
    write(Path("ids.raw"), [1, 2, 3, 4], "<i4")
    write(Path("ids_f.raw"), [1, 2, 3, 4])
    Path("n.txt").write_text("x:=x2.raw ids:=ids.raw\n")
    Path("f.txt").write_text("x:=x2.raw ids:=ids_f.raw\n")
    for words in (
        ("--input_list", "f.txt"),
        ("--input_list", "n.txt", "--native_input_tensor_names", "ids:ids"),
        ("--input_list", "n.txt", "--use_native_input_files", "--output_data_type", "float_and_native"),
    ):
        done = run("net-run", "--model", "ids.onnx", *words)
        assert done.exit_code == 0, done.output
        assert read(Path("output/Result_0/y.raw")) == [2.0, 4.0, 6.0, 8.0]
    assert read(Path("output/Result_0/y_native.raw")) == [2.0, 4.0, 6.0, 8.0]
    wrong = run("net-run", "--model", "ids.onnx", "--input_list", "n.txt")
    assert "are not whole" in wrong.output
    assert "--use_native_input_files" in wrong.output


def test_lines_make_up_a_batch(folder: Path) -> None:
    Path("two.onnx").write_bytes(model_bytes(batch=2))
    done = run("net-run", "--model", "two.onnx", "--input_list", "list.txt")
    assert done.exit_code == 0, done.output
    assert read(Path("output/Result_0/y.raw")) == [0.0, 0.0, 2.0, 4.0, 0.0, 2.0, 4.0, 6.0]
    assert read(Path("output/Result_1/y.raw")) == [2.0, 4.0, 6.0, 8.0, 0.0, 0.0, 0.0, 0.0]
    assert "1 of 2 elements" in done.output
    done = run("net-run", "--model", "double.onnx", "--input_list", "list.txt", "--batch_multiplier", 3)
    assert done.exit_code == 0, done.output
    assert len(read(Path("output/Result_0/y.raw"))) == 12


def test_more_outputs_and_those_that_a_list_names(folder: Path) -> None:
    words = ("--model", "double.onnx", "--input_list", "list.txt")
    done = run("net-run", *words, "--set_output_tensors", "double:between")
    assert done.exit_code == 0, done.output
    assert read(Path("output/Result_0/between.raw")) == [-2.0, 0.0, 2.0, 4.0]
    done = run("net-run", *words, "--debug", "--output_dir", "all")
    assert {path.name for path in Path("all/Result_0").iterdir()} >= {"between.raw", "y.raw"}
    Path("named.txt").write_text("#between\nx0.raw\n")
    words = ("--model", "double.onnx", "--input_list", "named.txt", "--debug", "--output_dir", "chosen")
    assert run("net-run", *words).exit_code == 0
    assert [path.name for path in Path("chosen/Result_0").iterdir()] == ["between.raw"]
    done = run(
        "net-run", "--model", "double.onnx", "--input_list", "list.txt", "--set_output_tensors", "double:betwen"
    )
    assert done.exit_code == 2
    assert "between" in done.output


def test_profiling_and_the_config(folder: Path) -> None:
    Path("htp.json").write_text(
        '{"graphs": [{"graph_names": ["nobody"], "vtcm_mb": 2}],'
        ' "devices": [{"profiling_level": "linting", "cores": [{"perf_profile": "burst"}]}]}'
    )
    Path("config.json").write_text(
        '{"backend_extensions": {"config_file_path": "htp.json"},'
        ' "context_configs": {"async_execute_queue_depth": 3}, "profile_configs": {"num_max_events": 100}}'
    )
    words = ("--model", "double.onnx", "--input_list", "list.txt", "--config_file", "config.json")
    done = run("net-run", *words, "--profiling_level", "backend", "--graph_profiling_num_executions", 2)
    assert done.exit_code == 0, done.output
    assert "perf profile: burst" in done.output
    assert "'nobody' have no effect" in done.output
    shown = run("profile-viewer", "--input_log", "output/qnn-profiling-data_0.log")
    assert "NetRun IPS" in shown.output
    done = run("net-run", *words, "--profiling_level", "detailed", "--profiling_option", "optrace")
    assert done.exit_code == 0, done.output
    assert Path("double_schematic.bin").is_file(), "in the working directory, as the vendor's"


def test_sections_are_applied_first(folder: Path, shared_device: htp.Device) -> None:
    with shared_device.create_context() as context:
        graph = context.create_graph("g")
        x = graph.add_tensor("x", (1, 4), "float32", kind="app_write")
        w = graph.add_tensor("w", (1, 4), "float32", kind="updateable_static", data=np.ones((1, 4), np.float32))
        y = graph.add_tensor("y", (1, 4), "float32", kind="app_read")
        graph.add_node("ElementWiseMultiply", inputs=[x, w], outputs=[y])
        graph.finalize()
        Path("net.bin").write_bytes(context.get_binary())
        section = context.get_binary_section("g", {"w": np.full((1, 4), 3, np.float32)})
    Path("three.bin").write_bytes(section)
    write(Path("four.raw"), np.arange(4, dtype=np.float32))
    Path("four.txt").write_text("four.raw\n")
    words = ("net-run", "--retrieve_context", "net.bin", "--input_list", "four.txt")
    for update, factor in (("", 1), ("three.bin", 3), ("g:=three.bin", 3)):
        done = run(*words, *(["--binary_updates", update] if update else []))
        assert done.exit_code == 0, done.output
        assert list(read(Path("output/Result_0/y.raw"))) == [0, factor, 2 * factor, 3 * factor]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--input_list", "list.txt"), 2, "--retrieve_context"),
        (("--model", "none.onnx", "--input_list", "list.txt"), 2, "none.onnx"),
        (("--model", "double.onnx", "--input_list", "none.txt"), 2, "none.txt"),
        (("--model", "double.onnx", "--input_list", "list.txt,list.txt"), 2, "2 lists; there are 1 graphs"),
        (("--model", "double.onnx", "--input_list", "__"), 2, "nothing would be run"),
        (("--model", "double.onnx", "--input_list", "two.txt"), 2, "two.txt:2: 2 files; the graph has 1 inputs"),
        (("--model", "double.onnx", "--input_list", "gone.txt"), 2, "gone.txt:1: there is no file 'gone.raw'"),
        (("--model", "double.onnx", "--input_list", "short.txt"), 17, "short.txt:1: 'short.raw' has 3 bytes"),
        (("--model", "double.onnx", "--input_list", "list.txt", "--config_file", "bad.json"), 2, "/graphs/0/vtcm"),
        (("--model", "double.onnx", "--input_list", "list.txt", "--backend", "/none/libX.so"), 11, "libX.so"),
        (("--retrieve_context", "x0.raw", "--input_list", "list.txt"), 14, "x0.raw"),
        (("--model", "double.onnx", "--input_list", "list.txt", "--timeout", "1"), 17, "TIMED_OUT"),
        (("--model", "a", "--retrieve_context", "b", "--input_list", "l"), 2, "exclude each other"),
        (("--model", "double.onnx", "--input_list", "list.txt", "--profiling_level", "all"), 2, "basic"),
        (
            ("--model", "double.onnx", "--input_list", "list.txt", "--op_packages", "a.so"),
            2,
            "library.so:provider",
        ),
        (
            ("--model", "double.onnx", "--input_list", "list.txt", "--op_packages", "a.so:b"),
            2,
            "a.so': No such file",
        ),
        (("--model", "double.onnx", "--input_list", "list.txt", "--dlc_path", "a.dlc"), 2, "give the ONNX file"),
        (("--model", "double.onnx", "--input_list", "list.txt", "--direct_mode"), 2, "no LPAI"),
        (("--model", "double.onnx", "--input_list", "list.txt", "--binary_updates", "gone.bin"), 2, "gone.bin"),
        (("--model", "double.onnx", "--input_list", "list.txt", "--binary_updates", "g:=a"), 2, "one of double"),
    ],
)
def test_what_is_wrong_is_named_and_has_a_status(
    folder: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    Path("two.txt").write_text("x0.raw\nx0.raw x1.raw\n")
    Path("gone.txt").write_text("gone.raw\n")
    Path("short.raw").write_bytes(b"123")
    Path("short.txt").write_text("short.raw\n")
    Path("bad.json").write_text('{"graphs": [{"vtcm": 4}]}')
    done = run("net-run", *words)
    assert done.exit_code == status, done.output
    assert said in done.output
    assert not Path("output/Result_0").exists()


def test_the_version_and_an_unknown_option() -> None:
    assert run("net-run", "--version").output.startswith("QNN SDK v")
    assert run("net-run", "--input_list", "x", "--inputlist", "y").exit_code == 2
