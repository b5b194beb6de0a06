"""The lessons of the document's showcase and of its page on batches and threads come out of the model."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.advising import advise, sub_to_conv
from openhtp.compiler.driver import portable_program, program_for
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.estimation import estimate, throughput, with_options
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph

SHAPE = (1, 480, 640, 9)
QUANT = ScaleOffset(0.02, -128)
CONV = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


def tensor(name: str, kind: TensorKind = TensorKind.NATIVE) -> TensorSpec:
    return TensorSpec(name, SHAPE, DType.UFIXED_POINT_8, QUANT, kind)


def showcase(op: str | None, activation: str = "Relu") -> Graph:
    """Two branches of convolution and activation, put together by one op, as the showcase's models are."""
    builder = GraphBuilder("showcase")
    x = tensor("x", TensorKind.APP_WRITE)
    builder.add_tensor(x, None)
    ends = []
    for branch in ("left", "right"):
        weights = TensorSpec(
            f"{branch}_w", (3, 3, 9, 9), DType.SFIXED_POINT_8, ScaleOffset(0.01, 0), TensorKind.STATIC
        )
        builder.add_tensor(weights, np.zeros(weights.shape, np.int8))
        conv, end = tensor(f"{branch}_conv"), tensor(f"{branch}_end")
        builder.add_tensor(conv, None)
        builder.add_tensor(end, None)
        builder.add_node(OpCall("Conv2d", f"{branch}_c", (x, weights), (conv,), CONV))
        inputs = (conv,)
        if activation == "Prelu":
            slopes = TensorSpec(f"{branch}_s", (9,), DType.UFIXED_POINT_8, QUANT, TensorKind.STATIC)
            builder.add_tensor(slopes, np.zeros(9, np.uint8))
            inputs = (conv, slopes)
        builder.add_node(OpCall(activation, f"{branch}_a", inputs, (end,)))
        ends.append(end)
    y = tensor("y", TensorKind.APP_READ)
    builder.add_tensor(y, None)
    builder.add_node(OpCall(op or "ElementWiseAdd", "both", tuple(ends), (y,)))
    return builder.finish()


def time(graph: Graph) -> float:
    return estimate(graph, "SM8650").total_us


def test_a_division_is_far_dearer_than_a_product() -> None:
    divided, multiplied = (time(showcase(f"ElementWise{op}")) for op in ("Divide", "Multiply"))
    assert divided > 1.5 * multiplied
    advice = {each.rule: each for each in advise(showcase("ElementWiseDivide"), "SM8650")}
    assert advice["div"].nodes == ("both",)
    assert advice["div"].gain_us == pytest.approx(divided - multiplied, rel=1e-6)


def test_a_subtraction_is_better_done_by_a_convolution() -> None:
    """The advice is the price of the network that the rewrite really makes, with no subtraction left in it."""
    program = portable_program(showcase("ElementWiseSubtract"))
    written = sub_to_conv(program)
    assert [node.op for node in written.nodes] == ["Conv2d", "Relu", "Conv2d"]
    before, after = (estimate(each, "SM8650").total_us for each in (program, written))
    assert after < 0.9 * before
    (found,) = [each for each in advise(program, "SM8650") if each.rule == "sub"]
    assert found.nodes == ("both",)
    assert found.gain_us == pytest.approx(before - after, rel=1e-6)


def test_prelu_costs_more_than_relu() -> None:
    """In 8 bits it is computed with the convolution, but each of its slopes on the HVX."""
    for form in (_as_float, lambda graph: graph):
        prelu, relu = (time(form(showcase(None, activation))) for activation in ("Prelu", "Relu"))
        assert prelu > 1.02 * relu
    (eight_bits,) = [each for each in advise(showcase(None, "Prelu"), "SM8650") if each.rule == "prelu"]
    assert eight_bits.nodes == ("left_c", "right_c")
    assert eight_bits.gain_us == pytest.approx(prelu - relu, rel=1e-6)
    advice = advise(_as_float(showcase(None, "Prelu")), "SM8650")
    assert {"left_a", "right_a"} == {name for each in advice if each.rule == "prelu" for name in each.nodes}


def test_other_activations_join_their_convolution_if_asked() -> None:
    program = portable_program(_as_float(showcase(None, "Sigmoid")))
    joined = with_options(program, {"advanced_activation_fusion": True})
    kernels = [program_for(each, "SM8650").kernels for each in (program, joined)]
    assert len(kernels[1]) == len(kernels[0]) - 2
    assert estimate(joined, "SM8650").total_us < estimate(program, "SM8650").total_us


def _as_float(graph: Graph) -> Graph:
    builder = GraphBuilder(graph.name)
    specs = {
        name: TensorSpec(name, spec.shape, DType.FLOAT_32, None, spec.kind) for name, spec in graph.tensors.items()
    }
    for name, spec in specs.items():
        builder.add_tensor(spec, np.zeros(spec.shape, np.float32) if name in graph.statics else None)
    for node in graph.nodes:
        inputs = tuple(specs[name] for name in node.inputs if name is not None)
        builder.add_node(OpCall(node.op, node.name, inputs, (specs[node.outputs[0]],), node.params))
    return builder.finish()


def test_threads_and_batches_of_resnet50_on_an_sm8550() -> None:
    """The document: about 1500 inferences a second with one thread, 2800 with two and batches of 5."""
    single = throughput("zoo:resnet50", "SM8550", precision="w8a8")
    both = throughput("zoo:resnet50", "SM8550", precision="w8a8", batch=5, threads=2)
    assert 1.5 < both / single < 2.2
    assert 1000 < single < 2000
    assert throughput("zoo:resnet50", "SM8550", precision="w8a8", threads=2) > single


def heavy_network(size: int) -> Graph:
    """Two convolutions with many weights, on a picture of this size."""
    builder = GraphBuilder("heavy")
    shape = (1, size, size, 256)
    x = TensorSpec("x", shape, DType.UFIXED_POINT_8, QUANT, TensorKind.APP_WRITE)
    builder.add_tensor(x, None)
    for name, kind in (("first", TensorKind.NATIVE), ("second", TensorKind.APP_READ)):
        weights = TensorSpec(
            f"{name}_w", (3, 3, 256, 256), DType.SFIXED_POINT_8, ScaleOffset(0.01, 0), TensorKind.STATIC
        )
        y = TensorSpec(f"{name}_y", shape, DType.UFIXED_POINT_8, QUANT, kind)
        builder.add_tensor(weights, np.zeros(weights.shape, np.int8))
        builder.add_tensor(y, None)
        builder.add_node(OpCall("Conv2d", name, (x, weights), (y,), CONV))
        x = y
    return builder.finish()


def test_a_batch_gains_more_the_smaller_the_picture_is() -> None:
    """Weights are fetched once for a batch; where activations fill VTCM and the time, that is worth little."""
    gains = []
    for size in (7, 28, 112):
        network = heavy_network(size)
        both = throughput(network, "SM8550", batch=8, threads=2), throughput(network, "SM8550", threads=2)
        gains.append(both[0] / both[1])
    assert gains[0] > 1.5
    assert gains[0] > gains[1] > gains[2]
