"""Power votes of a client that votes before it has made a backend."""

from __future__ import annotations

import ctypes
from pathlib import Path

from openhtp.capi import handles
from openhtp.capi.device import DeviceHeld
from openhtp.core.option_numbers import PowerOption
from openhtp.vendor.library import load
from tests.conftest import ramp, relu_graph
from tests.contract import c_table


def test_b12_votes_wait_for_the_first_device(lib_dir: Path) -> None:
    assert not handles.of_kind(DeviceHeld)
    library = load(lib_dir / "libQnnHtp.so")
    place, number = ctypes.c_void_p(), ctypes.c_uint32()
    library.call("deviceGetInfrastructure", ctypes.addressof(place))
    functions = ctypes.cast(place.value + ctypes.sizeof(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p))
    create = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(functions[0])
    change = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)(functions[2])
    destroy = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32)(functions[1])
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
