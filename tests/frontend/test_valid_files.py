"""A file that is called broken is broken: what only we cannot take is unsupported."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from import_cases import model_of, node

import openhtp as htp
from openhtp.frontend import onnx_import
from openhtp.onnx import load

MISMATCH = model_of(
    [node("MatMul", "x w", "y", name="m1")], {"x": [2, 3]}, ["y"], {"w": np.zeros((4, 2), np.float32)}
)


def test_shapes_that_onnx_refuses_name_the_node_and_are_not_called_broken() -> None:
    with pytest.raises(htp.UnsupportedOp, match=r"node 'm1' \(MatMul\)"):
        load(MISMATCH)


def test_a_rule_that_stumbles_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(site: object) -> None:
        raise KeyError("axis")

    monkeypatch.setattr(onnx_import, "rules", lambda: {"Relu": stumble})
    with pytest.raises(htp.UnsupportedOp, match=r"node 'r1' \(Relu\) cannot be imported"):
        load(model_of([node("Relu", "x", "y", name="r1")], {"x": [2]}, ["y"]))


def test_a_session_asks_the_cpu_before_it_calls_a_file_broken() -> None:
    with pytest.raises(htp.BadModel, match=r"the HTP cannot take the model .*m1.*, and ONNX Runtime cannot take"):
        htp.InferenceSession(MISMATCH)
    with pytest.raises(htp.BadModel, match=r"^ONNX Runtime cannot take the model: .*MatMul"):
        htp.InferenceSession(MISMATCH, providers=["CPUExecutionProvider"])


def test_an_operator_of_another_domain_is_unsupported() -> None:
    model = model_of([node("DynamicQuantizeLSTM", "x", "y", name="q1", domain="com.microsoft")], {"x": [2]}, ["y"])
    with pytest.raises(htp.UnsupportedOp, match=r"node 'q1' .*is not supported"):
        load(model)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (
            {"ir_version": 90},
            r"the model has IR version 90, and at most \d+ .*; save it with model.ir_version = \d+",
        ),
        ({"opset": 90}, r"the model has opset 90, and at most \d+ is read .*; save it with opset \d+"),
    ],
)
def test_a_newer_onnx_than_the_runtime_reads_is_told_with_the_remedy(versions: dict[str, int], words: str) -> None:
    model = onnx.load_from_string(model_of([node("Relu", "x", "y")], {"x": [2]}, ["y"]))
    model.ir_version = versions.get("ir_version", model.ir_version)
    model.opset_import[0].version = versions.get("opset", model.opset_import[0].version)
    with pytest.raises(htp.BadModel, match=words) as caught:
        htp.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert "::" not in str(caught.value)
