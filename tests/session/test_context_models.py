"""E3: context models with several parts, and contexts that sessions share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import openhtp as htp
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime as ort

QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
FEEDS = {"x": np.random.default_rng(3).random((1, 4, 4), np.float32)}


def diamond() -> bytes:
    """Det is for no HTP: what is before it, what is beside it and what is behind it make two graphs."""
    nodes = "Relu x a; Det a d; Mul a a b; Add b d c; Sigmoid c y"
    made = [helper.make_node(op, names[:-1], names[-1:]) for op, *names in map(str.split, nodes.split(";"))]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 4]) for name in "xy")
    graph = helper.make_graph(made, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def options(**entries: str) -> Any:
    made = ort.SessionOptions()
    for key, value in entries.items():
        made.add_session_config_entry(key.replace("__", "."), value)
    return made


def written(folder: Path, embed: str = "1") -> tuple[Path, np.ndarray]:
    """The context model of a diamond, and what the session that wrote it computed."""
    path = folder / "c.onnx"
    chosen = options(ep__context_enable="1", ep__context_file_path=str(path), ep__context_embed_mode=embed)
    with htp.InferenceSession(diamond(), chosen) as session:
        return path, session.run(None, FEEDS)[0]


def contexts_in(model: onnx.ModelProto) -> list[dict[str, Any]]:
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    return [{each.name: helper.get_attribute_value(each) for each in node.attribute} for node in nodes]


@pytest.mark.parametrize("embed", ["0", "1"])
def test_e3_a_model_in_parts_is_written_and_read(tmp_path: Path, embed: str) -> None:
    path, wanted = written(tmp_path, embed)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node] == ["EPContext", "Det", "EPContext"]
    main, other = contexts_in(model)
    assert (main["main_context"], other["main_context"]) == (1, 0)
    assert "ep_cache_context" not in other
    assert main["partition_name"] != other["partition_name"]
    assert len(list(tmp_path.glob("*.bin"))) == (embed == "0")
    with htp.InferenceSession(path) as session:
        assert [part.provider for part in session.get_partition()] == [QNN, CPU, QNN]
        assert session.get_inputs()[0].shape == [1, 4, 4]
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], wanted)
        np.testing.assert_array_equal(session.run_async(None, FEEDS).result()[0], wanted)


def test_e3_the_warning_names_the_node_that_is_the_cpu_s(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, _ = written(tmp_path)
    caplog.clear()
    with htp.InferenceSession(path):
        (warning,) = [record.message for record in caplog.records if "cannot take all" in record.message]
    assert "(Det): the context model leaves it to the CPU" in warning
    assert "EPContext" not in warning


def test_e3_without_the_cpu_it_is_refused(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with pytest.raises(htp.UnsupportedError, match="Det"):
        htp.InferenceSession(path, options(session__disable_cpu_ep_fallback="1"))


def _change(path: Path, change: Any) -> None:
    model = onnx.load(path)
    change([node for node in model.graph.node if node.op_type == "EPContext"])
    onnx.save(model, path)


def _without_main(nodes: list[Any]) -> None:
    for attribute in nodes[0].attribute:
        if attribute.name == "main_context":
            attribute.i = 0


def _both_main(nodes: list[Any]) -> None:
    del nodes[1].attribute[:]
    nodes[1].attribute.extend(nodes[0].attribute)


def _other_graph(nodes: list[Any]) -> None:
    for attribute in nodes[1].attribute:
        if attribute.name == "partition_name":
            attribute.s = b"nowhere"


@pytest.mark.parametrize(
    ("change", "told"),
    [(_without_main, "main_context"), (_both_main, "main_context"), (_other_graph, "nowhere")],
)
def test_e3_parts_that_do_not_fit_together_are_refused(tmp_path: Path, change: Any, told: str) -> None:
    path, _ = written(tmp_path)
    _change(path, change)
    with pytest.raises(htp.QnnError, match=told):
        htp.InferenceSession(path)


@pytest.fixture
def two_graphs(tmp_path: Path) -> Path:
    """One binary of two graphs, and a context model for each."""
    with htp.Backend() as backend, backend.create_device() as device:
        context = device.create_context()
        for size in (16, 32):
            imported = htp.onnx.load(zoo.quantized(zoo.small_cnn(size)))
            context.compose_graph(imported, name=f"net{size}").finalize()
        (tmp_path / "both.bin").write_bytes(context.get_binary())
    for size in (16, 32):
        values = {
            name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
            for name, shape in (("input", [1, 3, size, size]), ("output", [1, 10]))
        }
        node = helper.make_node(
            "EPContext",
            ["input"],
            ["output"],
            domain="com.microsoft",
            embed_mode=0,
            ep_cache_context="both.bin",
            main_context=1,
            partition_name=f"net{size}",
            source="QNN",
        )
        graph = helper.make_graph([node], "g", values["input"], values["output"])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / f"net{size}.onnx")
    return tmp_path


def _runs(session: htp.InferenceSession) -> None:
    session.run(None, {"input": np.zeros(session.get_inputs()[0].shape, np.float32)})


def test_e3_sessions_that_share_have_one_context(two_graphs: Path) -> None:
    small, large = two_graphs / "net16.onnx", two_graphs / "net32.onnx"
    share = options(ep__share_ep_contexts="1")
    with htp.InferenceSession(large) as alone, htp.InferenceSession(small, share) as first:
        with htp.InferenceSession(large, share) as second:
            assert second.executable.context is first.executable.context
            assert alone.executable.context is not first.executable.context
            _runs(second)
        _runs(first)  # the context is there until its last session is closed
        context = first.executable.context
    with pytest.raises(htp.QnnError):
        context.graph("net16")
    with htp.InferenceSession(small, share) as again:
        assert again.executable.context is not context
        _runs(again)


def test_e3_writing_shared_contexts_is_refused_in_words(tmp_path: Path) -> None:
    path = str(tmp_path / "c.onnx")
    chosen = options(ep__context_enable="1", ep__share_ep_contexts="1", ep__context_file_path=path)
    with pytest.raises(htp.UnsupportedFeature, match="context-binary-generator"):
        htp.InferenceSession(zoo.quantized(zoo.small_cnn(32)), chosen)
    assert not Path(path).exists()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.capi.conftest import ROOT, build_script

    folder = tmp_path_factory.mktemp("lib")
    assert build_script().compile_libraries(ROOT, folder)
    return str(folder / "libQnnHtp.so")


@pytest.mark.vendor
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs onnxruntime-qnn")
@pytest.mark.parametrize("embed", ["0", "1"])
def test_e3_context_models_go_to_and_from_onnxruntime_s_provider(tmp_path: Path, embed: str, library: str) -> None:
    from tests.capi.ort_sessions import devices

    def theirs(model: bytes | str, **entries: str) -> Any:
        chosen = options(**entries)
        own = {"backend_path": library, "soc_model": "57", "enable_htp_fp16_precision": "1"}
        chosen.add_provider_for_devices(devices(), own)
        return ort.InferenceSession(model, chosen)

    path = tmp_path / "theirs.onnx"
    entries = {"ep__context_enable": "1", "ep__context_file_path": str(path), "ep__context_embed_mode": embed}
    wanted = theirs(diamond(), **entries).run(None, FEEDS)[0]
    assert len(contexts_in(onnx.load(path))) == 2
    with htp.InferenceSession(path) as session:
        assert [part.provider for part in session.get_partition()] == [QNN, CPU, QNN]
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], wanted)
    ours, wanted = written(tmp_path, embed)
    np.testing.assert_array_equal(theirs(str(ours)).run(None, FEEDS)[0], wanted)
