"""Profile handles by level: which events, in which order, and what each of them is."""

from __future__ import annotations

import gc
import weakref

import pytest

import openhtp as htp
from openhtp.records.profile import EVENT_NAMES, Method, walk
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

BASIC = [8001, 405, 3001, 3002, 3009, 3004, 3012, 400]
DETAILED = [8001, 405, 3001, 3002, 3009, 3010, 3011, 407, 3003, 3004, 3012, 400]
LINTING = [6001 if number == 3003 else number for number in DETAILED]
OPTRACE = [*DETAILED[:-1], 600, 400]


def _nested(profile: htp.Profile, *types: int) -> bool:
    """Whether each of these lasted at least as long as the next, and the last one lasted at all."""
    values = [event.value for number in types if (event := profile.event(number)) is not None]
    return len(values) == len(types) and values == sorted(values, reverse=True) and values[-2] > 0


@pytest.mark.parametrize(
    ("level", "types"), [("basic", BASIC), ("detailed", DETAILED), ("linting", LINTING), ("optrace", OPTRACE)]
)
def test_events_by_level(shared_backend: htp.Backend, graph: htp.Graph, level: str, types: list[int]) -> None:
    profile = shared_backend.create_profile(level)
    graph.execute({"x": ramp()}, profile=profile)
    events = profile.events()
    assert [event.type for event in events] == types
    assert profile.events() is events  # worked out once
    for event in walk(events):
        known = EVENT_NAMES.get(event.type)
        assert known is not None or event.type in (90_001, 90_002)
        cycles = event.unit == "cycles" or event.type in (3011, 600, 5004, 5005, 5006)
        assert event.modelled == cycles, event
    assert _nested(profile, 400, 3001, 3002, 3004)


def test_nodes_are_below_the_cycles(shared_backend: htp.Backend, graph: htp.Graph) -> None:
    profile = shared_backend.create_profile(2)
    graph.execute({"x": ramp()}, profile=profile)
    cycles = profile.event(3003)
    assert cycles is not None
    assert [row.type for row in cycles.events] == [404] * len(cycles.events)
    assert cycles.events[2].name.endswith(":OpId_4 (cycles)")
    assert cycles.value == sum(row.value for row in cycles.events) > 0


def test_a_queued_call_and_a_limit(shared_backend: htp.Backend, graph: htp.Graph) -> None:
    profile = shared_backend.create_profile("basic", max_events=3)
    graph.execute_async({"x": ramp()}, profile=profile).result(PATIENCE_S)
    assert [event.type for event in profile.events()] == BASIC[:3]
    message = profile.message()
    assert message is not None
    assert message.method is Method.EXECUTE_ASYNC
    assert message.run is not None
    assert message.run.received_ns <= message.run.started_ns <= message.run.finished_ns


def test_optrace_tells_its_schematic(shared_backend: htp.Backend, graph: htp.Graph) -> None:
    profile = shared_backend.create_profile("optrace")
    assert profile.schematic() is None
    assert profile.message() is None
    graph.execute({"x": ramp()}, profile=profile)
    message, schematic = profile.message(), profile.schematic()
    assert message is not None
    assert schematic is not None
    assert len(message.schematic) == 32
    assert schematic.graph == graph.name
    assert schematic.cycles > 0
    assert repr(profile).startswith("<Profile optrace, ")


@pytest.mark.parametrize("level", ["basic", "linting"])
def test_optrace_needs_detailed(shared_backend: htp.Backend, level: str) -> None:
    with pytest.raises(htp.InvalidArgument, match=f"optrace with the level {level}; expected detailed"):
        shared_backend.create_profile(level, optrace=True)
    with pytest.raises(htp.InvalidArgument, match="max_events"):
        shared_backend.create_profile(level, max_events=0)


def test_finalize_has_stages_when_detailed(shared_backend: htp.Backend, context: htp.Context) -> None:
    graph = context.create_graph("staged")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    profile = shared_backend.create_profile("detailed")
    graph.finalize(profile=profile)
    assert [event.type for event in profile.events()] == [2001, 2002, 2003, 300]
    assert _nested(profile, 300, 2001, 2002, 2003)
    whole = profile.event(300)
    assert whole is not None
    assert [stage.name for stage in whole.events][4] == "VTCM Allocation"
    assert len(whole.events) == 8
    assert sum(stage.value for stage in whole.events) <= whole.value


def test_a_profile_on_two_calls(shared_backend: htp.Backend, context: htp.Context) -> None:
    from openhtp.testing import hold, release

    graph, profile = relu_graph(context, "busy"), shared_backend.create_profile("detailed")
    hold(context.device)
    first = graph.execute_async({"x": ramp()}, profile=profile)
    with pytest.raises(htp.WrongState, match="create one per queued call") as caught:
        graph.execute_async({"x": ramp()}, profile=profile)
    assert caught.value.name == "QNN_GRAPH_ERROR_PROFILE_IN_USE"
    with pytest.raises(htp.WrongState) as caught:
        profile.free()
    assert caught.value.name == "QNN_PROFILE_ERROR_HANDLE_IN_USE"
    release(context.device)
    first.result(PATIENCE_S)
    assert profile.event(400) is not None


def test_a_kept_profile_keeps_no_graph_alive(shared_backend: htp.Backend, shared_device: htp.Device) -> None:
    context = shared_device.create_context()
    graph = relu_graph(context, "gone")
    profile = shared_backend.create_profile("detailed")
    graph.execute({"x": ramp()}, profile=profile)
    context.free()
    alive = weakref.ref(graph)
    del graph, context
    gc.collect()
    assert alive() is None
    assert profile.event(3003) is not None


def test_creation_and_end_of_a_context(shared_backend: htp.Backend) -> None:
    device = shared_backend.create_device()
    context = device.create_context()
    relu_graph(context, "kept")
    blob = context.get_binary()
    context.free()
    profile = shared_backend.create_profile("basic")
    first = device.create_context_from_binary(blob, profile=profile, dsp_memory_profiling_enabled=True)
    assert [event.type for event in profile.events()] == [1000, 1002, 1003, 1004, 100]
    before = profile.events()[0]
    assert (before.name, before.unit) == ("DSP:before_context_created", "bytes")
    assert before.value == 0, "the device holds nothing before it"
    second = device.create_context_from_binary(blob, profile=profile, dsp_memory_profiling_enabled=True)
    assert [event.type for event in profile.events()] == [1002, 1003, 1004, 100]  # not the first any more
    assert _nested(profile, 100, 1002, 1003, 1004)
    message = profile.message()
    assert message is not None
    assert message.method is Method.CREATE_FROM_BINARY
    first.free(profile=profile)
    assert [event.name for event in profile.events()] == [
        "RPC (deinit) time",
        "QNN Accelerator (deinit) time",
        "Accelerator (deinit) time",
        "QNN (deinit) time",
    ]
    assert _nested(profile, 500, 4001, 4002, 4003)
    second.set_config(dsp_memory_profiling_enabled=True)
    second.free(profile=profile)
    after = profile.events()[-1]
    assert (after.name, after.value) == ("DSP:after_context_freed", before.value)
    device.free()


def test_a_refused_binary_leaves_the_profile_free(shared_backend: htp.Backend, shared_device: htp.Device) -> None:
    profile = shared_backend.create_profile("basic")
    with pytest.raises(htp.BadBinary):
        shared_device.create_context_from_binary(b"no binary", profile=profile)
    assert profile.events() == ()
    profile.free()


def test_a_chip_without_half_precision_has_no_cycles_of_floats(shared_backend: htp.Backend) -> None:
    with shared_backend.create_device(soc="SM8350") as device:
        graph = relu_graph(device.create_context(), "g", precision="float32")
        profile = shared_backend.create_profile("optrace")
        graph.execute({"x": ramp()}, profile=profile)
        assert [event.type for event in profile.events()] == [n for n in DETAILED if n != 3003]
        assert profile.schematic() is None
        message = profile.message()
        assert message is not None
        assert message.schematic == ""


def test_cycles_are_at_the_clocks_of_the_votes_in_force(shared_backend: htp.Backend) -> None:
    with shared_backend.create_device(soc="SM8650") as device:
        graph = relu_graph(device.create_context(), "g", (1, 64, 64, 64))
        inputs = {"x": ramp((1, 64, 64, 64))}
        found = {}
        for corner in ("svs", "max"):
            profile = shared_backend.create_profile("detailed")
            with device.create_power_config() as power:
                power.set(dcvs=htp.DcvsVote(core=corner, bus="max"))
                graph.execute(inputs, profile=profile)
            schematic = profile.schematic()
            assert schematic is not None
            found[corner] = schematic
        # The DMA is as quick as before, which is fewer cycles of a slower core.
        assert found["svs"].clock_hz == pytest.approx(0.38 * found["max"].clock_hz)
        assert found["svs"].cycles < found["max"].cycles
        assert found["svs"].cycles / found["svs"].clock_hz > found["max"].cycles / found["max"].clock_hz


def test_power_up_is_modelled_from_cold_to_warm(shared_backend: htp.Backend) -> None:
    with shared_backend.create_device() as device:
        graph = relu_graph(device.create_context(), "g")
        profile = shared_backend.create_profile("detailed")
        found = []
        for _ in range(2):
            graph.execute({"x": ramp()}, profile=profile)
            event = profile.event(3011)
            assert event is not None
            assert event.modelled
            found.append(event.value)
        assert found == [4135, 26]
