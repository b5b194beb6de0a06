"""Two profiles side by side."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.report.schematics import SMALL
from typer.testing import CliRunner

from openhtp.cli.main import app
from openhtp.core.errors import BadProfile
from openhtp.records.profile import Message, Method, ProfileEvent, ProfileLogContent
from openhtp.report.linting import cycles_event, linting_event
from openhtp.report.profile_diff import compare, read_side
from openhtp.report.profile_log import log_bytes, schematic_bytes
from openhtp.report.qhas import schematic_to_qhas


def slowed(factor, owner=4):
    """The small schematic with ops of one node that take longer."""
    ops = [
        msgspec.structs.replace(op, cycles=int(op.cycles * factor))
        if op.owner == owner and op.engine.value == "HMX"
        else op
        for op in SMALL.ops
    ]
    return msgspec.structs.replace(SMALL, ops=tuple(ops))


def saved(path, schematic, event=cycles_event):
    message = Message(
        method=Method.EXECUTE, graph="g", events=(event(schematic),), timeline_cycles=schematic.cycles
    )
    log = ProfileLogContent(
        app="t",
        version="1",
        created_us=0,
        soc=schematic.soc,
        level="detailed",
        clock_hz=schematic.clock_hz,
        messages=(message, message),
    )
    path.write_bytes(log_bytes(log))
    return path


def invoke(*args):
    return CliRunner().invoke(app, ["profile-diff", *map(str, args)])


def test_what_got_slower(tmp_path):
    a, b = saved(tmp_path / "a.log", SMALL), saved(tmp_path / "b.log", slowed(4))
    found = compare(read_side(a), read_side(b), threshold_percent=5, least=0)
    assert found.unit == "us"
    assert [change.node for change in found.slower] == ["conv"]
    assert found.slower[0].delta == pytest.approx(0.3)  # 300 cycles at 1 GHz
    assert found.slower[0].percent == pytest.approx(200)
    assert found.total_is_slower
    back = compare(read_side(b), read_side(a), threshold_percent=5, least=0)
    assert back.holds
    lax = compare(read_side(a), read_side(b), threshold_percent=900, least=0)
    assert lax.holds
    assert compare(read_side(a), read_side(b), threshold_percent=5, least=0.5).holds


def test_command_and_its_status(tmp_path):
    a, b = saved(tmp_path / "a.log", SMALL), saved(tmp_path / "b.log", slowed(4))
    same = invoke(a, a)
    assert same.exit_code == 0, same.output
    assert "nothing lost more than 5 %" in same.output
    worse = invoke(a, b, "--json", tmp_path / "d.json")
    assert worse.exit_code == 1
    assert "conv" in worse.output
    assert "slower by more than 5 %: the whole and 1 nodes" in worse.output
    told = json.loads((tmp_path / "d.json").read_text())
    assert not told["holds"]
    assert told["slower"][0]["node"] == "conv"
    assert told["values"] == "modelled, cycles of all threads"


def test_a_renamed_node_is_judged_by_the_whole(tmp_path):
    """What one side calls by another name is neither slower nor faster."""
    faster, slower = slowed(0.25), slowed(4)
    names = [msgspec.structs.replace(node, name=f"{node.name}_renamed") for node in SMALL.nodes]
    a = saved(tmp_path / "a.log", SMALL)
    renamed = saved(tmp_path / "b.log", msgspec.structs.replace(faster, nodes=tuple(names)))
    better = invoke(a, renamed)
    assert better.exit_code == 0, better.output
    assert "judged by the whole only" in better.output
    more_work = saved(tmp_path / "c.log", msgspec.structs.replace(slower, nodes=tuple(names)))
    worse = invoke(a, more_work)
    assert worse.exit_code == 1
    assert "slower by more than 5 %: the whole\n" in worse.output


def test_two_chips_are_compared_in_time(tmp_path):
    faster = msgspec.structs.replace(SMALL, soc="SM8750", clock_hz=2 * SMALL.clock_hz)
    found = compare(
        read_side(saved(tmp_path / "a.log", SMALL)),
        read_side(saved(tmp_path / "b.log", faster)),
        threshold_percent=0,
        least=0,
    )
    assert found.holds
    assert found.total.percent == pytest.approx(-50)


def test_files_of_all_kinds(tmp_path):
    (tmp_path / "s.bin").write_bytes(schematic_bytes(SMALL))
    (tmp_path / "q.json").write_text(json.dumps(schematic_to_qhas(SMALL, [])))
    log, binary, qhas = (
        read_side(path) for path in (saved(tmp_path / "a.log", SMALL), tmp_path / "s.bin", tmp_path / "q.json")
    )
    assert log.nodes["conv"] == binary.nodes["conv"] == qhas.nodes["conv"] == 150
    assert log.timeline == binary.timeline == qhas.timeline == 250
    assert compare(binary, qhas, threshold_percent=0, least=0).holds


def test_what_cannot_be_compared(tmp_path):
    a = saved(tmp_path / "a.log", SMALL)
    linted = saved(tmp_path / "l.log", SMALL, linting_event)
    with pytest.raises(BadProfile, match="profile both at the same level"):
        compare(read_side(a), read_side(linted), threshold_percent=5, least=0)
    bare = {
        "data": {"htp_overall_summary": {"data": [{"timeline_cycles": 5}]}, "qnn_op_instances_nodes": {"data": []}}
    }
    (tmp_path / "vendor.json").write_text(json.dumps(bare))
    with pytest.raises(BadProfile, match="without both clocks"):
        compare(read_side(a), read_side(tmp_path / "vendor.json"), threshold_percent=5, least=0)
    (tmp_path / "basic.log").write_bytes(
        log_bytes(ProfileLogContent(app="", version="", created_us=0, soc="", level="basic"))
    )
    with pytest.raises(BadProfile, match="profiled at the level 'basic'"):
        read_side(tmp_path / "basic.log")


@pytest.mark.parametrize("text", ["", "{}", "[" * 90_000, '{"data": {"htp_overall_summary": 5}}', "\x00" * 99])
def test_foreign_files(tmp_path, text):
    (tmp_path / "x").write_text(text)
    result = invoke(tmp_path / "x", tmp_path / "x")
    assert result.exit_code == 2
    assert "no analysis summary (QHAS)" in result.output.replace("\n", " ")


def test_several_graphs_and_clocks(tmp_path):
    """Graphs of one log run one after the other; runs at two clocks count with the time that they took."""
    runs = [
        Message(
            method=Method.EXECUTE,
            graph=graph,
            events=(cycles_event(SMALL), ProfileEvent(400, "QNN (execute) time", us, "us")),
            timeline_cycles=SMALL.cycles,
            clock_hz=clock,
        )
        for graph, us, clock in (("a", 10, 10**9), ("a", 30, 5 * 10**8), ("b", 7, 10**9))
    ]
    log = ProfileLogContent(
        app="t", version="7", created_us=0, soc="SM8650", level="detailed", messages=tuple(runs)
    )
    (tmp_path / "a.log").write_bytes(log_bytes(log))
    side = read_side(tmp_path / "a.log")
    assert {name.partition(": ")[0] for name in side.nodes} == {"a", "b"}
    assert side.timeline == 2 * SMALL.cycles
    assert side.measured == {"QNN (execute) time": 27.0}
    # 250 cycles take 0.375 us on average in the one, 0.25 us in the other.
    assert side.timeline / side.clock_hz == pytest.approx(0.625e-6)
    result = invoke(tmp_path / "a.log", tmp_path / "a.log", "--json", "-")
    told = json.loads(result.stdout[result.stdout.index("{") :])
    assert (told["before"]["version"], told["before"]["measured_us"]) == ("7", {"QNN (execute) time": 27.0})
    assert result.exit_code == 0
