"""Nothing of ours makes ONNX Runtime open its store of usage events, unless the user asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from openhtp.engine.onnxruntime import TELEMETRY_SWITCH

_DEVICE = """if True:
    import numpy as np, openhtp as htp
    with htp.Backend() as backend:
        graph = backend.create_device().create_context().create_graph("g")
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", inputs=[x], outputs=[y])
        graph.finalize()
        graph.execute({"x": np.zeros((1, 8), np.float32)})
"""
_SESSION = """if True:
    import openhtp as htp
    htp.InferenceSession(htp.zoo.tiny_mlp(), transport="inprocess").close()
    htp.InferenceSession(htp.zoo.tiny_mlp(), providers=["CPUExecutionProvider"]).close()
"""
_QUANTIZER = """if True:
    import numpy as np, openhtp as htp
    from openhtp.frontend.quantize import quantize_model
    model = htp.zoo.tiny_mlp()
    name, kind = next(iter(htp.onnx.load(model).tensors.items()))
    quantize_model(model, [{name: np.zeros(kind.shape, np.float32)}])
"""


@pytest.mark.parametrize("script", [_DEVICE, _SESSION, _QUANTIZER], ids=["device", "session", "quantizer"])
def test_a_fresh_home_stays_empty(tmp_path: Path, script: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    dropped = ("XDG_CACHE_HOME", TELEMETRY_SWITCH)
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"HOME": str(home), "OPENHTP_KEY_FILE": str(tmp_path / "key"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=PATIENCE_S)
    assert list(home.rglob("*")) == []


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_users_own_choice_is_kept(value: str) -> None:
    script = f"import os, openhtp.engine.onnxruntime; print(os.environ['{TELEMETRY_SWITCH}'])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, TELEMETRY_SWITCH: value},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == value
