"""A variable with which ONNX Runtime drops the options of sessions: the emulated HTP's need theirs."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from openhtp.core.errors import UnsupportedFeature
from openhtp.engine.onnxruntime import MODELS_DECIDE


@pytest.fixture(autouse=True)
def models_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS_DECIDE, "1")


def test_a_device_process_is_not_affected() -> None:
    with htp.Backend() as backend:
        graph = (
            backend.create_device(host="process").create_context().compose_graph(htp.onnx.load(zoo.tiny_mlp(8)))
        )
        graph.finalize()
        (name,) = graph.execute({each.name: np.zeros(each.shape, np.float32) for each in graph.inputs})
        assert name


def test_in_the_clients_process_it_is_refused_by_name() -> None:
    with htp.Backend() as backend:
        graph = backend.create_device(host="thread").create_context().compose_graph(htp.onnx.load(zoo.tiny_mlp(8)))
        with pytest.raises(UnsupportedFeature, match=MODELS_DECIDE):
            graph.finalize()
