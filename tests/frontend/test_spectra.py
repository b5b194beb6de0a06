"""Short-time Fourier transforms against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import openhtp as htp
import openhtp.onnx


def spectrum(
    *, rank: int = 2, onesided: int = 1, window: bool = True, frame_length: int | None = 16, stride: int = 6
) -> ModelProto:
    """Magnitudes of a spectrum through a matrix, as audio front ends begin."""
    bins = 9 if onesided else 16
    held = {"step": np.array(stride, np.int64), "mel": np.ones((bins, 3), np.float32)}
    if window:
        held["window"] = np.hanning(16).astype(np.float32)
    if frame_length is not None:
        held["size"] = np.array(frame_length, np.int64)
    inputs = ["x", "step", "window" if window else "", "size" if frame_length is not None else ""]
    nodes = [
        helper.make_node("STFT", inputs, ["s"], onesided=onesided),
        helper.make_node("ReduceSumSquare", ["s"], ["p"], axes=[-1], keepdims=0),
        helper.make_node("MatMul", ["p", "mel"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "spectrum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64, 1][:rank])],
        [helper.make_empty_tensor_value_info("s"), helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "case",
    [{}, {"rank": 3}, {"onesided": 0}, {"window": False}, {"frame_length": None}, {"stride": 16}],
)
def test_stft_is_a_convolution(case: dict[str, int]) -> None:
    data = spectrum(**case).SerializeToString()
    feeds = {"x": np.random.default_rng(0).normal(size=[2, 64, 1][: case.get("rank", 2)]).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with htp.InferenceSession(data, options, transport="inprocess") as session:
        found = session.run(None, feeds)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=0.003 * np.abs(theirs).max())


def test_frames_that_do_not_fit_are_named() -> None:
    model = spectrum()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 12
    with pytest.raises(htp.UnsupportedOp, match="frames of 16 every 6 do not fit a signal of 12"):
        openhtp.onnx.load(model)
