"""Options of a graph: one row each, from the argument through a context binary to the restored graph."""

from __future__ import annotations

import dataclasses
import re

import pytest

import openhtp as htp
from openhtp.compiler.driver import portable_program
from openhtp.options import GRAPH, Option, OptionValues, Whole
from openhtp.program import records
from openhtp.program.binary import BinaryInfo, read_binary, write_binary
from openhtp.runtime.objects import chosen_options
from tests.conftest import relu_graph

TWO_CORES = "SA8775P"


@pytest.fixture
def two_cores(backend: htp.Backend) -> htp.Device:
    return backend.create_device(soc=TWO_CORES, transport="inprocess")


def test_a_composed_graph_runs_on_the_core_it_is_given(two_cores: htp.Device) -> None:
    graph = two_cores.create_context().compose_graph(htp.onnx.load(htp.zoo.tiny_mlp()), core=1)
    assert graph.core == 1
    with pytest.raises(htp.InvalidArgument, match="has 2, counted from 0"):
        two_cores.create_context().compose_graph(htp.onnx.load(htp.zoo.tiny_mlp()), core=2)


def test_a_binary_remembers_the_core(two_cores: htp.Device) -> None:
    binary = relu_graph(two_cores.create_context(), core=1).context.get_binary()
    with two_cores.create_context_from_binary(binary) as restored:
        assert restored.graph("g").core == 1


def test_a_core_that_the_chip_has_not_is_refused_by_name(two_cores: htp.Device, shared_device: htp.Device) -> None:
    binary = relu_graph(two_cores.create_context(), core=1).context.get_binary()
    with pytest.raises(htp.InvalidArgument, match=r"graph 'g' is for core 1; SM8650 has 1, counted from 0"):
        shared_device.create_context_from_binary(binary)


def test_options_without_effect_are_taken_and_stored(two_cores: htp.Device) -> None:
    graph = relu_graph(two_cores.create_context(), optimization_level=3, num_cores=2)
    stored = read_binary(graph.context.get_binary()).graph_info("g").options
    assert (stored.optimization_level, stored.num_cores) == (3, 2)
    assert stored == graph.options


def test_adding_an_option_is_one_row(two_cores: htp.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the argument into the binary and out of it again, checked on the way."""
    row = Option(name="retries", kind=Whole(0, 9), default=1, about="How often.", in_binary=True)
    longer = dataclasses.replace(GRAPH, rows=(*GRAPH.rows, row))
    binary = relu_graph(two_cores.create_context()).context.get_binary()
    for module in (chosen_options, records):
        monkeypatch.setattr(module, "GRAPH", longer)
    context = two_cores.create_context()
    with pytest.raises(htp.InvalidArgument, match="retries is 10; expected a whole number from 0 to 9"):
        relu_graph(context, retries=10)
    chosen = relu_graph(context, retries=7).context.get_binary()
    assert two_cores.create_context_from_binary(chosen).graph("g").options.retries == 7
    assert two_cores.create_context_from_binary(binary).graph("g").options.retries == 1, "older than the row"
    monkeypatch.undo()
    assert two_cores.create_context_from_binary(chosen).graph("g").options == GRAPH.read({"priority": "normal"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("hvx_threads", -1, "graph option hvx_threads is -1; expected a whole number from 1 to 64"),
        ("precision", "float8", "graph option precision is 'float8'; expected one of float16, float32"),
        ("precision", None, "graph option precision is None"),
        ("priority", 1.5, "graph option priority is 1.5"),
        ("vtcm_mb", 4, "graph option vtcm_mb does not belong in a context binary"),
    ],
)
def test_a_bad_option_in_a_file_is_said_in_words(
    two_cores: htp.Device, monkeypatch: pytest.MonkeyPatch, name: str, value: object, said: str
) -> None:
    stored = {**GRAPH.defaults().stored(), name: value}
    monkeypatch.setattr(OptionValues, "stored", lambda _: stored)
    binary = write_binary([portable_program(htp.onnx.load(htp.zoo.tiny_mlp()))], BinaryInfo())
    with pytest.raises(htp.BadBinary, match=re.escape(said)):
        two_cores.create_context_from_binary(binary)


def test_unknown_arguments_are_told_those_spelled_alike(two_cores: htp.Device, backend: htp.Backend) -> None:
    context = two_cores.create_context()
    unknown: dict[str, object] = {"hvx_thread": 2}
    with pytest.raises(htp.InvalidArgument, match="did you mean hvx_threads"):
        relu_graph(context, **unknown)
    with pytest.raises(htp.InvalidArgument, match="'queue_dept' does not exist; did you mean queue_depth"):
        two_cores.create_context(queue_dept=2)  # type: ignore[call-arg]
    with pytest.raises(htp.InvalidArgument, match="device option 'thread' does not exist; did you mean threads"):
        backend.create_device(thread=2)  # type: ignore[call-arg]


def test_graphs_are_enabled_only_out_of_a_binary(two_cores: htp.Device) -> None:
    with pytest.raises(htp.InvalidArgument, match="enable_graphs is for create_context_from_binary"):
        two_cores.create_context(enable_graphs=["g"])
