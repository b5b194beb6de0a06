"""Backend, device, context, graph and memory: options, rules of life, and clear refusals."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest

import openhtp as htp
from openhtp.runtime.objects import lifecycle
from openhtp.runtime.objects.lifecycle import Life, State
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("depth", [0, 301, -1, 2.5, "ten", None, True])
def test_bad_queue_depths(shared_device: htp.Device, depth: object) -> None:
    with pytest.raises(htp.InvalidArgument, match="1 to 300") as caught:
        shared_device.create_context(queue_depth=depth)  # type: ignore[arg-type]
    assert caught.value.name == "QNN_CONTEXT_ERROR_INVALID_CONFIG"


@pytest.mark.parametrize("depth", [1, 10, 300])
def test_queue_depth_is_fixed_for_life(shared_device: htp.Device, depth: int) -> None:
    with shared_device.create_context(queue_depth=depth) as context:
        context.set_config(queue_depth=5)
        assert context.queue_depth == depth


def test_default_queue_depth_and_binaries_carry_none(shared_device: htp.Device) -> None:
    with shared_device.create_context(queue_depth=77) as context:
        relu_graph(context)
        binary = context.get_binary()
    with shared_device.create_context_from_binary(binary) as restored:
        assert restored.queue_depth == 10


def test_a_context_from_a_binary_has_the_depth_given(shared_device: htp.Device, graph: htp.Graph) -> None:
    binary = graph.context.get_binary()
    with shared_device.create_context_from_binary(binary, queue_depth=25) as restored:
        assert restored.queue_depth == 25
    with pytest.raises(htp.InvalidArgument, match="1 to 300") as caught:
        shared_device.create_context_from_binary(binary, queue_depth=301)
    assert caught.value.name == "QNN_CONTEXT_ERROR_INVALID_CONFIG"


@pytest.mark.parametrize(
    ("platform", "soc", "level"),
    [
        ("qnx", "SM8650", None),
        ("qnx", "SM8475", "INFO"),
        ("any", "SM8650", "INFO"),
        ("linux", "SM8650", "WARNING"),
        ("android", "SM8650", "WARNING"),
        ("windows", "SM8650", "WARNING"),
    ],
)
def test_a_queue_where_the_documents_have_none_is_told_of(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture, platform: str, soc: str, level: str | None
) -> None:
    device = backend.create_device(platform=platform, soc=soc, host="thread")
    with caplog.at_level(logging.INFO, "openhtp.runtime"):
        device.create_context(queue_depth=25).free()
        device.create_context().free()
    told = [each.levelname for each in caplog.records if "asynchronous execution on QNX" in each.getMessage()]
    assert told == ([level] if level else [])


def test_binary_gives_the_same_results_and_ids(shared_device: htp.Device, context: htp.Context) -> None:
    first, second = relu_graph(context, "first"), relu_graph(context, "second", (2, 3), priority="high")
    binary = context.get_binary()
    assert context.get_binary_size() == len(binary)
    with shared_device.create_context_from_binary(binary, queue_depth=50) as restored:
        assert list(restored.graphs) == ["first", "second"]
        for graph in (first, second):
            twin = restored.graph(graph.name)
            x = ramp(graph.tensors["x"].shape)
            np.testing.assert_array_equal(twin.execute({"x": x})["y"], graph.execute({"x": x})["y"])
            assert twin.tensors["x"].id == graph.tensors["x"].id
            # Tensors of whoever built the binary still fit, by id.
            np.testing.assert_array_equal(twin.execute({graph.tensors["x"].id: x})["y"], np.maximum(x, 0))
        assert restored.graph("second").priority is htp.Priority.HIGH
        with pytest.raises(htp.WrongState, match="takes no new graphs"):
            restored.create_graph("third")


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
def test_cut_binaries_are_refused(shared_device: htp.Device, graph: htp.Graph, cut: int) -> None:
    with pytest.raises(htp.BadBinary):
        shared_device.create_context_from_binary(graph.context.get_binary()[:cut])


def test_flipped_bits_in_a_binary_are_noticed(shared_device: htp.Device, graph: htp.Graph) -> None:
    binary = bytearray(graph.context.get_binary())
    for place in range(0, len(binary), max(1, len(binary) // 60)):
        binary[place] ^= 0x10
        with pytest.raises(htp.BadBinary):
            shared_device.create_context_from_binary(binary)
        binary[place] ^= 0x10


def test_binary_of_the_wrong_kind(shared_device: htp.Device) -> None:
    with pytest.raises(htp.InvalidArgument, match="expected"):
        shared_device.create_context_from_binary(1.5)  # type: ignore[arg-type]
    with pytest.raises(htp.BadBinary, match="cannot read 'path"):
        shared_device.create_context_from_binary("path.bin")


def test_unknown_enabled_graph(shared_device: htp.Device, graph: htp.Graph) -> None:
    with pytest.raises(htp.UsageError, match="'nothing'"):
        shared_device.create_context_from_binary(graph.context.get_binary(), enable_graphs=["nothing"])


def test_saving_before_finalize(context: htp.Context) -> None:
    with pytest.raises(htp.WrongState, match="no graphs"):
        context.get_binary()
    context.create_graph("g")
    with pytest.raises(htp.WrongState) as caught:
        context.get_binary()
    assert caught.value.name == "QNN_CONTEXT_ERROR_NOT_FINALIZED"


def test_building_after_finalize(graph: htp.Graph) -> None:
    with pytest.raises(htp.WrongState) as caught:
        graph.add_tensor("z", (1,), "float32")
    assert (caught.value.name, caught.value.code) == ("QNN_GRAPH_ERROR_GRAPH_FINALIZED", 6024)
    with pytest.raises(htp.WrongState):
        graph.add_node("Relu", inputs=["x"], outputs=["y"])
    with pytest.raises(htp.WrongState):
        graph.finalize()
    graph.execute({"x": ramp()})


@pytest.mark.parametrize("name", ["", None, 5])
def test_bad_graph_names(context: htp.Context, name: object) -> None:
    with pytest.raises(htp.InvalidArgument) as caught:
        context.create_graph(name)  # type: ignore[arg-type]
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_NAME"


def test_graph_name_taken_or_unknown(graph: htp.Graph) -> None:
    with pytest.raises(htp.NameClash, match="'g' already exists"):
        graph.context.create_graph("g")
    with pytest.raises(htp.InvalidArgument, match="it has 'g'") as caught:
        graph.context.graph("h")
    assert caught.value.name == "QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("vtcm_mb", -1),
        ("vtcm_mb", "4"),
        ("hvx_threads", 0),
        ("hvx_threads", 1000),
        ("precision", "float8"),
        ("priority", "urgent"),
        ("priority", 501),
        ("priority", -1),
    ],
)
def test_bad_graph_options(context: htp.Context, option: str, value: object) -> None:
    with pytest.raises(htp.InvalidArgument, match="expected"):
        context.create_graph("g", **{option: value})  # type: ignore[arg-type]
    assert context.graphs == {}


def test_vtcm_larger_than_the_device_is_refused_at_finalize(context: htp.Context) -> None:
    with pytest.raises(htp.OutOfMemory, match=r"64 MiB.*8 MiB"):
        relu_graph(context, vtcm_mb=64)


def test_more_threads_than_the_device_has_are_refused_at_once(context: htp.Context) -> None:
    with pytest.raises(htp.InvalidArgument, match="hvx_threads is 40; SM8650 has 4 HVX threads") as caught:
        context.create_graph("h", hvx_threads=40)
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_ARGUMENT"
    assert context.graphs == {}


def test_priority_cannot_change_after_the_first_asynchronous_execution(graph: htp.Graph) -> None:
    graph.set_config(priority="low")
    graph.execute({"x": ramp()})
    graph.set_config(priority="high")  # as long as nothing was queued
    assert graph.priority is htp.Priority.HIGH
    graph.execute_async({"x": ramp()}).result(PATIENCE_S)
    with pytest.raises(htp.WrongState, match="cannot change after its first asynchronous execution"):
        graph.set_config(priority="low")
    assert graph.priority is htp.Priority.HIGH
    with pytest.raises(htp.WrongState):
        graph.context.set_config(priority="low")


def test_a_graph_without_a_priority_has_the_default(context: htp.Context) -> None:
    graph = context.create_graph("plain")
    assert graph.priority is htp.Priority.NORMAL
    assert graph.priority is htp.Priority.parse("QNN_PRIORITY_DEFAULT")
    assert context.create_graph("urgent", priority=200).priority is htp.Priority.HIGH


def test_context_priority_reaches_all_graphs(context: htp.Context) -> None:
    graphs = [relu_graph(context, name) for name in ("a", "b")]
    context.set_config(priority="critical")
    assert [graph.priority.name for graph in graphs] == ["CRITICAL", "CRITICAL"]


@pytest.mark.parametrize(
    "options",
    [
        {"transport": "pigeon"},
        {"soc": "SM0001"},
        {"policy": "lottery"},
        {"platform": "amiga"},
        {"threads": 0},
        {"name": "../up"},
    ],
    ids=str,
)
def test_bad_device_options(backend: htp.Backend, options: dict[str, object]) -> None:
    with pytest.raises(htp.InvalidArgument):
        backend.create_device(**options)  # type: ignore[arg-type]


def test_freed_objects_say_so(backend: htp.Backend) -> None:
    device = backend.create_device(transport="inprocess")
    context = device.create_context()
    memory = context.register_memory(8)
    signal, profile = backend.create_signal(), backend.create_profile()
    for item, name in (
        (signal, "SIGNAL"),
        (profile, "PROFILE"),
        (memory, "MEM"),
        (context, "CONTEXT"),
        (device, "DEVICE"),
    ):
        item.free()
        with pytest.raises(htp.InvalidHandle, match="freed") as caught:
            item.free()
        assert caught.value.name == f"QNN_{name}_ERROR_INVALID_HANDLE"
    backend.free()
    with pytest.raises(htp.InvalidHandle):
        backend.create_device()
    backend.__init__()  # type: ignore[misc]  # so that the fixture has something to free


def test_life_cycle_table_is_complete() -> None:
    """Whatever is refused raises one of ours, with a name and a number."""
    kinds = {kind for kind, _ in lifecycle.ALLOWED}
    calls = {call for allowed in lifecycle.ALLOWED.values() for call in allowed}
    for kind in kinds:
        for state in State:
            for call in calls:
                life = Life(kind, "x", state)
                if call in lifecycle.ALLOWED.get((kind, state), ()):
                    life.require(call)
                    continue
                with pytest.raises(htp.QnnError) as caught:
                    life.require(call)
                assert caught.value.code > 0
                assert life.state is state


_ENDS = ("lost", "freed", "foreign")
_LEGAL = {
    State.DEFERRED: ("finalized", *_ENDS),
    **dict.fromkeys((State.LIVE, State.FINALIZED, State.PREPARED, State.DISABLED, State.SUBGRAPH), _ENDS),
    State.BUILDING: ("finalized", "only prepared", "deferred", "disabled", "subgraph", *_ENDS),
    State.LOST: ("freed", "foreign"),
    State.FREED: (),
    State.FOREIGN: (),
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(State, State)), ids=lambda state: state.value)
def test_illegal_changes_raise_and_change_nothing(old: State, new: State) -> None:
    life = Life("graph", "x", old)
    before = life.refusal("nothing").message
    if new.value in _LEGAL[old]:
        life.become(new)
        assert life.state is new
        return
    with pytest.raises(htp.InternalError, match=f"graph 'x' is {old.value} and cannot become {new.value}"):
        life.become(new)
    assert (life.state, life.refusal("nothing").message) == (old, before)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(State, State)), ids=lambda state: state.value)
def test_an_end_may_come_from_several_sides(old: State, new: State) -> None:
    """Lost and lost again, freed and then lost: the last word was said. A beginning is no end."""
    life = Life("graph", "x", old)
    if new not in (State.LOST, State.FREED, State.FOREIGN):
        with pytest.raises(htp.InternalError, match="does not end by becoming"):
            life.end(new)
        assert life.state is old
        return
    life.end(new)
    assert life.state is (new if new.value in _LEGAL[old] else old)


@pytest.mark.parametrize(("end", "error"), [(State.FREED, htp.InvalidHandle), (State.LOST, htp.DeviceLost)])
def test_a_call_cannot_finish_on_what_came_to_its_end(end: State, error: type[htp.QnnError]) -> None:
    life = Life("graph", "x", State.BUILDING)
    life.end(end)
    with pytest.raises(error, match="cannot finalize graph 'x'"):
        life.finish("finalize", State.FINALIZED)
    assert life.state is end


def test_memory_layout(context: htp.Context) -> None:
    graph = relu_graph(context, shape=(1, 10))
    memory = context.register_memory(256)
    x, y = memory.array("x"), memory.array(graph.tensors["y"])
    assert memory.array("x") is x
    assert context.opened.memory.place_of(x).offset == 0  # type: ignore[union-attr]
    assert context.opened.memory.place_of(y).offset == 64  # type: ignore[union-attr]
    with pytest.raises(htp.InvalidArgument, match="needs 40 bytes at offset 240"):
        memory.array("y", offset=240)
    with pytest.raises(htp.InvalidArgument, match="no graph of this context has it"):
        memory.array("nothing")
    relu_graph(context, "other", (1, 11))
    with pytest.raises(htp.InvalidArgument, match="different shapes"):
        context.register_memory(64).array("x")


@pytest.mark.parametrize("size", [0, -1, "8", None, 1.5])
def test_bad_memory_sizes(context: htp.Context, size: object) -> None:
    with pytest.raises(htp.InvalidArgument, match="expected a whole number above 0"):
        context.register_memory(size)  # type: ignore[arg-type]


def test_an_app_is_queued_on_a_thread_of_this_process_too() -> None:
    with htp.Backend() as backend:
        app = backend.create_device(host="thread").create_context().create_app("camera")
        assert app.run_async(10).result(PATIENCE_S) == {}
