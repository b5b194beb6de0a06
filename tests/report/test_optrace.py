"""Op traces: what is in them, and that they keep the rules of the format."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, strategies as st
from tests.report.schematics import SMALL, op, schematic
from tests.report.showcase_networks import SOC, scheduled, two_branches
from tests.report.trace_rules import check_trace

from openhtp.compiler.driver import CompileOptions, portable_program, program_for
from openhtp.cost import schedule_of
from openhtp.estimation import compiled as compiled_model, with_options
from openhtp.onnx import load
from openhtp.records.profile import Pause, RunTimes
from openhtp.records.schematic import FIRST_NODE, SYSTEM, OpRole, Region
from openhtp.report.linting import lint_to_chrome, linting_event
from openhtp.report.optrace import TraceOptions, optrace_to_chrome, runs_to_runtrace
from openhtp.report.schematic import schematic_of
from openhtp.zoo import small_cnn

ALL = TraceOptions(enable_input_output_flow_events=True, enable_sequencer_flow_events=True)
RUN = RunTimes(received_ns=1000, started_ns=1100, finished_ns=1600)


@pytest.fixture(scope="module")
def compiled():
    program = portable_program(load(small_cnn()), CompileOptions())
    return schematic_of(program_for(program, "SM8650"))


def ops_of(events, pid=0):
    return {event["args"]["ID"]: event for event in events["X"] if event["cat"] == "op" and event["pid"] == pid}


def test_every_op_is_there_twice():
    events = check_trace(optrace_to_chrome(SMALL, RUN, options=ALL))
    overview = ops_of(events)
    assert len(overview) == len(SMALL.executed) == 6
    assert sum(event["cat"] == "op" for event in events["X"]) == 12
    conv = overview["0x0000000200000004"]
    assert conv["dur"] == 100
    args = conv["args"]
    assert args["QNN Op Name"] == "conv"
    assert args["Framework Ops"] == ["/conv"]
    assert args["Inputs Ops"] == ["0x0000000100000004"]
    assert args["Flags"] == ["uses_hmx"]
    assert (args["Start Cycle"], args["Duration (cycles)"], args["Dominant Path Cycles"]) == (50, 100, 100)
    names = {event["args"]["name"] for event in events["M"] if event["name"] == "process_name"}
    assert {"Core 0 Overview", "QNN::conv", "QNN::sub", "g Runtraces"} <= names
    threads = {event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"}
    assert {"Type: HMX", "Type: HVX", "Type: DMA", "Non Executed Tensors"} <= threads


def test_counters_follow_ops_and_regions():
    events = check_trace(optrace_to_chrome(SMALL, None))
    found = {}
    for event in events["C"]:
        (value,) = event["args"].values()
        found.setdefault(event["name"], []).append((event["ts"], value))
    assert found["DRAM read"][0] == (0, 10)  # 500 bytes in 50 cycles
    assert (80, 10) in found["DRAM read"]
    assert found["VTCM alloc"] == [(0, 500), (50, 600), (150, 100), (220, 0)]
    assert max(value for _, value in found["DRAM write"]) == 3.333


def test_cores_have_counters_and_overviews_of_their_own():
    whole = schematic(
        op(1, 4, "HMX", 0, 10, vtcm_read=7),
        op(2, 5, "HVX", 5, 10, core=1, vtcm_read=9),
        regions=(Region("a", 0, 0, 64, 0, 10), Region("b", 1, 0, 32, 5, 15)),
        cores=2,
    )
    events = check_trace(optrace_to_chrome(whole, None))
    names = {event["args"]["name"] for event in events["M"] if event["name"] == "process_name"}
    assert {"Core 0 Overview", "Core 1 Overview"} <= names
    peaks = {}
    for event in events["C"]:
        key = event["pid"], event["name"]
        peaks[key] = max(peaks.get(key, 0), *event["args"].values())
    assert (peaks[0, "VTCM alloc"], peaks[1, "VTCM alloc"]) == (64, 32)
    assert (peaks[0, "VTCM read"], peaks[1, "VTCM read"]) == (0.7, 0.9)


def test_flows_only_if_asked_for():
    assert not check_trace(optrace_to_chrome(SMALL, None))["s"]
    flows = check_trace(optrace_to_chrome(SMALL, None, options=ALL))["s"]
    kinds = {event["cat"]: event["name"] for event in flows}
    assert kinds == {"input_output": "InputOutputFlowEvents", "sequencer": "SequencerFlowEvents"}


def test_switches():
    quiet = TraceOptions(runtrace=False, memory_info=False, traceback=False)
    events = check_trace(optrace_to_chrome(SMALL, RUN, options=quiet))
    assert not events["C"]
    assert not any(event["cat"] == "runtrace" for event in events["X"])
    assert not any("Framework Ops" in event["args"] for event in events["X"])


def test_a_run_that_made_way_is_drawn_with_its_gap():
    # 250 cycles in 500 ns of computing: half a cycle each.
    pause = Pause(step=1, asked_ns=1290, released_ns=1300, granted_ns=1500, restored_ns=1510)
    run = RunTimes(received_ns=1000, started_ns=1100, finished_ns=1800, pauses=(pause,))
    events = check_trace(optrace_to_chrome(SMALL, run, (("conv",), ("sub", "relu")), ALL))
    at = {name: event["ts"] for name, event in ops_of(events).items()}
    assert at["0x0000000200000004"] == 50 + 50  # behind the 100 ns of acquiring
    assert at["0x0000000400000005"] == 50 + 160 + 100  # and behind the gap
    yields = [(e["name"], e["ts"], e["dur"]) for e in events["X"] if e["name"].endswith("VTCM")]
    assert yields == [("Save VTCM", 145, 5), ("Re-acquire VTCM", 150, 100), ("Restore VTCM", 250, 5)]
    whole = next(event for event in events["X"] if event["name"] == "QNN DSP Execute")
    assert (whole["dur"], whole["args"]["measured_us"]) == (400, 0.8)


def test_the_compiled_network(compiled):
    events = check_trace(optrace_to_chrome(compiled, RUN, options=ALL))
    overview = ops_of(events)
    assert sum(event["dur"] for event in overview.values()) == sum(op.cycles for op in compiled.executed)
    owners = {event["args"]["QNN Op Name"] for event in overview.values()}
    nodes = {node.name for node in compiled.nodes if node.number >= FIRST_NODE and node.into is None}
    assert nodes <= owners
    fused = {node.name: node.into for node in compiled.nodes if node.into is not None}
    assert fused  # activations went into what comes before them
    reads = sum(op.dram_read for op in compiled.executed)
    assert reads > 0
    assert all(op.role is not OpRole.READ or op.dram_read == op.vtcm_write for op in compiled.executed)


def test_runtrace_counts_ticks():
    second = RunTimes(received_ns=1200, started_ns=1600, finished_ns=3_000_000)  # queued behind the first
    document = runs_to_runtrace(SMALL, [RUN, second])
    events = check_trace(document)
    assert document["header"]["artifact_type"] == "RUN_TRACE"
    names = [event["name"] for event in events["X"]]
    assert names == ["QNN DSP Execute", "VTCM Acquire", "Resource Power On", "Graph Execute"] * 2
    whole = events["X"][4]
    assert whole["args"]["stat_end_ticks"] == (3_000_000 - 1000) * 192 // 10_000
    assert whole["args"]["summary_time_us"] == 2998.8


def test_linting_as_a_trace():
    events = check_trace(lint_to_chrome(linting_event(SMALL), "g"))
    main = [(event["name"], event["ts"], event["dur"]) for event in events["X"] if event["tid"] == 1]
    assert main == [
        ("Wait: conv:OpId_4", 0, 50),
        ("conv:OpId_4", 50, 100),
        ("Wait: sub:OpId_5", 150, 10),
        ("sub:OpId_5", 160, 60),
        ("Output OpId_3", 220, 30),
    ]


OPS = st.lists(
    st.tuples(st.integers(4, 6), st.sampled_from(["HMX", "HVX", "DMA"]), st.integers(0, 60), st.integers(0, 30)),
    min_size=1,
    max_size=10,
)


@given(OPS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 50)), max_size=3))
def test_any_schedule_keeps_the_rules(drawn, paused):
    made = schematic(*(op(serial, *each) for serial, each in enumerate(drawn, start=1)))
    ids = [each.id for each in made.ops]
    made = msgspec.structs.replace(
        made,
        ops=tuple(msgspec.structs.replace(each, inputs=tuple(ids[:place])) for place, each in enumerate(made.ops)),
    )
    at, pauses = 1100, []
    for step, before, gap in paused:
        pauses.append(Pause(step, at + before, at + before, at + before + gap, at + before + gap))
        at += before + gap
    run = RunTimes(received_ns=1000, started_ns=1100, finished_ns=at + 10, pauses=tuple(pauses))
    check_trace(optrace_to_chrome(made, run, (("conv",), ("sub",), ("relu",)), ALL))


def test_a_graph_on_two_cores_has_counters_of_both():
    """Each core has half of every op; together they move what one alone would."""
    program = portable_program(load(small_cnn()), CompileOptions())
    one, two = (
        schematic_of(program_for(with_options(program, {"num_cores": cores}), "SA8775P")) for cores in (1, 2)
    )
    assert two.cycles < one.cycles
    counters = check_trace(optrace_to_chrome(two, None))["C"]
    names = {"VTCM alloc", "VTCM read", "VTCM write", "DRAM read", "DRAM write"}
    for core in (0, 1):
        assert {event["name"] for event in counters if event["pid"] == core} == names
    moved = [sum(op.dram_read + op.dram_write for op in each.executed) for each in (one, two)]
    assert moved[1] == pytest.approx(moved[0], rel=0.001)
    # The critical path is that of one core, not the sum of both.
    assert linting_event(two).value == two.cycles


def test_d3_bandwidth_is_that_of_the_instant():
    """Bytes are spread over the time in which they move: what a curve encloses are the bytes."""
    whole = schematic(
        op(1, 4, "DMA", 0, 100, dram_read=1000, vtcm_write=1000),
        op(2, 5, "DMA", 50, 100, dram_read=300, vtcm_write=300),
    )
    curve = [
        (event["ts"], event["args"]["bytes/cycle"])
        for event in check_trace(optrace_to_chrome(whole, None))["C"]
        if event["name"] == "DRAM read"
    ]
    assert curve == [(0, 10), (50, 13), (100, 3), (150, 0)]


def test_d3_all_bytes_of_a_network_are_below_its_curves(compiled):
    curves = {}
    for event in check_trace(optrace_to_chrome(compiled, None))["C"]:
        if "bytes/cycle" in event["args"]:
            curves.setdefault(event["name"], []).append((event["ts"], event["args"]["bytes/cycle"]))
    for name, field in (("DRAM read", "dram_read"), ("VTCM write", "vtcm_write")):
        below = sum(rate * (later - at) for (at, rate), (later, _) in pairwise(curves[name]))
        assert below == pytest.approx(sum(getattr(each, field) for each in compiled.executed), rel=0.01)


SERVICES = {
    "DramToTcm": OpRole.READ,
    "TcmToDram": OpRole.WRITE,
    "Sync": OpRole.SYNC,
    "DmaCheckpointSet": OpRole.SET,
    "DmaCheckpointWait": OpRole.WAIT,
    "BlockZapOp": OpRole.COMPUTE,
    "SystemService": OpRole.READ,
}


@pytest.fixture(scope="module")
def busy():
    """A network whose results do not fit, with blocks that are partly empty."""
    return scheduled(two_branches("ElementWiseSubtract"))


@pytest.fixture(scope="module")
def late():
    """A network whose weights come late."""
    return schematic_of(program_for(compiled_model("zoo:mobilenet_v2"), "SM8650"))


def test_d4_all_services_of_the_system_are_in_traces(busy, late):
    ops = (*busy.executed, *late.executed)
    assert {each.name: each.role for each in ops if each.name in SERVICES} == SERVICES
    own = SERVICES.keys() - {"DramToTcm", "TcmToDram"}
    assert {each.owner for each in ops if each.name in own} == {SYSTEM}
    events = [event for made in (busy, late) for event in check_trace(optrace_to_chrome(made, None))["X"]]
    told = {event["name"]: event["args"] for event in events if event["name"] in SERVICES}
    assert told.keys() == SERVICES.keys()
    assert all(args["Description"] for args in told.values())


def test_d4_services_take_the_fixed_time_of_a_kernel_and_no_more(busy):
    plain = schedule_of(program_for(portable_program(two_branches("ElementWiseSubtract")), SOC))
    assert busy.cycles == plain.cycles
    assert linting_event(busy).value == busy.cycles


def test_d4_sequencer_flows_cross_threads(busy):
    flows = check_trace(optrace_to_chrome(busy, None, options=ALL))
    ends = {event["id"]: event for event in flows["f"] if event["cat"] == "sequencer"}
    starts = [event for event in flows["s"] if event["cat"] == "sequencer"]
    assert any(event["tid"] != ends[event["id"]]["tid"] for event in starts)


def test_d4_services_hold_back_what_comes_after_them(busy, late):
    links = set()
    for made in (busy, late):
        ops = {each.id: each for each in made.executed}
        links |= {(ops[before].name, each.name) for each in made.executed for before in each.after}
    assert links >= {
        ("DramToTcm", "DmaCheckpointSet"),
        ("DmaCheckpointSet", "DmaCheckpointWait"),
        ("TcmToDram", "DmaCheckpointSet"),
        ("DmaCheckpointSet", "DramToTcm"),
        ("Sync", "ElementWiseSubtract"),
    }
    assert {after for before, after in links if before == "DmaCheckpointWait"} & {
        "Conv2d",
        "FullyConnected",
        "MatMul",
    }


def test_d4_every_core_has_its_runtrace():
    whole = schematic(op(1, 4, "HMX", 0, 10), op(2, 4, "HMX", 0, 10, core=1), cores=2)
    pause = Pause(step=0, asked_ns=1200, released_ns=1200, granted_ns=1300, restored_ns=1300)
    run = RunTimes(received_ns=1000, started_ns=1100, finished_ns=1800, pauses=(pause,))
    events = check_trace(optrace_to_chrome(whole, run))
    threads = {event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"}
    assert {f"Core {core} {word}" for core in (0, 1) for word in ("Execs", "Yields")} <= threads
    alone = check_trace(runs_to_runtrace(whole, [run]))
    assert {event["args"]["name"] for event in alone["M"]} >= {"Core 0 Execs", "Core 1 Execs"}
    assert len(alone["X"]) == 8
