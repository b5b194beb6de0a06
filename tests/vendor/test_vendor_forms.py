"""What a program looks like to the vendor's library; none of this needs the library."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from openhtp.compiler.driver import CompileOptions, portable_program, program_for
from openhtp.core.dtype import DType
from openhtp.core.enumerations import Priority
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.opcall import OpCall
from openhtp.core.precision import FloatPrecision
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.options import GRAPH
from openhtp.program.qnn_program import QnnProgram
from openhtp.vendor.forms import graph_options_of, nodes_of

U8 = DType.UFIXED_POINT_8


def clamped_program(clamp: str, params: dict[str, Any], **options: Any) -> QnnProgram:
    """An addition with a clamp behind it."""
    builder = GraphBuilder("g")
    a = TensorSpec("a", (1, 4), U8, ScaleOffset(0.1, -128), TensorKind.APP_WRITE)
    w = TensorSpec("w", (1, 4), U8, ScaleOffset(0.1, -128), TensorKind.STATIC)
    t = TensorSpec("t", (1, 4), U8, ScaleOffset(0.2, -128))
    y = TensorSpec("y", (1, 4), U8, ScaleOffset(0.05, 0), TensorKind.APP_READ)
    builder.add_tensor(a)
    builder.add_tensor(w, np.full((1, 4), 140, np.uint8))
    builder.add_tensor(t)
    builder.add_tensor(y)
    builder.add_node(OpCall("ElementWiseAdd", "add", (a, w), (t,)))
    builder.add_node(OpCall(clamp, "clamp", (t,), (y,), params))
    return portable_program(builder.finish(), CompileOptions(graph=GRAPH.read(options)))


@pytest.mark.parametrize(
    ("clamp", "params"), [("Relu", {}), ("Relu6", {}), ("ReluMinMax", {"min_value": -1.5, "max_value": 2.0})]
)
def test_the_library_gets_the_nodes_and_tensors_of_the_graph(clamp: str, params: dict[str, Any]) -> None:
    """What the emulator fuses it does not: the library has a compiler of its own."""
    program = clamped_program(clamp, params)
    (add, _), (clamped, given) = nodes_of(program)
    assert (add.op, clamped.op) == ("ElementWiseAdd", clamp)
    assert {name: value for name, (value, _, _) in given.items()} == params
    assert add.outputs == clamped.inputs == (program.tensors["t"],)
    assert clamped.outputs == program.outputs
    (kernel,) = program_for(program, "SM8650").kernels
    assert kernel.sources == ("add", "clamp")


def test_b14_options_that_the_library_is_not_told_of_are_named(caplog: pytest.LogCaptureFixture) -> None:
    graph_options_of(clamped_program("Relu", {}, priority="high", vtcm_mb=4, hvx_threads=2))
    assert "without effect there" not in caplog.text
    graph_options_of(clamped_program("Relu", {}, dlbc=True, priority="high"))
    assert "graph 'g': dlbc: not handed on to the vendor's library" in caplog.text


def test_an_open_end_of_a_clamp_fits_the_parameter() -> None:
    program = clamped_program("ReluMinMax", {"min_value": -1.0, "max_value": math.inf})
    ((_, _), (_, given)) = nodes_of(program)
    assert np.isfinite(np.float32(given["max_value"][0]))


def test_options_of_the_graph_are_handed_on() -> None:
    options = graph_options_of(
        clamped_program(
            "Relu",
            {},
            priority=Priority.HIGH,
            vtcm_bytes=(2 << 20) + (64 << 10),
            hvx_threads=2,
            optimization_level=3,
            precision=FloatPrecision.FLOAT32,
        )
    )
    assert (options.priority, options.vtcm_mb, options.hvx_threads) == (Priority.HIGH, 3, 2)
    assert options.optimization == 3
    assert not options.float16
    usual = graph_options_of(clamped_program("Relu", {}))
    assert (usual.float16, usual.optimization) == (True, None)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dynamic": (True, False)}, "dynamic dimensions"),
        ({"sparse_elements": 2}, "sparse"),
        ({"kind": TensorKind.OPTIONAL_APP_WRITE}, "OPTIONAL_APP_WRITE"),
        ({"kind": TensorKind.APP_READWRITE}, "APP_READWRITE"),
    ],
)
def test_tensors_that_the_library_does_not_have_are_refused(change: dict[str, Any], problem: str) -> None:
    program = clamped_program("Relu", {})
    tensors = {**program.tensors, "a": dataclasses.replace(program.tensors["a"], **change)}
    with pytest.raises(UnsupportedFeature, match=f"'a' (has|is) .*{problem}"):
        nodes_of(dataclasses.replace(program, tensors=tensors))
