"""The networks of the document's linting showcase. It gives no sizes: here is a picture of 2560 x 1440 pixels.

VTCM does not hold the results of both branches then, as the document's traffic shows. Chip, channels and size were
chosen among others as those that come nearest to its figures; with more channels the HMX decides here.
"""

from __future__ import annotations

import numpy as np

from openhtp.compiler.driver import portable_program, program_for
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph
from openhtp.records.schematic import Schematic
from openhtp.report.schematic import schematic_of

SOC = "SM8550"
CHANNELS = 3
EDGE = 4
SHAPE = (1, 1440 + 2 * EDGE, 2560 + 2 * EDGE, CHANNELS)
QUANT = ScaleOffset(0.02, -128)


class ShowcaseBuilder:
    """A network in the making: each method adds a node and gives its result."""

    def __init__(self) -> None:
        self.graph = GraphBuilder("showcase")
        self.source = self.tensor("x", SHAPE, TensorKind.APP_WRITE)

    def tensor(self, name: str, shape: tuple[int, ...], kind: TensorKind = TensorKind.NATIVE) -> TensorSpec:
        spec = TensorSpec(name, shape, DType.UFIXED_POINT_8, QUANT, kind)
        self.graph.add_tensor(spec, None)
        return spec

    def constant(self, name: str, shape: tuple[int, ...], dtype: DType = DType.SFIXED_POINT_8) -> TensorSpec:
        quant = ScaleOffset(0.01, 0) if dtype is DType.SFIXED_POINT_8 else QUANT
        spec = TensorSpec(name, shape, dtype, quant, TensorKind.STATIC)
        self.graph.add_tensor(spec, np.ones(shape, dtype.numpy))
        return spec

    def conv(
        self, name: str, x: TensorSpec, channels: int, activation: str = "Relu", kernel: int = 3
    ) -> TensorSpec:
        """A convolution, and an activation behind it unless that is empty."""
        weights = self.constant(f"{name}_w", (kernel, kernel, x.shape[3], channels))
        result = self.tensor(f"{name}_out", (*x.shape[:3], channels))
        pad = kernel // 2
        params = {"stride": [1, 1], "pad_amount": [[pad, pad], [pad, pad]]}
        self.graph.add_node(OpCall("Conv2d", name, (x, weights), (result,), params))
        if not activation:
            return result
        slopes = (self.constant(f"{name}_slopes", (channels,), DType.UFIXED_POINT_8),)
        active = self.tensor(f"{name}_act", result.shape)
        inputs = (result, *slopes) if activation == "Prelu" else (result,)
        self.graph.add_node(OpCall(activation, f"{name}_{activation.lower()}", inputs, (active,)))
        return active

    def begin(self, activation: str) -> TensorSpec:
        """What all of them begin with: a convolution, and a slice of its result."""
        start = self.conv("convStart", self.source, CHANNELS, activation)
        size, height, width, depth = start.shape
        ranges = [[0, size, 1], [EDGE, height - EDGE, 1], [EDGE, width - EDGE, 1], [0, depth, 1]]
        result = self.tensor("stride_out", (size, height - 2 * EDGE, width - 2 * EDGE, depth))
        params = {"ranges": np.array(ranges, np.int32)}
        self.graph.add_node(OpCall("StridedSlice", "stride", (start,), (result,), params))
        return result

    def end(self, x: TensorSpec, also: TensorSpec) -> Graph:
        """What all of them end with: the begin is added."""
        result = self.tensor("y", x.shape, TensorKind.APP_READ)
        self.graph.add_node(OpCall("ElementWiseAdd", "add", (x, also), (result,)))
        return self.graph.finish()


def two_branches(op: str) -> Graph:
    """Models 1 and 2: two branches of two convolutions that meet in ``op``."""
    builder = ShowcaseBuilder()
    begin = builder.begin("Relu")
    left, right = (builder.conv(f"conv{side}1", begin, CHANNELS) for side in ("Left", "Right"))
    right, left = builder.conv("convRight2", right, CHANNELS), builder.conv("convLeft2", left, CHANNELS)
    met = builder.tensor("met", left.shape)
    builder.graph.add_node(OpCall(op, "meet", (left, right), (met,)))
    return builder.end(met, begin)


def merged(activation: str) -> Graph:
    """Model 1 optimized, or model 3 with PReLU: both branches in one, and a convolution that subtracts."""
    builder = ShowcaseBuilder()
    begin = builder.begin(activation)
    first = builder.conv("convCombined1", begin, 2 * CHANNELS, activation)
    second = builder.conv("convCombined2", first, 2 * CHANNELS, activation)
    return builder.end(builder.conv("subConv", second, CHANNELS, "", kernel=1), begin)


def scheduled(graph: Graph, soc: str = SOC) -> Schematic:
    """Compiled, with everything that happens on the chip."""
    return schematic_of(program_for(portable_program(graph), soc))
