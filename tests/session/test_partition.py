"""A model with nodes that an HTP cannot take runs in parts, on the HTP and on the CPU."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import openhtp as htp
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.frontend.partitioning import ModelPart, partition
from openhtp.report.profile_log import read_log
from openhtp.session import on_cpu
from openhtp.session.profiling import NODE

QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"


def _model(nodes: list[Any], shape: Any = (1, 4, 4), out: Any = (1, 4, 4), constants: Any = ()) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(out))
    graph = helper.make_graph(nodes, "g", [x], [y], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def _node(op_type: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=f"{op_type.lower()}_{outputs}", **attrs)


def _diamond() -> bytes:
    """Around a node in the middle there is a way past it: one part could not hold both ends."""
    return _model(
        [
            _node("Relu", "x", "a"),
            _node("Det", "a", "d"),
            _node("Mul", "a a", "b"),
            _node("Add", "b d", "c"),
            _node("Sigmoid", "c", "y"),
        ]
    )


def _where(parts: list[ModelPart]) -> list[tuple[bool, list[str]]]:
    return [(part.on_htp, [node.op_type for node in part.nodes]) for part in parts]


def _reference(model: bytes, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return ort.InferenceSession(model, providers=[CPU]).run(None, feeds)[0]


def _strict() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def _padded_by_its_shape() -> bytes:
    """Padding by numbers that are computed from a shape in floats, as exporters write "up to a multiple of 32"."""
    constants = [
        numpy_helper.from_array(np.array(1.5, np.float32), "wider"),
        numpy_helper.from_array(np.zeros(3, np.int64), "nothing"),
    ]
    nodes = [
        _node("Sigmoid", "x", "a"),
        _node("Shape", "a", "shape"),
        _node("Cast", "shape", "real", to=TensorProto.FLOAT),
        _node("Mul", "real wider", "wide"),
        _node("Ceil", "wide", "ceiling"),
        _node("Cast", "ceiling", "whole", to=TensorProto.INT64),
        _node("Sub", "whole shape", "more"),
        _node("Concat", "nothing more", "pads", axis=0),
        _node("Pad", "x pads", "p"),
        _node("Relu", "p", "r"),
        _node("Det", "r", "y"),
    ]
    return _model(nodes, out=(2,), constants=constants)


@pytest.fixture
def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(3).random((1, 4, 4), np.float32)}


def test_what_follows_from_shapes_is_known_before(feeds: dict[str, np.ndarray]) -> None:
    model = _padded_by_its_shape()
    assert _where(partition(model)) == [(True, ["Pad", "Relu"]), (False, ["Det"])]
    with htp.InferenceSession(model, transport="inprocess") as session:
        np.testing.assert_allclose(session.run(None, feeds)[0], _reference(model, feeds), atol=1e-3)


def test_parts_are_convex_and_in_order() -> None:
    assert _where(partition(_diamond())) == [
        (True, ["Relu", "Mul"]),
        (False, ["Det"]),
        (True, ["Add", "Sigmoid"]),
    ]


def test_model_runs_in_parts_and_tells_which(feeds, caplog) -> None:
    with caplog.at_level(logging.WARNING), htp.InferenceSession(_diamond()) as session:
        assert "Det" in caplog.text
        assert session.get_providers() == [QNN, CPU]
        assert [part.provider for part in session.get_partition()] == [QNN, CPU, QNN]
        (det,) = session.get_partition()[1].nodes
        assert (det.name, det.op_type) == ("det_d", "Det")
        assert "not supported" in det.reason
        assert np.allclose(session.run(None, feeds)[0], _reference(_diamond(), feeds), atol=5e-3)
        assert np.array_equal(session.run_async(["y"], feeds).result()[0], session.run(None, feeds)[0])
        assert session.get_inputs()[0].shape == [1, 4, 4]
        assert "3 parts" in repr(session)
        with pytest.raises(htp.InvalidArgument, match="no output is called 'nope'"):
            session.run(["nope"], feeds)
        with pytest.raises(htp.InvalidArgument, match="missing"):
            session.run(None, {})
    with pytest.raises(htp.WrongState, match="closed"):
        session.run(None, feeds)


@pytest.mark.parametrize("asked", [None, "1"])
def test_threads_of_a_part_leave_the_processor_to_the_next_part(asked: str | None) -> None:
    entry = "session.intra_op.allow_spinning"
    asking = ort.SessionOptions()
    if asked is not None:
        asking.add_session_config_entry(entry, asked)
    seen: list[str] = []

    def opened(model: bytes, options: Any) -> object:
        seen.append(options.get_session_config_entry(entry))
        return object()

    with mock.patch.object(on_cpu, "cpu_session", opened):
        on_cpu.CpuPart(_diamond(), asking)
    assert seen == [asked or "0"]


@pytest.mark.parametrize("first", ["Det", "Relu"])
def test_parts_on_either_processor_take_values(first: str) -> None:
    ops = [("Det", "x", "d"), ("Relu", "d", "y")] if first == "Det" else [("Relu", "x", "r"), ("Det", "r", "y")]
    model = _model([_node(*op) for op in ops], out=(1,))
    feeds = {"x": np.eye(4, dtype=np.float32)[None] * 2}
    with htp.InferenceSession(model, soc="SM8550") as session:
        assert {part.provider for part in session.get_partition()} == {QNN, CPU}
        value = htp.ort.OrtValue.ortvalue_from_numpy(feeds["x"])
        (result,) = session.run_with_ort_values(None, {"x": value})
        assert np.allclose(result.numpy(), _reference(model, feeds), rtol=5e-3)


def test_graphs_of_the_parts_share_one_context_that_ends_with_the_session(feeds) -> None:
    from openhtp.session import hosts

    session = htp.InferenceSession(_diamond(), soc="SM8550")
    context = session.executable.stay.claim.context
    assert len(context.graphs) == 2
    kind = session.executable.stay.kind
    session.close()
    assert kind not in hosts.devices


def test_without_the_cpu_all_reasons_are_told() -> None:
    model = _model([_node("Det", "x", "d"), _node("Relu", "d", "e"), _node("Erf", "e", "y")], out=(1,))
    with pytest.raises(htp.UnsupportedError) as caught:
        htp.InferenceSession(model, _strict())
    for part in ("2 of 3 nodes", "det_d", "erf_y"):
        assert part in caught.value.message


def test_quantizers_stay_with_their_node() -> None:
    scale = numpy_helper.from_array(np.float32(0.05), "s")
    zero = numpy_helper.from_array(np.uint8(128), "z")
    model = _model(
        [
            _node("QuantizeLinear", "x s z", "xq"),
            _node("DequantizeLinear", "xq s z", "xd"),
            _node("Relu", "xd", "r"),
            _node("QuantizeLinear", "r s z", "rq"),
            _node("DequantizeLinear", "rq s z", "rd"),
            _node("Det", "rd", "d"),
            _node("QuantizeLinear", "d s z", "dq"),
            _node("DequantizeLinear", "dq s z", "dd"),
            _node("Sigmoid", "dd", "y"),
        ],
        out=(1,),
        constants=[scale, zero],
    )
    parts = partition(model)
    assert _where(parts) == [
        (True, ["QuantizeLinear", "DequantizeLinear", "Relu", "QuantizeLinear"]),
        (False, ["DequantizeLinear", "Det", "QuantizeLinear"]),
        (True, ["DequantizeLinear", "Sigmoid"]),
    ]
    assert "det_d" in parts[1].nodes[0].reason
    feeds = {"x": np.random.default_rng(5).random((1, 4, 4), np.float32)}
    with htp.InferenceSession(model) as session:
        assert np.allclose(session.run(None, feeds)[0], _reference(model, feeds), atol=0.02)


def test_sizes_that_depend_on_data_are_the_cpus(feeds) -> None:
    """What comes after NonZero has no fixed size until it is reduced to one."""
    model = _model(
        [
            _node("Relu", "x", "a"),
            _node("NonZero", "a", "n"),
            _node("Cast", "n", "f", to=TensorProto.FLOAT),
            _node("ReduceSum", "f", "r", keepdims=0),
            _node("Mul", "a r", "m"),
            _node("Sigmoid", "m", "y"),
        ]
    )
    parts = partition(model)
    assert [part.on_htp for part in parts] == [True, False, True]
    assert "not known before it runs" in parts[1].nodes[0].reason
    with htp.InferenceSession(model) as session:
        assert np.allclose(session.run(None, feeds)[0], _reference(model, feeds), atol=5e-3)


def test_loop_body_is_the_cpus(feeds) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["v", "a"], ["w"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1, 4, 4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 4, 4]),
        ],
    )
    constants = [numpy_helper.from_array(np.int64(3), "n"), numpy_helper.from_array(np.bool_(True), "t")]
    nodes = [_node("Relu", "x", "a"), _node("Loop", "n t a", "l", body=body), _node("Sigmoid", "l", "y")]
    model = _model(nodes, constants=constants)
    with htp.InferenceSession(model) as session:
        on_htp, on_cpu = session.get_partition()
        assert (on_htp.provider, on_cpu.provider) == (QNN, CPU)
        # A loop may change the size of what it carries.
        assert "the size of 'l'" in on_cpu.nodes[1].reason
        assert np.allclose(session.run(None, feeds)[0], _reference(model, feeds), atol=5e-3)


def test_what_computes_nothing_is_not_worth_the_way(feeds) -> None:
    model = _model([_node("Identity", "x", "a"), _node("Det", "a", "y")], out=(1,))
    with htp.InferenceSession(model) as session:
        assert session.get_providers() == [CPU]
        ((first, det),) = [part.nodes for part in session.get_partition()]
        assert "worth" in first.reason
        assert "not supported" in det.reason


def test_whole_models_are_one_part() -> None:
    model = zoo.tiny_mlp()
    with htp.InferenceSession(model, transport="inprocess") as session:
        (part,) = session.get_partition()
        assert part.provider == QNN
        assert {node.reason for node in part.nodes} == {""}
    with htp.InferenceSession(model, providers=[CPU]) as session:
        (part,) = session.get_partition()
        assert {node.reason for node in part.nodes} == {f"{QNN} was not asked for"}


def _profiled(level: str, **settings: str) -> Any:
    return [(QNN, {"profiling_level": level, **settings})]


def test_a_profile_tells_of_each_part(
    feeds: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "runs.csv"
    with htp.InferenceSession(
        _diamond(), providers=_profiled("detailed", profiling_file_path=str(path))
    ) as session:
        pending = session.run_async(None, feeds)
        session.run(None, feeds)
        profile = pending.profile
        assert profile is not None
        pending.result()
        where = [part.provider for part in session.get_partition()]
    *parts, whole = profile.events()
    assert [f"part {n} on {provider}" for n, provider in enumerate(where, 1)] == [
        part.name.partition(",")[0] for part in parts
    ]
    assert where.count(CPU) == 1
    for provider, part in zip(where, parts, strict=True):
        assert part.events
        if provider == CPU:
            (node,) = part.events
            assert (node.type, node.name, node.modelled) == (NODE, "det_d (Det)", False)
            assert 0 <= node.value <= part.value
    assert not list(tmp_path.glob("openhtp-profile-*"))
    assert sum(part.value for part in parts) <= whole.value + len(parts)
    op = profile.event(404)
    assert op is not None
    assert op.modelled
    log = read_log(tmp_path / "runs_qnn.log")
    assert len(log.messages) == 2 * where.count(QNN)
    assert len({message.graph for message in log.messages}) == where.count(QNN)


def test_the_file_of_events_has_the_nodes_of_each_part(feeds: dict[str, np.ndarray], tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "events")
    with htp.InferenceSession(_diamond(), options, [QNN]) as session:
        assert session.get_profiling_start_time_ns() > 0
        session.run(None, feeds)
        path = session.end_profiling()
    events = json.loads(Path(path).read_text())
    nodes = [event for event in events if event["cat"] == "Node"]
    assert [event["args"]["op_name"] for event in nodes if event["args"]["provider"] == CPU] == ["Det"]
    named = {name for event in nodes for name in event["args"]["nodes"]}
    assert {"relu_a", "det_d", "add_c", "sigmoid_y"} <= named
    assert [event["name"] for event in events if event["cat"] == "Session"] == [
        "session_initialization",
        "model_run",
    ]
    at = [event["ts"] for event in nodes]
    assert at == sorted(at)  # one part after the other


def test_a_config_asks_for_a_profile(feeds: dict[str, np.ndarray], tmp_path: Path) -> None:
    htp_config = tmp_path / "htp.json"
    htp_config.write_text(json.dumps({"devices": [{"profiling_level": "linting"}]}))
    config = {
        "backend_extensions": {"config_file_path": str(htp_config)},
        "profile_configs": {"num_max_events": 9},
    }
    with htp.InferenceSession(_diamond(), backend_config=config) as session:
        pending = session.run_async(None, feeds)
        pending.result()
        assert pending.profile is not None
        assert pending.profile.event(6001) is not None
        first = pending.profile.events()[0]
        assert len(first.events) == 9


def test_a_value_without_elements_is_computed_on_the_cpu() -> None:
    """The rest of the model still is the HTP's."""
    bounds = [numpy_helper.from_array(np.array([at]), name) for name, at in (("b", 9), ("e", 12), ("i", 2))]
    nodes = [_node("Slice", "x b e i", "s"), _node("Relu", "x", "r"), _node("Concat", "r s", "y", axis=2)]
    nodes += [_node("Identity", "s", "none")]
    model = onnx.load_from_string(_model(nodes, constants=bounds))
    model.graph.output.append(helper.make_tensor_value_info("none", TensorProto.FLOAT, [1, 4, 0]))
    parts = partition(model.SerializeToString())
    assert [node.op_type for part in parts if part.on_htp for node in part.nodes] == ["Relu"]
    x = np.full((1, 4, 4), -1, np.float32)
    found = htp.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert [array.shape for array in found] == [(1, 4, 4), (1, 4, 0)]


def test_a_type_that_only_the_runtime_knows() -> None:
    """Past an operator of the runtime's own nothing infers types, and a part begins with such a value."""
    nodes = [
        _node("Inverse", "x", "inverse", domain="com.microsoft"),
        _node("Erf", "x", "erf"),
        _node("Relu", "erf", "positive"),
        _node("Add", "inverse positive", "y"),
    ]
    model = onnx.ModelProto.FromString(_model(nodes))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = np.random.default_rng(0).normal(size=(1, 4, 4)).astype(np.float32)
    (wanted,) = ort.InferenceSession(model.SerializeToString(), providers=[CPU]).run(None, {"x": x})
    with htp.InferenceSession(model.SerializeToString(), transport="inprocess") as session:
        assert [part.provider for part in session.get_partition()] == [CPU, QNN, CPU]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=4e-3, atol=4e-3)


def test_an_input_that_is_an_output_is_handed_on_as_a_copy() -> None:
    """No tensor of a graph is both; the session hands it on, and the nodes are the HTP's."""
    model = onnx.ModelProto.FromString(_model([_node("Relu", "x", "y")]))
    model.graph.output.append(model.graph.input[0])
    x = np.random.default_rng(0).normal(size=(1, 4, 4)).astype(np.float32)
    with htp.InferenceSession(model.SerializeToString(), transport="inprocess") as session:
        assert [part.provider for part in session.get_partition()] == [QNN]
        positive, same = session.run(None, {"x": x})
        np.testing.assert_allclose(positive, np.maximum(x, 0), rtol=4e-3)
        np.testing.assert_array_equal(same, x)
        assert not np.shares_memory(same, x)


def test_scales_per_channel_of_what_is_no_weight_are_the_cpus() -> None:
    """No operation of an HTP takes such activations; the rest of the model is the HTP's all the same."""
    scales = numpy_helper.from_array(np.array([0.01, 0.02, 0.03, 0.04], np.float32), "s")
    zeros = numpy_helper.from_array(np.array([128, 120, 128, 100], np.uint8), "z")
    nodes = [
        _node("QuantizeLinear", "x s z", "xq", axis=1),
        _node("DequantizeLinear", "xq s z", "xd", axis=1),
        _node("Mul", "xd xd", "y"),
    ]
    model = _model(nodes, constants=[scales, zeros])
    feeds = {"x": np.random.default_rng(5).random((1, 4, 4), np.float32)}
    with htp.InferenceSession(model, transport="inprocess") as session:
        assert [part.provider for part in session.get_partition()] == [CPU, QNN]
        np.testing.assert_allclose(session.run(None, feeds)[0], _reference(model, feeds), rtol=4e-3, atol=1e-3)
