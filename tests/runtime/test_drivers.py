"""The two ways to drive a Windows device, and what is said of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import openhtp as htp
from openhtp.program.binary import BinaryInfo, read_binary, write_binary


@pytest.mark.parametrize("version", [None, "2.22.2", "2.40.0"])
def test_the_systems_driver_is_told_of(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture, version: str | None
) -> None:
    device = backend.create_device(
        platform="windows", driver_path="hnrd", driver_version=version, transport="inprocess"
    )
    assert device.pid
    assert [record.message for record in caplog.records if record.name.endswith("device_choice")] == [
        "QnnDsp <W> Traditional path not available. Switching to user driver path",
        "QnnDsp <W> HTP user driver is loaded. Switched to user driver path",
    ]


def test_the_traditional_path_says_nothing(backend: htp.Backend, caplog: pytest.LogCaptureFixture) -> None:
    assert backend.create_device(transport="inprocess").pid
    assert not [record for record in caplog.records if record.name.endswith("device_choice")]


@pytest.mark.parametrize("bundled", [False, True])
def test_c19_a_program_without_libraries_takes_the_systems_driver(
    backend: htp.Backend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bundled: bool,
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "program.py")])
    if bundled:
        for name in ("QnnHtpV73Stub.dll", "libQnnHtpV73Skel.so"):
            (tmp_path / name).touch()
    device = backend.create_device(platform="windows", driver_version="2.40.0", host="thread")
    told = [record.message for record in caplog.records if record.name.endswith("device_choice")]
    assert len(told) == (0 if bundled else 2)
    assert device.driver == ("" if bundled else "2.40.0")


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"driver_path": "hnrd"}, "QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE", "for windows"),
        (
            {"driver_path": "hnrd", "platform": "windows", "driver_version": "2.22.1"},
            "QNN_COMMON_ERROR_LOADING_BINARIES",
            "at least 2.22.2",
        ),
        (
            {"driver_path": "hnrd", "platform": "windows", "driver_version": "new"},
            "QNN_DEVICE_ERROR_INVALID_CONFIG",
            "numbers with dots",
        ),
        ({"driver_version": "2.30.0"}, "QNN_DEVICE_ERROR_INVALID_CONFIG", "only the system's driver"),
        ({"driver_path": "other"}, "QNN_DEVICE_ERROR_INVALID_CONFIG", "traditional"),
    ],
)
def test_what_does_not_go_together(backend: htp.Backend, options: dict[str, str], status: str, words: str) -> None:
    with pytest.raises(htp.QnnError, match=words) as caught:
        backend.create_device(**options)  # type: ignore[arg-type]
    assert caught.value.name == status


def test_nothing_is_logged_of_a_version_that_is_none(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(htp.InvalidArgument, match="numbers with dots"):
        backend.create_device(platform="windows", driver_path="hnrd", driver_version="new")
    assert not [record for record in caplog.records if record.name.endswith("device_choice")]


def driven(backend: htp.Backend, version: str | None) -> htp.Device:
    return backend.create_device(
        soc="SC8380XP", platform="windows", driver_path="hnrd", driver_version=version, transport="inprocess"
    )


def made(device: htp.Device) -> bytes:
    with device.create_context() as context:
        graph = context.create_graph("g")
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", inputs=[x], outputs=[y])
        graph.finalize()
        return context.get_binary()


def test_a_binary_of_a_newer_driver_cannot_be_loaded(backend: htp.Backend) -> None:
    newer, older = driven(backend, "2.40.0"), driven(backend, "2.30")
    binary = made(newer)
    for refused in (older.create_context_from_binary, older.validate_binary):
        with pytest.raises(
            htp.BadBinary, match=r"version 2.40.0 .* this system has 2.30: make it again"
        ) as caught:
            refused(binary)
        assert caught.value.name == "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY"
    assert newer.create_context_from_binary(binary, compatibility="strict").graphs


def test_a_binary_of_an_older_driver_runs_but_not_at_its_best(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    binary, newer = made(driven(backend, "2.30.0")), driven(backend, "2.40.0")
    assert "by version 2.30.0" in newer.validate_binary(binary).suboptimal
    assert newer.create_context_from_binary(binary).graphs
    assert "it runs, but not at its best" in caplog.text
    with pytest.raises(htp.QnnError, match=r"this system has 2.40.0") as caught:
        newer.create_context_from_binary(binary, compatibility="strict")
    assert caught.value.name == "QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL"


def test_drivers_whose_versions_nobody_said_are_not_compared(backend: htp.Backend) -> None:
    binary = made(driven(backend, "2.40"))
    for device in (driven(backend, None), driven(backend, "2.40.0"), backend.create_device(soc="SC8380XP")):
        assert device.create_context_from_binary(binary, compatibility="strict").graphs


def test_a_driver_version_in_a_binary_that_is_none_is_refused(backend: htp.Backend) -> None:
    device = driven(backend, "2.40.0")
    hostile = write_binary(
        [read_binary(made(device)).packed("g").program()], BinaryInfo(soc="SC8380XP", driver="new")
    )
    with pytest.raises(htp.BadBinary, match="of version 'new', which is none"):
        device.create_context_from_binary(hostile)
