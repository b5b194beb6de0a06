"""What a SoC makes of a portable program: kernels, steps, buffers."""

from __future__ import annotations

import math

import pytest
from compiler_graphs import GraphOf

from openhtp.compiler.driver import compile_graph, portable_program, program_for
from openhtp.compiler.sizes import weights_fill
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import ScaleOffset
from openhtp.cost import estimate
from openhtp.hw.catalog import find_soc
from openhtp.ir.graph import Graph
from openhtp.program.htp_program import Buffer, HtpProgram, Step, Unit

CONV = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}


def compiled(graph: Graph) -> HtpProgram:
    return compile_graph(graph, "SM8650")


def kernels(graph: Graph) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(kernel.kind, kernel.sources) for kernel in compiled(graph).kernels]


def silu() -> Graph:
    """Sigmoid and product with another op, which needs neither, between them; then a movement to the output."""
    graph = GraphOf()
    x = graph.input("x")
    gate = graph.node("Sigmoid", [x], "gate")
    other = graph.node("Tanh", [x], "other")
    swish = graph.node("ElementWiseMultiply", [x, gate], "swish")
    total = graph.node("ElementWiseAdd", [swish, other], "total")
    turned = graph.node("Transpose", [total], "turned", (1, 32, 8, 8), perm=[0, 3, 1, 2])
    graph.node("Reshape", [turned], "y", (1, 32, 64))
    return graph.finish("y")


def test_a_kernel_runs_where_its_last_op_did() -> None:
    assert kernels(silu()) == [
        ("unary", ("other",)),
        ("silu", ("gate", "swish")),
        ("add", ("total",)),
        ("transpose", ("turned", "y")),
    ]


def test_the_portable_program_keeps_every_node() -> None:
    graph = silu()
    assert [node.name for node in portable_program(graph).nodes] == [node.name for node in graph.nodes]


def test_units_steps_and_buffers() -> None:
    program = compiled(silu())
    busy = [kernel.units for kernel in program.kernels]
    assert busy == [{Unit.HVX, Unit.DMA}, {Unit.HVX, Unit.DMA}, {Unit.HVX}, {Unit.HVX, Unit.DMA}]
    assert program.steps == tuple(Step(place, place + 1) for place in range(4))
    size = 8 * 8 * 32 * 2  # floats are two bytes on the chip
    assert program.buffers == (
        Buffer("x", size, 0, 1),
        Buffer("other", size, 0, 2),
        Buffer("swish", size, 1, 2),
        Buffer("total", size, 2, 3),
        Buffer("y", size, 3, 3),
    )


def test_a_change_of_shape_alone_is_no_step() -> None:
    graph = GraphOf()
    x = graph.node("Tanh", [graph.input("x")], "t")
    flat = graph.node("Reshape", [x], "flat", (1, 2048))
    graph.node("Softmax", [flat], "y", (1, 2048))
    program = compiled(graph.finish("y"))
    assert [kernel.kind for kernel in program.kernels] == ["unary", "reshape", "softmax"]
    assert program.kernels[1].units == frozenset()
    assert program.steps == (Step(0, 1), Step(1, 3))
    assert estimate(program).steps == 2


def test_arithmetic_with_constants_is_one_pass() -> None:
    graph = GraphOf()
    x = graph.node("ElementWiseMultiply", [graph.input("x"), graph.constant("c")], "scaled")
    y = graph.node("ElementWiseAdd", [x, graph.constant("d")], "shifted")
    graph.node("Tanh", [y], "y")
    assert kernels(graph.finish("y")) == [("affine", ("scaled", "shifted")), ("unary", ("y",))]


def test_what_the_client_reads_ends_a_kernel() -> None:
    graph = GraphOf()
    x = graph.node("ElementWiseMultiply", [graph.input("x"), graph.constant("c")], "scaled")
    graph.node("ElementWiseAdd", [x, graph.constant("d")], "y")
    assert len(kernels(graph.finish("scaled", "y"))) == 2


@pytest.mark.parametrize("own", [False, True])
def test_a_convolution_and_its_prelu(own: bool) -> None:
    """Slopes may be computed, even after the convolution; but not be what is to stay unrounded."""
    graph = GraphOf(ScaleOffset(0.1, -128))
    x = graph.input("x")
    conv = graph.node("Conv2d", [x, graph.constant("w", (1, 1, 32, 32))], "conv", **CONV)
    slopes = conv if own else graph.node("Tanh", [x], "slopes")
    graph.node("Prelu", [conv, slopes], "y")
    found = compiled(graph.finish("y"))
    rounds = {node.name: node.rounds for node in found.nodes}
    if own:
        assert [kernel.sources for kernel in found.kernels] == [("conv",), ("y",)]
        assert all(rounds.values())
    else:
        assert [kernel.sources for kernel in found.kernels] == [("slopes",), ("conv", "y")]
        assert found.kernels[1].units == {Unit.HMX, Unit.HVX, Unit.DMA}
        assert rounds == {"slopes": True, "conv": False, "y": True}


def test_a_program_is_for_the_soc_it_was_compiled_for() -> None:
    portable = portable_program(silu())
    spec = find_soc("SM8550")
    assert program_for(portable, spec).soc is spec
    assert program_for(portable, "SM8550").soc == spec
    assert program_for(portable, "SM8550").source is portable
    slow, fast = (estimate(program_for(portable, soc)) for soc in ("SM8450", "SM8750"))
    assert (slow.soc, fast.soc) == ("SM8450", "SM8750")
    assert slow.total_us > fast.total_us
    with pytest.raises(InvalidArgument, match="'SM9999' is unknown"):
        program_for(portable, "SM9999")


@pytest.mark.parametrize(
    ("op", "shape", "channels", "group", "vendor"),
    [
        ("Conv2d", (3, 3, 48, 48), 48, 1, 74547),
        ("Conv2d", (1, 1, 64, 64), 64, 1, 9011),
        ("Conv2d", (3, 3, 4, 128), 128, 32, 76595),
        ("Conv2d", (3, 3, 40, 320), 320, 8, 598425),
        ("DepthWiseConv2d", (3, 3, 1, 960), 960, 0, 45056),
        ("DepthWiseConv2d", (7, 7, 1, 480), 480, 0, 99532),
    ],
)
def test_weights_take_whole_blocks_on_the_chip(
    op: str, shape: tuple[int, ...], channels: int, group: int, vendor: int
) -> None:
    """The last number is by how much the vendor's binary grows with each such convolution."""
    graph = GraphOf()
    x = graph.input("x", (1, 14, 14, channels))
    side = shape[0] // 2
    params = {"stride": [1, 1], "pad_amount": [[side, side], [side, side]]} | ({"group": group} if group else {})
    graph.node(op, [x, graph.constant("w", shape)], "y", (1, 14, 14, channels), **params)
    program = compiled(graph.finish("y"))
    stored = 2 * math.prod(shape) + weights_fill(program)
    assert abs(vendor - stored) < 0.08 * vendor + 1024


def test_quantized_weights_are_not_filled_up() -> None:
    graph = GraphOf(ScaleOffset(0.1, 0))
    x = graph.input("x", (1, 14, 14, 48))
    graph.node("Conv2d", [x, graph.constant("w", (1, 1, 48, 48))], "y", (1, 14, 14, 48), **CONV)
    assert weights_fill(compiled(graph.finish("y"))) == 0
