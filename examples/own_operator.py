"""An operator written in Python inside an ONNX model: computed, priced for a chip, and seen in a profile.

python examples/own_operator.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import openhtp as htp

SHAPE = (1, 8, 64, 64)


def same_shape(node: Any) -> Any:
    return (node.shape(0),)


def soft_clip(node: Any, arrays: Any) -> Any:
    """limit * tanh(x / limit)."""
    limit = node.params["limit"]
    return limit * np.tanh(arrays[0] / limit)


def work(node: Any) -> htp.Work:
    return htp.Work.on(node, vector_ops=12 * node.outputs[0].elements)


PACKAGE = htp.OpPackage(
    "example.ops",
    "1.0.0",
    [htp.Operator("SoftClip", same_shape, soft_clip, work=work, params={"limit": float}, split_axis=1, pieces=4)],
)


def model() -> bytes:
    """x + x, clipped softly."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"], name="add"),
        helper.make_node("SoftClip", ["sum"], ["y"], name="clip", domain="example.ops", limit=2.0),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("example.ops", 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return made


def main() -> None:
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    with htp.Backend() as backend:
        backend.register_op_package(PACKAGE)
        # On a thread of this process, as the operator is in this file; a device process would import a module.
        device = backend.create_device(soc="SM8650", host="thread")
        graph = device.create_context().compose_graph(htp.onnx.load(model()))
        graph.finalize()
        profile = backend.create_profile("detailed")
        result = graph.execute({"x": x}, profile=profile)["y"]
        steps = next(event for event in profile.events() if event.name == "Steps on the device")
        print(f"farthest from numpy: {np.abs(result - 2 * np.tanh(x)).max():.4f}, in half precision")
        print(f"steps on the device: {len(steps.events)}, four of which are the operator's pieces")
    for op in htp.estimate(model(), "SM8650", op_packages=[PACKAGE]).ops:
        print(f"{op.name}: {op.op}, {op.us:.1f} us (modelled)")


if __name__ == "__main__":
    onnx.checker.check_model(onnx.load_from_string(model()), check_custom_domain=False)
    main()
