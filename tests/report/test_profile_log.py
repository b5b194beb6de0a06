"""Files of profiles, read as if an enemy wrote them."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given, strategies as st
from tests.report.schematics import SMALL, op, schematic

from openhtp.core.errors import BadProfile
from openhtp.records.profile import Message, Method, Pause, ProfileEvent, ProfileLogContent, RunTimes
from openhtp.report import profile_log
from openhtp.report.profile_log import (
    log_bytes,
    log_from,
    read_log,
    read_schematic,
    schematic_bytes,
    schematic_digest,
    schematic_from,
)


def log(*messages):
    return ProfileLogContent(
        app="test", version="1", created_us=5, soc="SM8650", level="detailed", messages=messages
    )


EVENT = ProfileEvent(3003, "cycles", 7, "cycles", (ProfileEvent(404, "conv:OpId_4 (cycles)", 7, "cycles"),))
RUN = RunTimes(received_ns=1, started_ns=2, finished_ns=9, pauses=(Pause(1, 2, 3, 4, 5),))
LOG = log(Message(method=Method.EXECUTE, graph="g", events=(EVENT,), run=RUN))


def forged(body, kind=1, version=1):
    """A file whose checksums are right, whatever is in it."""
    head = struct.pack("<8sIIQI", b"OHTPPROF", version, kind, len(body), zlib.crc32(body))
    return head + struct.pack("<I", zlib.crc32(head)) + body


def test_round_trip(tmp_path):
    (tmp_path / "p.log").write_bytes(log_bytes(LOG))
    (tmp_path / "s.bin").write_bytes(schematic_bytes(SMALL))
    assert read_log(tmp_path / "p.log") == LOG
    assert read_schematic(tmp_path / "s.bin") == SMALL
    assert schematic_digest(SMALL) != schematic_digest(schematic(op(1, 4, "HMX", 0, 1)))


def test_one_for_the_other(tmp_path):
    with pytest.raises(BadProfile, match=r"is a schematic; expected a profile log"):
        log_from(schematic_bytes(SMALL))
    with pytest.raises(BadProfile, match=r"is a profile log; expected a schematic"):
        schematic_from(log_bytes(LOG))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a profile log of openhtp"),
        (b"\x02\x00\x00\x00QNN" + bytes(100), "the vendor's tools write another format"),
        (forged(b"\x80", version=9), "format version 9"),
        (forged(b"\x80", kind=77), "of kind 77"),
        (forged(b"\x80"), "missing required field"),
        (forged(b"\x91" * 100_000), "Expected `object`|nested"),
        (forged(b"\xc1"), "malformed|invalid"),
    ],
)
def test_foreign_and_broken(data, words):
    with pytest.raises(BadProfile, match=words) as caught:
        log_from(data, "x.log")
    assert caught.value.name == "QNN_PROFILE_ERROR_INVALID_ARGUMENT"
    assert "x.log" in str(caught.value)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_every_changed_byte_is_found(at, change):
    data = bytearray(log_bytes(LOG))
    data[at % len(data)] ^= change
    with pytest.raises(BadProfile):
        log_from(bytes(data))


@given(st.integers(0, 10_000))
def test_every_cut_is_found(at):
    data = log_bytes(LOG)
    with pytest.raises(BadProfile):
        log_from(data[: at % len(data)])


def deep(levels):
    event = ProfileEvent(1, "e", 0, "us")
    for _ in range(levels):
        event = ProfileEvent(1, "e", 0, "us", (event,))
    return event


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message(method=Method.EXECUTE, events=(deep(20),)), "nested more than"),
        (Message(method=Method.EXECUTE, events=(ProfileEvent(-1, "e", 0, "us"),)), "of type -1"),
        (Message(method=Method.EXECUTE, events=(ProfileEvent(1, "e", -1, "us"),)), "the value -1"),
        (Message(method=Method.EXECUTE, timeline_cycles=-1), "timeline of -1"),
        (Message(method=Method.EXECUTE, run=RunTimes(received_ns=5, started_ns=2, finished_ns=9)), "was received"),
    ],
)
def test_a_log_that_cannot_be(message, words):
    with pytest.raises(BadProfile, match=words):
        log_from(log_bytes(log(message)))


def test_nested_until_the_decoder_gives_up():
    with pytest.raises(BadProfile):
        log_from(forged(msgspec.msgpack.encode(msgspec.to_builtins(LOG))[:-1] + b"\x91" * 200_000))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (schematic(op(1, 99, "HMX", 0, 1)), "node 99"),
        (schematic(op(1, 4, "HMX", 0, 1, core=3)), "core 3"),
        (schematic(op(1, 4, "HMX", -1, 1)), "cannot be"),
        (schematic(op(1, 4, "HMX", 1 << 61, 1 << 61)), "cannot be"),
        (schematic(op(1, 4, "HMX", 0, 1), op(1, 4, "HMX", 0, 1)), "twice"),
        (msgspec.structs.replace(SMALL, clock_hz=0), "clock of 0"),
        (msgspec.structs.replace(SMALL, nodes=SMALL.nodes * 2), "numbers of their own"),
    ],
)
def test_a_schematic_that_cannot_be(made, words):
    with pytest.raises(BadProfile, match=words):
        schematic_from(schematic_bytes(made))


def test_sizes_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_log, "_MOST_BYTES", 100)
    (tmp_path / "p.log").write_bytes(log_bytes(LOG))
    with pytest.raises(BadProfile, match="too many for a profile log"):
        read_log(tmp_path / "p.log")
    with pytest.raises(BadProfile, match="it is a device"):
        read_log("/dev/zero")
