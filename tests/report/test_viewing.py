"""The viewer: readers, files, switches, zoom, and what it refuses."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import jsonschema
import pytest
from tests.report.schematics import SMALL, op, schematic
from tests.report.trace_rules import check_trace

from openhtp.core.errors import BadProfile
from openhtp.records.profile import Message, Method, ProfileEvent, ProfileLogContent, RunTimes
from openhtp.report.linting import cycles_event, linting_event
from openhtp.report.listing import log_to_text
from openhtp.report.netron import schematic_to_netron
from openhtp.report.profile_log import log_bytes, schematic_bytes, schematic_digest
from openhtp.report.qhas import schematic_to_qhas
from openhtp.report.viewing import LogReader, ReaderFeatures, ViewRequest, read_features, view, zoomed

RUN = RunTimes(received_ns=1000, started_ns=1100, finished_ns=1600)


def us(number, name, value):
    return ProfileEvent(number, name, value, "us")


def run(whole, *events, **more):
    rows = (us(3001, "RPC (execute) time", whole - 10), *events, us(400, "QNN (execute) time", whole))
    return Message(method=Method.EXECUTE, graph="g", events=rows, **more)


def log(*messages, level="linting"):
    return ProfileLogContent(
        app="test", version="1", created_us=10**15, soc="SM8650", level=level, messages=messages
    )


LINTED = log(run(100, linting_event(SMALL)), run(200, linting_event(SMALL)))
TRACED = log(
    run(100, cycles_event(SMALL), run=RUN, schematic=schematic_digest(SMALL), steps=(("conv", "sub"),)),
    level="optrace",
)
LISTING = """\
Execute Stats (Average):
------------------------
Total Inference Time:
---------------------
   NetRun:  150 us
   Backend (RPC (execute) time): 140  us
   Backend (Accelerator (critical path execute) time (cycles)): 250  cycles
      Input OpId_2 (cycles): 0  cycles
            Wait (Scheduler) time: 0  cycles
            Overlap time: 0  cycles
            Overlap (wait) time: 0  cycles
            Resources:
      OpId_0 (cycles): 0  cycles
            Wait (Scheduler) time: 0  cycles
            Overlap time: 0  cycles
            Overlap (wait) time: 0  cycles
            Resources:
      conv:OpId_4 (cycles): 100  cycles
            Wait (Scheduler) time: 50  cycles
            Overlap time: 40  cycles
               sub:OpId_5
            Overlap (wait) time: 0  cycles
            Resources: HMX, DMA
      sub:OpId_5 (cycles): 60  cycles
            Wait (Scheduler) time: 10  cycles
            Overlap time: 0  cycles
            Overlap (wait) time: 0  cycles
            Resources: HVX, DMA
      relu:OpId_6 (cycles): 0  cycles
            Wait (Scheduler) time: 0  cycles
            Overlap time: 0  cycles
            Overlap (wait) time: 0  cycles
            Resources:
      Output OpId_3 (cycles): 30  cycles
            Wait (Scheduler) time: 0  cycles
            Overlap time: 0  cycles
            Overlap (wait) time: 0  cycles
            Resources: DMA

"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "lint.log").write_bytes(log_bytes(LINTED))
    (tmp_path / "op.log").write_bytes(log_bytes(TRACED))
    (tmp_path / "g_schematic.bin").write_bytes(schematic_bytes(SMALL))
    return tmp_path


def optrace(files, **more):
    return view(
        ViewRequest(
            **{
                "logs": (files / "op.log",),
                "reader": LogReader.OPTRACE,
                "schematic": files / "g_schematic.bin",
                "output": files / "trace.json",
                **more,
            }
        )
    )


def test_linting_text_is_laid_out_as_documented():
    text = log_to_text(LINTED, "x.log")
    assert LISTING in text
    assert "Execute Stats (Min):" in text
    assert "Cycles are modelled for SM8650; all other values are measured" in text
    assert text.endswith("NetRun IPS (includes IO and misc. time): 6666.6667 inf/sec\n")


def test_every_run_by_itself():
    text = log_to_text(LINTED, "x.log", every_run=True)
    assert [line for line in text.splitlines() if "NetRun: " in line] == [
        "   NetRun:  100 us",
        "   NetRun:  200 us",
    ]
    assert "(Average)" not in text


def test_sections_of_other_calls():
    finalized = Message(method=Method.FINALIZE, graph="g", events=(us(300, "QNN (finalize) time", 7),))
    text = log_to_text(
        log(finalized, Message(method=Method.DEINIT, events=(us(500, "QNN (deinit) time", 3),))), "x"
    )
    assert "Finalize Stats:\n---------------\nGraph 0 (g):\n   NetRun:  7 us\n" in text
    assert "De-Init Stats:\n--------------\n   NetRun:  3 us\n" in text


def test_names_from_a_file_cannot_move_the_cursor():
    evil = Message(method=Method.EXECUTE, graph="g", events=(ProfileEvent(400, "\x1b[2Jgone\r", 1, "us"),))
    assert "\x1b" not in log_to_text(log(evil), "a\x1b[31m")


def test_csv_and_json(files):
    viewed = view(ViewRequest(logs=(files / "op.log",), output=files / "o.csv"))
    rows = list(csv.DictReader(io.StringIO(viewed.files[files / "o.csv"].decode())))
    assert rows[1]["Event Identifier"] == "Accelerator (execute) time (cycles)"
    assert (rows[1]["Unit of Measurement"], rows[1]["Event Level"], rows[1]["Message"]) == (
        "CYCLES",
        "ROOT",
        "BACKEND",
    )
    assert (rows[4]["Message"], rows[4]["Event Level"]) == ("NODE", "SUB-EVENT")
    assert "has an op trace" in viewed.notes[0]
    told = json.loads(view(ViewRequest(logs=(files / "op.log",), reader=LogReader.JSON, standardized=True)).text)
    assert told["header"]["artifact_type"] == "QNN_PROFILE"
    (message,) = told["messages"]
    assert message["method"] == "BACKEND_EXECUTE"
    cycles = message["profilingEvents"][1]
    assert (cycles["unit"], cycles["source"]) == ("CYCLES", "modelled")
    assert cycles["sub-events"][2] == {
        "identifier": "conv:OpId_4 (cycles)",
        "unit": "CYCLES",
        "type": "NODE",
        "value": 150,
        "source": "modelled",
    }


def test_linting_trace(files):
    viewed = view(ViewRequest(logs=(files / "lint.log",), reader=LogReader.CHROMETRACE, output=files / "t.json"))
    check_trace(json.loads(viewed.files[files / "t.json"]))
    assert "(Average)" in viewed.text
    with pytest.raises(BadProfile, match="no linting data, it was profiled at the level 'optrace'"):
        view(ViewRequest(logs=(files / "op.log",), reader=LogReader.CHROMETRACE))


def test_optrace_files(files):
    everything = ReaderFeatures(qhas_json=True, qhas_schema=True, enable_input_output_flow_events=True)
    viewed = optrace(files, features=everything)
    assert sorted(path.name for path in viewed.files) == [
        "qhas_schema.json",
        "trace.json",
        "trace_htp.json",
        "trace_qnn_htp_analysis_summary.html",
        "trace_qnn_htp_analysis_summary.json",
        "trace_runtrace.json",
    ]
    check_trace(json.loads(viewed.files[files / "trace.json"]))
    qhas = json.loads(viewed.files[files / "trace_qnn_htp_analysis_summary.json"])
    schema = json.loads(viewed.files[files / "qhas_schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(qhas, schema)
    assert "nodes that have the most say" in viewed.text
    few = optrace(files, features=ReaderFeatures(htp_json=False, runtrace=False))
    assert sorted(path.name for path in few.files) == ["trace.json", "trace_qnn_htp_analysis_summary.html"]


def test_the_graph_for_netron_is_cut_like_the_trace(files):
    whole, part = (
        json.loads(optrace(files, **zoom).files[files / "trace_htp.json"])["graph"]["nodes"]
        for zoom in ({}, {"zoom": ("sub", "sub")})
    )
    assert part.keys() < whole.keys()
    assert {each["grouping"] for each in part.values()} == {"sub"}


@pytest.mark.parametrize(
    "how",
    [{"gzip": True}, {"features": ReaderFeatures(gzip=True)}, {"output": Path("trace.json.gz")}],
    ids=["option", "config", "name"],
)
def test_gzip_three_ways(files, how):
    if "output" in how:
        how = {"output": files / how["output"]}
    viewed = optrace(files, **how)
    packed = viewed.files[files / "trace.json.gz"]
    assert files / "trace.json" not in viewed.files
    assert files / "trace_htp.json" in viewed.files
    check_trace(json.loads(gzip.decompress(packed)))


def test_zoom_shows_what_lies_between():
    part = zoomed(SMALL, "conv", "/sub")
    assert {each.owner for each in part.ops} == {4, 5}
    assert {each.owner for each in zoomed(SMALL, "sub", "sub").ops} == {5}
    whole, less = schematic_to_qhas(SMALL, []), schematic_to_qhas(part, [])
    assert len(less["data"]["htp_op_instances"]["data"]) < len(whole["data"]["htp_op_instances"]["data"])


def test_zoom_on_what_was_fused():
    nodes = (*SMALL.nodes[:5], type(SMALL.nodes[0])(6, "relu", "Relu", ("/relu",), into=4))
    whole = schematic(*SMALL.ops, nodes=nodes)
    assert {each.owner for each in zoomed(whole, "relu", "relu").ops} == {4}


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("conw", "sub", "zoom_start is 'conw'; graph 'g' has no node of that name among its 3; near it: 'conv'"),
        ("conv", "x" * 5000, "zoom_end is 'xxx"),
        ("sub", "conv", "zoom_end 'conv' does not depend on zoom_start 'sub'"),
        ("Input", "conv", "no node of that name"),
    ],
)
def test_zoom_outside_the_graph(files, start, end, words):
    with pytest.raises(BadProfile, match=words) as caught:
        optrace(files, zoom=(start, end))
    assert caught.value.code == 1004
    assert len(str(caught.value)) < 500


def test_what_does_not_belong_together(files):
    with pytest.raises(BadProfile, match=r"needs --schematic: the file g_schematic\.bin"):
        optrace(files, schematic=None)
    with pytest.raises(BadProfile, match="no op trace in the log, it was profiled at the level 'linting'"):
        optrace(files, logs=(files / "lint.log",))
    (files / "g_schematic.bin").write_bytes(schematic_bytes(schematic(op(1, 4, "HMX", 0, 5))))
    with pytest.raises(BadProfile, match="of another preparation of 'g'"):
        optrace(files)
    with pytest.raises(BadProfile, match="--schematic only with the optrace reader"):
        view(ViewRequest(logs=(files / "op.log",), schematic=files / "g_schematic.bin"))


def test_logs_of_two_chips_are_not_averaged(files):
    (files / "b.log").write_bytes(
        log_bytes(ProfileLogContent(app="", version="", created_us=0, soc="SM8550", level=""))
    )
    with pytest.raises(BadProfile, match="SM8550 and SM8650; compare two chips with openhtp profile-diff"):
        view(ViewRequest(logs=(files / "op.log", files / "b.log")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"features": {"qhas_jsn": true}}', "/features/qhas_jsn is not known; did you mean qhas_json"),
        ('{"htp_json": true}', "/htp_json is not known; expected some of features; htp_json is a key of features"),
        ('{"features": {"gzip": 1}}', "/features/gzip is 1; expected true or false"),
        ('{"features": []}', "/features is .*expected an object"),
        ("[1]", "expected an object"),
        ('{"features": {"gzip": true, "gzip": false}}', "the key 'gzip' comes twice"),
        ("{", "line 1, column 2: .*expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("\udcff", "byte 0 is no UTF-8"),
    ],
)
def test_a_config_that_cannot_be(tmp_path, text, words):
    (tmp_path / "c.json").write_text(text, errors="surrogateescape")
    with pytest.raises(BadProfile, match=words):
        read_features(tmp_path / "c.json")


def test_readers_by_name_and_library():
    assert LogReader.parse("optrace") is LogReader.OPTRACE
    assert LogReader.parse("/sdk/lib/libQnnHtpOptraceProfilingReader.so") is LogReader.OPTRACE
    assert LogReader.parse(r"C:\sdk\QnnJsonProfilingReader.dll") is LogReader.JSON
    with pytest.raises(BadProfile, match="expected default, htp, chrometrace, json, optrace"):
        LogReader.parse("libQnnGpuProfilingReader.so")


def test_netron_gets_only_what_it_knows():
    document = schematic_to_netron(SMALL)
    assert document["model.cpp"] == "htp_graph"
    tensors, nodes = document["graph"]["tensors"], document["graph"]["nodes"]
    assert len(nodes) == len(SMALL.executed)
    assert {tensor["type"] for tensor in tensors.values()} == {3, 4}
    for node in nodes.values():
        assert all(name in tensors for name in (*node["input_names"], *node["output_names"]))
        assert all(len(value) == 1 for value in node["scalar_params"].values())
    conv = nodes["0x0000000200000004"]
    assert (conv["grouping"], conv["scalar_params"]["cycles_duration"]) == ("conv", {"100": 100})
