"""Power votes of a client that votes before it has made a backend."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from openhtp.capi import handles
from openhtp.capi.device import DeviceHeld
from openhtp.core.option_numbers import PowerOption
from openhtp.hw.catalog import find_soc
from openhtp.vendor.library import load
from tests.conftest import ramp, relu_graph
from tests.contract import c_table

INVALID_INPUT = 13001


def functions_of(lib_dir: Path) -> tuple[Any, Any, Any]:
    """To make a number, to vote under it, and to destroy it."""
    library = load(lib_dir / "libQnnHtp.so")
    place = ctypes.c_void_p()
    library.call("deviceGetInfrastructure", ctypes.addressof(place))
    functions = ctypes.cast(place.value + ctypes.sizeof(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p))
    create = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(functions[0])
    change = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)(functions[2])
    return create, change, ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32)(functions[1])


def test_b12_votes_wait_for_the_first_device(lib_dir: Path) -> None:
    assert not handles.of_kind(DeviceHeld)
    create, change, destroy = functions_of(lib_dir)
    number = ctypes.c_uint32()
    assert create(0, 0, ctypes.addressof(number)) == 0
    vote = (ctypes.c_uint32 * 17)(PowerOption.RPC_POLLING_TIME, 300)
    assert change(number.value, ctypes.addressof((ctypes.c_void_p * 2)(ctypes.addressof(vote), None))) == 0
    backend = c_table.Backend(lib_dir)
    relu_graph(backend.create_device().create_context()).execute({"x": ramp()})
    (held,) = handles.of_kind(DeviceHeld)
    votes = held.device().info()["power"]["configs"]
    assert [config["rpc_polling_us"] for config in votes] == [300]
    assert destroy(number.value) == 0
    assert held.device().info()["power"]["configs"] == []
    backend.free()


@pytest.mark.parametrize("soc", ["SM8650", "SA8775P"])
def test_b12_early_votes_are_for_a_core_that_the_chip_has(
    lib_dir: Path, monkeypatch: pytest.MonkeyPatch, soc: str
) -> None:
    assert not handles.of_kind(DeviceHeld)
    monkeypatch.setenv("OPENHTP_SOC", soc)
    create, _, destroy = functions_of(lib_dir)
    number, cores = ctypes.c_uint32(), find_soc(soc).cores
    assert create(0, cores, ctypes.addressof(number)) == INVALID_INPUT
    assert create(0, cores - 1, ctypes.addressof(number)) == 0
    assert destroy(number.value) == 0


def test_b12_an_early_vote_that_does_not_fit_the_device_that_comes_is_told_of(
    lib_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create, _, destroy = functions_of(lib_dir)
    number = ctypes.c_uint32()
    monkeypatch.setenv("OPENHTP_SOC", "SA8775P")
    assert create(0, 1, ctypes.addressof(number)) == 0
    monkeypatch.setenv("OPENHTP_SOC", "SM8650")
    backend = c_table.Backend(lib_dir)
    relu_graph(backend.create_device().create_context()).execute({"x": ramp()})
    assert "votes that were made before there was a device do not stand on SM8650" in caplog.text
    assert destroy(number.value) == 0
    backend.free()
