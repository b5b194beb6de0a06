"""Which chip a client's configuration makes of a device, and how platforms are described."""

from __future__ import annotations

import ctypes
import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openhtp.abi.structs import pointer_list, struct
from openhtp.capi import device as device_entries, handles
from openhtp.capi.device import DeviceHeld
from openhtp.capi.graph import GraphHeld
from openhtp.core.option_numbers import CUSTOM, DeviceOption, HtpDeviceOption
from openhtp.vendor.backend import LibraryBackend, read_platform
from openhtp.vendor.library import load

INVALID_CONFIG = 14001
SM8550, SM8650, SA8775P, SC8380XP = 43, 57, 52, 60


class Client:
    """A client that creates devices by configuration lists of its own."""

    def __init__(self, backend: LibraryBackend) -> None:
        self.backend = backend
        self.library = backend.library
        self.keep: list[Any] = []
        self.made: list[int] = []

    def at(self, data: Any) -> int:
        self.keep.append(data)
        return ctypes.addressof(data)

    def words(self, *words: int, shift: int = 0) -> int:
        """So many numbers of 32 bits, on a multiple of 8 bytes, or 4 behind one."""
        room = (ctypes.c_uint64 * (len(words) + 1))()
        place = self.at(room) + shift
        (ctypes.c_uint32 * len(words)).from_address(place)[:] = words
        return place

    def custom(self, *words: int, shift: int = 0) -> Any:
        config = struct("Config")(option=CUSTOM)
        config.of.custom = self.words(*words, shift=shift)
        return config

    def soc(self, model: int) -> Any:
        return self.custom(HtpDeviceOption.SOC, 0, model, 0)

    def arch(self, arch: int) -> Any:
        return self.custom(HtpDeviceOption.ARCH, 0, 0, arch)

    def platform(self, **extension: int) -> Any:
        htp = struct("HtpDeviceInfo")(**extension)
        hardware = struct("HardwareDeviceInfo")(version=1, num_cores=1, extension=self.at(htp))
        info = struct("PlatformInfo")(version=1, count=1, devices=self.at(hardware))
        config = struct("Config")(option=DeviceOption.PLATFORM_INFO)
        config.of.custom = self.at(info)
        return config

    def create(self, *configs: Any) -> int:
        place = ctypes.c_void_p()
        arguments = (self.backend.log, pointer_list(list(configs)), ctypes.addressof(place))
        code = self.library.ask("deviceCreate", *arguments)
        if not code:
            self.made.append(place.value or 0)
        return code

    def chip(self, *configs: Any) -> str:
        """The chip of a new device."""
        assert self.create(*configs) == 0
        return handles.find(DeviceHeld, self.made[-1]).soc

    def info(self) -> Any:
        place = ctypes.c_void_p()
        self.library.call("deviceGetInfo", self.made[-1], ctypes.addressof(place))
        (found,) = read_platform(place.value)
        return found


@pytest.fixture
def client(lib_dir: Path) -> Iterator[Client]:
    backend = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    made = Client(backend)
    yield made
    made.library.call("backendFree", backend.handle)
    for device in made.made:
        made.library.call("deviceFree", device)
    made.library.call("logFree", backend.log)


def test_b4_the_soc_counts_and_not_the_architecture_in_any_order(client: Client) -> None:
    assert client.chip(client.soc(SM8550), client.arch(75)) == "SM8550"
    assert client.chip(client.arch(75), client.soc(SM8550)) == "SM8550"
    assert client.chip(client.arch(75), client.platform(soc_model=SM8550)) == "SM8550"
    assert client.chip(client.soc(SM8550), client.platform(soc_model=SM8650)) == "SM8550"


@pytest.mark.parametrize("option", [HtpDeviceOption.SECURE_PD, 4, 99])
def test_unknown_options_of_devices_are_refused(client: Client, option: int) -> None:
    assert client.create(client.custom(option, 0, 0, 0)) == INVALID_CONFIG


@pytest.mark.parametrize(("asked", "kind"), [(None, "unsigned"), (0, "unsigned"), (1, "signed")])
def test_b9_process_domains_are_signed_where_a_client_asks(client: Client, asked: int | None, kind: str) -> None:
    configs = [] if asked is None else [client.custom(HtpDeviceOption.SIGNED_PD, 0, 0, asked)]
    assert client.create(*configs) == 0
    sessions = handles.find(DeviceHeld, client.made[-1]).device().info()["sessions"]
    assert sessions[-1]["pd_session"] == kind


@pytest.mark.parametrize(("model", "signed"), [(SM8650, False), (SC8380XP, True)])
def test_b9_signed_process_domains_are_there_where_the_chip_has_them(
    client: Client, model: int, signed: bool
) -> None:
    client.chip(client.soc(model))
    assert client.info().signed_pd is signed


@pytest.mark.parametrize("model", [SM8550, SM8650, SC8380XP])
def test_b9_the_description_says_that_a_chip_compresses(client: Client, model: int) -> None:
    client.chip(client.soc(model))
    assert client.info().dlbc is True


def test_b9_all_cores_of_a_chip_are_described(client: Client) -> None:
    client.chip(client.soc(SA8775P))
    assert client.info().cores == 2
    place = ctypes.c_void_p()
    client.library.call("deviceGetInfo", client.made[-1], ctypes.addressof(place))
    info = struct("PlatformInfo").from_address(place.value)
    hardware = struct("HardwareDeviceInfo").from_address(info.devices)
    cores = (struct("CoreInfo") * 2).from_address(hardware.cores)
    assert [(core.version, core.core_id) for core in cores] == [(1, 0), (1, 1)]


def test_b9_an_unknown_model_with_an_architecture_is_that_architecture(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        assert client.chip(client.platform(soc_model=9999, arch=73)) == "SM8550"
    assert "9999" in caplog.text
    assert client.create(client.platform(soc_model=9999, arch=0)) == INVALID_CONFIG
    assert client.create(client.platform(soc_model=9999, arch=7)) == INVALID_CONFIG


def test_b9_an_architecture_that_is_not_the_chip_s_is_warned_of(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        assert client.chip(client.platform(soc_model=SM8550, arch=73)) == "SM8550"
        assert not caplog.text
        assert client.chip(client.platform(soc_model=SM8550, arch=75)) == "SM8550"
    assert "SM8550 is v73, and not v75" in caplog.text


def test_b9_a_platform_without_a_model_is_its_architecture(client: Client) -> None:
    assert client.chip(client.platform(soc_model=0, arch=79)) == "SM8750"


def test_b9_vtcm_of_a_client_s_platform_is_what_graphs_have(client: Client) -> None:
    client.chip(client.platform(soc_model=SM8650, arch=75, vtcm_mb=2))
    assert client.info().vtcm_mb == 2
    context, graph = ctypes.c_void_p(), ctypes.c_void_p()
    client.library.call("contextCreate", client.backend.handle, client.made[-1], None, ctypes.addressof(context))
    client.library.call("graphCreate", context, b"g", None, ctypes.addressof(graph))
    assert handles.find(GraphHeld, graph.value or 0).graph.options.vtcm_bytes == 2 << 20


def test_b9_more_vtcm_than_the_chip_has_is_cut(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        client.chip(client.platform(soc_model=SM8650, arch=75, vtcm_mb=64))
    assert client.info().vtcm_mb == 8
    assert "64" in caplog.text


def test_b9_devices_on_a_pcie_bus_are_refused(client: Client) -> None:
    assert client.create(client.platform(kind=1, soc_model=SM8650)) == INVALID_CONFIG


def test_b9_a_platform_that_was_told_is_taken_back(client: Client) -> None:
    place = ctypes.c_void_p()
    client.library.call("deviceGetPlatformInfo", client.backend.log, ctypes.addressof(place))
    config = struct("Config")(option=DeviceOption.PLATFORM_INFO)
    config.of.custom = place.value
    assert client.chip(config) == "SM8650"
    client.library.call("deviceFreePlatformInfo", client.backend.log, place)


def test_b11_a_number_behind_the_old_layout_is_not_the_model(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Only the old layout can lie 4 bytes behind a multiple of 8.
    assert client.chip(client.custom(HtpDeviceOption.SOC, SM8550, SM8650, shift=4)) == "SM8550"
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        assert client.chip(client.custom(HtpDeviceOption.SOC, SM8550, 12345)) == "SM8550"
        assert not caplog.text
        assert client.chip(client.custom(HtpDeviceOption.SOC, SM8550, SM8650)) == "SM8650"
    assert "OPENHTP_HTP_API" in caplog.text
    monkeypatch.setenv("OPENHTP_HTP_API", "5.39.0")
    assert client.chip(client.custom(HtpDeviceOption.SOC, SM8550, SM8650)) == "SM8550"
    assert client.chip(client.custom(HtpDeviceOption.ARCH, 0, 75, 73)) == "SM8650"


@pytest.mark.parametrize("owns_python", [True, False])
def test_the_collector_is_spared_where_python_is_ours_alone(
    monkeypatch: pytest.MonkeyPatch, owns_python: bool
) -> None:
    """Objects of a program that has a Python of its own are not ours to keep."""
    gc.collect()
    gc.unfreeze()  # the tests themselves, which tests/conftest.py keeps from the collector
    monkeypatch.setattr(device_entries, "natives", [SimpleNamespace(owns_python=owns_python)])
    try:
        device_entries.spare_collector()
        assert bool(gc.get_freeze_count()) is owns_python
    finally:
        gc.freeze()
