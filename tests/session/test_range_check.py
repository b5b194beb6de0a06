"""Values that half precision cannot hold are found, and told once."""

from __future__ import annotations

import logging
import math
import threading

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests.waiting import PATIENCE_S

import openhtp as htp
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.session import range_check
from openhtp.session.accuracy import closeness, trace_nodes
from openhtp.session.range_check import check_range

FEEDS = {"x": np.full((1, 512), 20.0, np.float32)}


def summing(*, last: str = "Reciprocal") -> ModelProto:
    """A sum of squares that reaches 204,800, and what is made of it."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"], name="square"),
        helper.make_node("ReduceSum", ["squares"], ["total"], name="sum", keepdims=1),
        helper.make_node(last, ["total"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "summing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_the_node_is_found() -> None:
    (found,) = check_range(summing(), [FEEDS])
    assert (found.node, found.op_type, found.tensor) == ("sum", "ReduceSum", "total")
    assert found.largest == pytest.approx(204_800)
    assert "node 'sum' (ReduceSum) reaches 204,800, beyond the 65,504" in str(found)
    assert not check_range(summing(), [{"x": FEEDS["x"] / 10}])


def test_numbers_that_hide_positions_are_not_counted() -> None:
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["scores"], name="hide"),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "masked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.array([0, 0, -1e9, -1e9], np.float32), "mask")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    feeds = [{"x": np.ones((1, 4), np.float32)}]
    assert not check_range(model, feeds)
    model.graph.node[1].op_type = "Tanh"
    assert [found.node for found in check_range(model, feeds)] == ["hide"]


def test_constants_are_not_counted() -> None:
    model = summing()
    large = numpy_helper.from_array(np.array([1e9], np.float32), "large")
    model.graph.node.append(helper.make_node("Constant", [], ["large"], value=large))
    model.graph.node.append(helper.make_node("Sqrt", ["large"], ["root"]))
    model.graph.node.append(helper.make_node("Mul", ["large", "large"], ["huge"]))
    assert [found.node for found in check_range(model, [FEEDS])] == ["sum"]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "openhtp.session.range_check"]


def vanishing(last: str) -> ModelProto:
    """A sum with an epsilon that half precision does not hold, and what is infinite at 0."""
    made = {
        "Log": [helper.make_node("Log", ["sum"], ["y"], name="last")],
        "Reciprocal": [
            helper.make_node("Sqrt", ["sum"], ["root"]),
            helper.make_node("Reciprocal", ["root"], ["y"], name="last"),
        ],
        "Div": [helper.make_node("Div", ["x", "sum"], ["y"], name="last")],
        "Pow": [helper.make_node("Pow", ["sum", "power"], ["y"], name="last")],
        "Sqrt": [
            helper.make_node("Sqrt", ["sum"], ["root"]),
            helper.make_node("Div", ["x", "root"], ["y"], name="last"),
        ],
    }
    constants = {"epsilon": 1e-8, "power": -0.5}
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "epsilon"], ["sum"], name="add"), *made[last]],
        "vanishing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.array(number, np.float32), name) for name, number in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("last", ["Log", "Reciprocal", "Div", "Pow", "Sqrt"])
def test_a_session_tells_of_infinities_that_full_precision_does_not_have(
    last: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No value is beyond half precision, but an epsilon is 0 there."""
    caplog.set_level(logging.WARNING)
    silence = {"x": np.array([[1.0, 0.5, 0.0, 1.0]], np.float32)}
    model = vanishing(last)
    assert not check_range(model, [silence])
    with htp.InferenceSession(model.SerializeToString()) as session:
        for _ in range(2):
            (output,) = session.run(None, silence)
            assert not np.isfinite(output).all()
    (message,) = _warnings(caplog)
    assert "output 'y' has infinities or NaNs that full precision does not have" in message
    caplog.clear()
    with htp.InferenceSession(model.SerializeToString()) as session:
        session.run(None, {"x": np.full((1, 4), np.nan, np.float32)})
    assert _warnings(caplog) == []


def test_a_session_tells_once_where_infinities_come_from(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with htp.InferenceSession(summing(last="Sqrt"), transport="inprocess") as session:
        session.run(None, {"x": FEEDS["x"] / 10})
        assert not _warnings(caplog)
        assert np.isinf(session.run(None, FEEDS)[0]).all()
        session.run(None, FEEDS)
    (message,) = _warnings(caplog)
    assert message.startswith("output 'y' has infinities or NaNs: node 'sum' (ReduceSum) reaches 204,800")


def test_inputs_that_the_device_stores_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    """64-bit integers are 32 bits wide on the device; the run is looked into with what the user gave."""
    model = summing(last="Sqrt")
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    model.graph.node[0].input[:] = ["real", "real"]
    cast = helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT)
    nodes = [cast, *model.graph.node]
    whole = ModelProto()
    whole.CopyFrom(model)
    del whole.graph.node[:]
    whole.graph.node.extend(nodes)
    with htp.InferenceSession(whole, transport="inprocess") as session:
        session.run(None, {"x": np.full((1, 512), 20, np.int64)})
    assert "node 'sum'" in _warnings(caplog)[0]


def test_a_session_in_full_precision_has_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    whole = [("QNNExecutionProvider", {"backend_path": "libQnnCpu.so"})]
    feeds = {"x": np.full((1, 512), 1e20, np.float32)}
    with htp.InferenceSession(summing(last="Sqrt"), providers=whole) as session:
        assert np.isinf(session.run(None, feeds)[0]).all()
    assert not _warnings(caplog)


@pytest.mark.parametrize(("entry", "told"), [(None, 1), ("1", 1), ("0", 0)])
def test_results_that_look_fine_are_looked_into_once(
    caplog: pytest.LogCaptureFixture, entry: str | None, told: int
) -> None:
    """One over infinity is 0: nothing shows at the output."""
    options = onnxruntime.SessionOptions()
    if entry is not None:
        options.add_session_config_entry("openhtp.check_range", entry)
    with (
        caplog.at_level(logging.WARNING),
        htp.InferenceSession(summing(), options, transport="inprocess") as session,
    ):
        for _ in range(2):
            assert session.run(None, FEEDS)[0] == 0
    messages = _warnings(caplog)
    assert len(messages) == told
    assert all("node 'sum'" in message for message in messages)


def test_the_first_queued_run_is_looked_into_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()
    caplog.handler.addFilter(lambda record: told.set() or True)
    changed = {"x": FEEDS["x"].copy()}
    with htp.InferenceSession(summing()) as session:
        runs = [session.run_async(None, changed) for _ in range(3)]
        assert all(run.result()[0] == 0 for run in runs)
        changed["x"][:] = 0
        assert told.wait(PATIENCE_S)
        assert session.run_async(None, FEEDS).result()[0] == 0
    (message,) = _warnings(caplog)
    assert "node 'sum'" in message


@pytest.mark.parametrize(
    ("limit", "value"),
    [("SMALL_BYTES", summing().ByteSize() - 1), ("SMALL_NODES", len(summing().graph.node) - 1)],
)
def test_large_models_are_looked_into_only_on_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(range_check, limit, value)
    with htp.InferenceSession(summing(), transport="inprocess") as session:
        assert session.run(None, FEEDS)[0] == 0
    assert not _warnings(caplog)


def test_a_float_model_held_against_itself_shows_where_it_is_lost() -> None:
    data = summing().SerializeToString()
    nodes = {node.node: node for node in trace_nodes(data, data, [FEEDS])}
    assert nodes["square"].htp.sqnr_db > 60
    assert nodes["sum"].htp.sqnr_db == -math.inf
    assert nodes["sum"].lost_db == math.inf
    assert nodes["last"].lost_db == 0


@pytest.mark.parametrize(
    ("exact", "other", "sqnr"),
    [
        ([1.0, math.inf], [1.0, math.inf], math.inf),
        ([1.0, math.nan], [1.0, math.nan], math.inf),
        ([1.0, 2.0], [1.0, math.inf], -math.inf),
        ([1.0, 2.0], [1.0, math.nan], -math.inf),
        ([math.inf], [-math.inf], -math.inf),
        ([0.0], [1.0], -math.inf),
        ([0.0], [0.0], math.inf),
        ([1e-300, 1e-300], [1e30, 0.0], -math.inf),
        ([1e300, 1e300], [1e300, 0.0], 3.0103),
        ([], [], math.inf),
    ],
)
def test_closeness_of_any_numbers(exact: list[float], other: list[float], sqnr: float) -> None:
    found = closeness(np.array(exact), np.array(other))
    assert found.sqnr_db == pytest.approx(sqnr, abs=1e-3)
    assert math.isfinite(found.cosine)
