"""A session that is the first of its program and needs no device is made, refused and closed without a backend."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import openhtp.ort as ort
import openhtp as htp
from onnx import TensorProto, helper

graph = helper.make_graph(
    [helper.make_node("Det", ["x"], ["y"], name="det")],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 2])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
"""
_REFUSED = """
options = ort.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
try:
    htp.InferenceSession(model, options)
except htp.UnsupportedError:
    print("refused")
"""
_ON_THE_CPU = """
with htp.InferenceSession(model, providers=["CPUExecutionProvider"]) as session:
    print(session.get_providers())
"""


def _output(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM + program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_refused_model_leaves_the_program_running() -> None:
    assert _output(_REFUSED) == "refused"


def test_a_session_on_the_cpu_needs_no_device() -> None:
    assert _output(_ON_THE_CPU) == "['CPUExecutionProvider']"
