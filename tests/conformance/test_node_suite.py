"""ONNX's node tests of the operators that are taken pass, or are listed with a reason."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from suite import GONE, Outcome, Record, cases, exceptions, reason_for, run_case

import openhtp as htp
from openhtp.core import tidying
from openhtp.onnx import backend


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """All of them, in one process and on one device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [run_case(case) for case in cases()]


@pytest.mark.timeout(600)
def test_every_node_test_passes_or_is_listed(outcomes: list[Outcome]) -> None:
    reasons = exceptions()
    failed = {o.name: o.problem for o in outcomes if o.problem and reason_for(o.name, reasons) is None}
    assert not failed
    needed = {reason_for(o.name, reasons) for o in outcomes if o.problem}
    assert set(reasons.values()) == needed, "an entry of exceptions.toml is no longer needed"


def test_no_fewer_node_tests_pass_than_are_recorded(outcomes: list[Outcome]) -> None:
    """By name, so that one that is lost is noticed even where its name is among the listed ones."""
    record = Record.read()
    assert not record.lost(outcomes)
    assert not record.gained(outcomes), "more pass than before: record them (make conformance ARGS=--record)"


def test_a_lost_node_test_is_noticed() -> None:
    record = Record(onnx.__version__, frozenset({"test_relu", "test_tanh", "test_gone"}))
    found = [Outcome("test_relu", "Relu"), Outcome("test_tanh", "Tanh", "wrong"), Outcome("test_new", "Abs")]
    assert record.lost(found) == {
        "test_tanh": "wrong",
        "test_gone": GONE,
    }
    assert record.gained(found) == ["test_new"]
    of_another = Record("0.1", record.names)
    assert of_another.lost(found) == {"test_tanh": "wrong"}
    assert not of_another.gained(found)


@pytest.mark.filterwarnings("ignore")
def test_a_single_node_runs() -> None:
    x = np.array([[-1.0, 2.0]], np.float32)
    (y,) = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    assert y.tolist() == [[0.0, 2.0]]
    (y,) = backend.run_node(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), [x])
    assert y.tolist() == [[-1.0], [2.0]]
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")


def test_a_model_that_nobody_has_any_more_leaves_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite prepares hundreds, and each that runs has open files."""
    x = np.ones((2, 3), np.float32)
    with htp.Backend() as htp_backend:
        device = htp_backend.create_device(transport="inprocess")
        monkeypatch.setattr(backend, "_device", lambda: device)
        kept = backend.prepare(_one_op("Relu"))
        backend.run_model(_one_op("Abs"), [x])
        tidying.flush()
        assert _contexts_of(device) == 1
        assert kept.run([x])[0].tolist() == x.tolist()
        del kept
        tidying.flush()
        assert _contexts_of(device) == 0


def _contexts_of(device: htp.Device) -> int:
    (session,) = device.info()["sessions"]
    return int(session["contexts"])


def _one_op(op_type: str) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_model_that_does_not_fit_leaves_no_context_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = numpy_helper.from_array(np.ones((1024, 1024), np.float32), "w")
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1024]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    with htp.Backend() as htp_backend:
        device = htp_backend.create_device(transport="inprocess", domain_mb=1)
        monkeypatch.setattr(backend, "_device", lambda: device)
        with pytest.raises(htp.OutOfMemory):
            backend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
        assert _contexts_of(device) == 0
