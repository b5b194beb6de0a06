"""The documents' showcase models, profiled: the listing has their layout; and a run that made way."""

from __future__ import annotations

import re

import numpy as np
import pytest

import openhtp as htp
from openhtp.records.profile import ProfileLogContent
from openhtp.report.listing import log_to_text
from openhtp.report.optrace import optrace_to_chrome
from openhtp.testing import hold, release, virtual_device
from tests.conftest import ramp, relu_graph
from tests.device.test_preemption import long_graph
from tests.report.trace_rules import check_trace
from tests.waiting import PATIENCE_S, wait_until

LINE = re.compile(
    r"   NetRun:  \d+ us"
    r"|   Backend \(.+\): \d+  (us|count|cycles)"
    r"|      (\S+:OpId_\d+|Input OpId_2|Output OpId_3|OpId_0) \(cycles\): \d+  cycles"
    r"|            (Wait \(Scheduler\)|Overlap|Overlap \(wait\)) time: \d+  cycles"
    r"|            Resources:( (HVX|HMX|DMA)(, (HVX|HMX|DMA))*)?"
    r"|               (\S+:OpId_\d+|Input OpId_2|Output OpId_3|OpId_0)"
)


def convolution(graph, source, name, channels):
    rng = np.random.default_rng(0)
    shape = (*source.shape[:3], channels)
    weights = graph.add_tensor(
        f"{name}_w",
        (3, 3, source.shape[3], channels),
        "sfixed8",
        quant=htp.ScaleOffset(0.01),
        data=rng.integers(-100, 100, (3, 3, source.shape[3], channels)).astype(np.int8),
    )
    made = graph.add_tensor(f"{name}_out", shape, "ufixed8", quant=htp.ScaleOffset(0.05, -128))
    params = {"stride": np.array([1, 1], np.uint32), "pad_amount": np.array([[1, 1], [1, 1]], np.uint32)}
    graph.add_node("Conv2d", name=name, inputs=[source, weights], outputs=[made], params=params)
    return made


def showcase(context, last):
    """Two branches of convolutions that meet in ``last``; an add behind it."""
    graph = context.create_graph(f"showcase_{last}")
    quant = htp.ScaleOffset(0.05, -128)
    source = graph.add_tensor("x", (1, 128, 128, 32), "ufixed8", quant=quant, kind="app_write")
    start = convolution(graph, source, "convStart", 64)
    left = convolution(graph, convolution(graph, start, "convLeft1", 64), "convLeft2", 64)
    right = convolution(graph, convolution(graph, start, "convRight1", 64), "convRight2", 64)
    met = graph.add_tensor("met", left.shape, "ufixed8", quant=quant)
    graph.add_node(last, name="meet", inputs=[left, right], outputs=[met])
    out = graph.add_tensor("y", left.shape, "ufixed8", quant=quant, kind="app_read")
    graph.add_node("ElementWiseAdd", name="add", inputs=[met, start], outputs=[out])
    graph.finalize()
    return graph


def merged(context, activation):
    """Both branches in one, and the subtraction as a convolution: the first model, optimized; or with PReLU."""
    graph = context.create_graph(f"merged_{activation}")
    quant = htp.ScaleOffset(0.05, -128)
    source = graph.add_tensor("x", (1, 128, 128, 32), "ufixed8", quant=quant, kind="app_write")
    start = made = convolution(graph, source, "convStart", 64)
    for name, channels in (("Combined1", 128), ("Combined2", 128)):
        made = convolution(graph, made, f"conv{name}", channels)
        after = graph.add_tensor(f"{name}_act", made.shape, "ufixed8", quant=quant)
        inputs = [made]
        if activation == "Prelu":
            slope = np.full((channels,), 32, np.uint8)
            inputs.append(graph.add_tensor(f"{name}_slope", (channels,), "ufixed8", quant=quant, data=slope))
        graph.add_node(activation, name=f"{activation.lower()}{name}", inputs=inputs, outputs=[after])
        made = after
    met = convolution(graph, made, "subConv", 64)
    out = graph.add_tensor("y", met.shape, "ufixed8", quant=quant, kind="app_read")
    graph.add_node("ElementWiseAdd", name="add", inputs=[met, start], outputs=[out])
    graph.finalize()
    return graph


@pytest.fixture(scope="module")
def texts(shared_backend, shared_device):
    found, events = {}, {}
    context = shared_device.create_context()
    for last in ("ElementWiseSubtract", "ElementWiseDivide", "ElementWiseMultiply", "Relu", "Prelu"):
        graph = merged(context, last) if last.endswith("elu") else showcase(context, last)
        profile = shared_backend.create_profile("linting")
        graph.execute({"x": np.zeros((1, 128, 128, 32), np.uint8)}, profile=profile)
        log = ProfileLogContent(
            app="t", version="1", created_us=0, soc="SM8650", level="linting", messages=(profile.message(),)
        )
        found[last], events[last] = log_to_text(log, "x.log"), profile.event(6001)
    context.free()
    return found, events


def test_the_listing_has_the_documented_layout(texts):
    for text in texts[0].values():
        part = text.partition("Execute Stats (Average):\n------------------------\n")[2].partition("\n\n")[0]
        lines = part.splitlines()
        assert lines[:2] == ["Total Inference Time:", "---------------------"]
        assert lines[2].startswith("   NetRun:  ")
        assert [line for line in lines[2:] if not LINE.fullmatch(line)] == []
        assert [line.strip().partition(":")[0] for line in lines if line.startswith("   Backend")] == [
            "Backend (RPC (execute) time)",
            "Backend (QNN accelerator (execute) time)",
            "Backend (Num times yield occured)",
            "Backend (Time for initial VTCM acquire)",
            "Backend (Time for HVX + HMX power on and acquire)",
            "Backend (Accelerator (critical path execute) time (cycles))",
        ]


def test_the_lessons_are_in_the_listings(texts):
    """A division is far dearer than a product, and a subtraction dearer; what is fused away has no cycles."""
    meet = {
        last: next(row.value for row in event.events if row.name.startswith("meet:"))
        for last, event in texts[1].items()
        if last.startswith("ElementWise")
    }
    assert meet["ElementWiseDivide"] > meet["ElementWiseSubtract"] > meet["ElementWiseMultiply"]
    assert meet["ElementWiseDivide"] > 3 * meet["ElementWiseMultiply"]
    fused = [row.value for row in texts[1]["Relu"].events if row.name.startswith("relu")]
    assert fused == [0, 0]


def test_names_and_resources(texts):
    rows = {row.name.partition(":")[0]: row for row in texts[1]["ElementWiseSubtract"].events}
    assert rows["Input OpId_2 (cycles)"].events[3].name == "Resources"
    assert "HMX" in rows["convLeft1"].events[3].text
    assert "HVX" in rows["meet"].events[3].text
    assert all(len(part.events) <= 10 for row in rows.values() for part in row.events)


def wait_for_begin(device, execution):
    """Wait until an execution runs or is over. A device answers between two steps, and computes one after that."""
    wait_until(lambda: execution.done() or any(client["running"] for client in device.info()["clients"]))


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_yield_is_in_the_op_trace(backend, clock):
    device = virtual_device(backend, step_ns=1_000_000) if clock == "virtual" else backend.create_device()
    context = device.create_context()
    low, high = long_graph(context, priority="low"), relu_graph(context, "high", priority="high")
    feed = {"x": np.zeros((512, 512), np.float32)}
    for _ in range(50):  # until the high one came in the middle of the low one, which is nearly always at once
        profile = backend.create_profile("optrace")
        disturbed = low.execute_async(feed, profile=profile)
        if clock == "wall":
            wait_for_begin(device, disturbed)
        hold(device)
        urgent = high.execute_async({"x": ramp()})
        release(device)
        urgent.result(PATIENCE_S)
        disturbed.result(PATIENCE_S)
        if any(pause.step for pause in profile.message().run.pauses):
            break
    message, schematic = profile.message(), profile.schematic()
    (pause,) = message.run.pauses
    assert 0 < pause.step < low.steps
    assert message.run.started_ns <= pause.released_ns <= pause.granted_ns <= pause.restored_ns
    assert pause.granted_ns - pause.released_ns == disturbed.record.paused_ns
    assert len(message.steps) == low.steps
    events = check_trace(optrace_to_chrome(schematic, message.run, message.steps))
    yields = [event["name"] for event in events["X"] if event["name"].endswith(" VTCM")]
    assert yields == ["Save VTCM", "Re-acquire VTCM", "Restore VTCM"]
    # Ops behind the yield are later than in the schedule by more than those before it.
    moved = [
        event["ts"] - event["args"]["Start Cycle"]
        for event in sorted(events["X"], key=lambda event: event["ts"])
        if event["cat"] == "op" and event["pid"] == 0 and event["args"]["QNN Op Name"].startswith("MatMul")
    ]
    assert moved[-1] > moved[0]


def test_a_yield_before_the_first_step_is_in_the_op_trace(backend):
    """An execution that has its resources and computed nothing yet makes way as well; all its ops are later."""
    device = backend.create_device()
    context = device.create_context()
    low, high = long_graph(context, priority="low"), relu_graph(context, "high", priority="high")
    profile = backend.create_profile("optrace")
    hold(device)
    disturbed = low.execute_async({"x": np.zeros((512, 512), np.float32)}, profile=profile)
    urgent = high.execute_async({"x": ramp()})
    release(device)
    urgent.result(PATIENCE_S)
    disturbed.result(PATIENCE_S)
    message = profile.message()
    (pause,) = message.run.pauses
    assert pause.step == 0
    assert disturbed.record.yields == 1
    events = check_trace(optrace_to_chrome(profile.schematic(), message.run, message.steps))
    moved = {
        event["ts"] - event["args"]["Start Cycle"]
        for event in events["X"]
        if event["cat"] == "op" and event["pid"] == 0 and event["args"]["QNN Op Name"].startswith("MatMul")
    }
    assert len(moved) == 1
    assert moved.pop() > 0
