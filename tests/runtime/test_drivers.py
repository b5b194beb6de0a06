"""The two ways to drive a Windows device, and what is said of them."""

from __future__ import annotations

import pytest

import openhtp as htp


@pytest.mark.parametrize("version", [None, "2.22.2", "2.40.0"])
def test_the_systems_driver_is_told_of(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture, version: str | None
) -> None:
    device = backend.create_device(
        platform="windows", driver_path="hnrd", driver_version=version, transport="inprocess"
    )
    assert device.pid
    assert [record.message for record in caplog.records if record.name.endswith("drivers")] == [
        "Traditional path not available. Switching to user driver path",
        "HTP user driver is loaded. Switched to user driver path",
    ]


def test_the_traditional_path_says_nothing(backend: htp.Backend, caplog: pytest.LogCaptureFixture) -> None:
    assert backend.create_device(transport="inprocess").pid
    assert not [record for record in caplog.records if record.name.endswith("drivers")]


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
