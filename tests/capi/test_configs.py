"""Configuration lists of contexts, graphs and devices, as a client gives them to the C library."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openhtp.abi.structs import pointer_list, struct
from openhtp.capi import handles
from openhtp.capi.context import ContextHeld
from openhtp.capi.graph import GraphHeld
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.option_numbers import (
    CUSTOM,
    ContextOption,
    GraphOption,
    HtpContextOption,
    HtpGraphOption,
    Optimization,
    PowerOption,
)
from openhtp.vendor.backend import LibraryBackend, LibraryDevice
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import LibraryGraphOptions
from openhtp.vendor.library import load
from tests.capi.test_client import build, values
from tests.conftest import ramp, relu_graph
from tests.contract import c_table
from tests.waiting import PATIENCE_S

NOT_SUPPORTED, INVALID_BACKEND_CONFIG = 1000, 4012
INVALID_CONTEXT_ARGUMENT, INVALID_CONTEXT_CONFIG, INVALID_GRAPH_ARGUMENT = 5000, 5010, 6000


@pytest.fixture
def device(lib_dir: Path) -> Iterator[LibraryDevice]:
    backend = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    made = backend.create_device(soc="SM8650")
    yield made
    for entry, handle in (("backendFree", backend.handle), ("deviceFree", made.handle), ("logFree", backend.log)):
        made.library.call(entry, handle)


def plain(option: int, **body: Any) -> Any:
    config = struct("Config")(option=option)
    for name, value in body.items():
        setattr(config.of, name, value)
    return config


def custom(kind: str, option: int, keep: list[Any], **body: Any) -> Any:
    inner = struct(kind)(option=option)
    for name, value in body.items():
        setattr(inner.of, name, value)
    keep.append(inner)
    return plain(CUSTOM, custom=ctypes.addressof(inner))


def queue_depth(depth: int, kind: int = 0) -> Any:
    return plain(ContextOption.QUEUE_DEPTH, queue_depth=struct("QueueDepth")(kind, depth))


def optimization(kind: int, value: float, keep: list[Any]) -> Any:
    body = struct("OptimizationOption")(kind, value)
    return custom("HtpGraphConfig", HtpGraphOption.OPTIMIZATION, keep, optimization=body)


def make_context(device: LibraryDevice, *configs: Any) -> tuple[int, int]:
    """The code, and a handle if it is 0."""
    place = ctypes.c_void_p()
    arguments = (device.backend.handle, device.handle, pointer_list(list(configs)), ctypes.addressof(place))
    return device.library.ask("contextCreate", *arguments), place.value or 0


def make_graph(device: LibraryDevice, context: int, *configs: Any, name: bytes = b"g") -> tuple[int, int]:
    place = ctypes.c_void_p()
    arguments = (context, name, pointer_list(list(configs)), ctypes.addressof(place))
    return device.library.ask("graphCreate", *arguments), place.value or 0


# Contexts


def test_a_queue_depth_of_10_counts_as_given(device: LibraryDevice) -> None:
    code, handle = make_context(device, queue_depth(10))
    assert code == 0
    assert handles.find(ContextHeld, handle).options["queue_depth"] == 10


def test_a7_a_queue_depth_of_an_unknown_type_is_refused(device: LibraryDevice) -> None:
    assert make_context(device, queue_depth(10, kind=7)) == (NOT_SUPPORTED, 0)


def test_a_queue_depth_cannot_be_set_later(device: LibraryDevice) -> None:
    _, handle = make_context(device, queue_depth(25))
    given = [plain(ContextOption.PRIORITY, number=200), queue_depth(10)]
    assert device.library.ask("contextSetConfig", handle, pointer_list(given)) == NOT_SUPPORTED
    context = handles.find(ContextHeld, handle).context
    assert context.queue_depth == 25
    assert context.priority.name == "NORMAL"  # all of a list or none of it


def test_no_list_of_changes_is_refused_and_an_empty_one_changes_nothing(device: LibraryDevice) -> None:
    """As by the vendor's library."""
    _, handle = make_context(device)
    assert device.library.ask("contextSetConfig", handle, None) == INVALID_CONTEXT_ARGUMENT
    nothing = (ctypes.c_void_p * 1)()
    assert device.library.ask("contextSetConfig", handle, ctypes.addressof(nothing)) == 0


def test_a_priority_that_cannot_change_any_more_is_refused_by_a_code_of_contexts(device: LibraryDevice) -> None:
    context, keep = c_table.Context(LibraryContext.create(device)), []
    relu_graph(context).execute_async({"x": ramp()}).result(PATIENCE_S)
    given = [
        custom("HtpContextConfig", HtpContextOption.DSP_MEMORY_PROFILING, keep, flag=1),
        plain(ContextOption.PRIORITY, number=200),
    ]
    handle = context.held.handle
    assert device.library.ask("contextSetConfig", handle, pointer_list(given)) == INVALID_CONTEXT_ARGUMENT
    held = handles.find(ContextHeld, handle).context
    assert not held.opened.options.dsp_memory_profiling_enabled  # all of a list or none of it


def test_options_of_backends_are_warned_of_or_refused(
    device: LibraryDevice, caplog: pytest.LogCaptureFixture
) -> None:
    for option, code in ((1, 0), (2, 0), (77, INVALID_BACKEND_CONFIG), (0x7FFFFFFF, INVALID_BACKEND_CONFIG)):
        place, config = ctypes.c_void_p(), plain(option)
        listing = pointer_list([config])
        assert device.library.ask("backendCreate", device.backend.log, listing, ctypes.addressof(place)) == code
        assert device.library.ask("backendSetConfig", device.backend.handle, listing) == code
        if not code:
            device.library.call("backendFree", place)
    assert "QNN_BACKEND_CONFIG_OPTION_PLATFORM is taken, and has no effect" in caplog.text


@pytest.mark.parametrize("option", [ContextOption.OEM_STRING, 77])
def test_options_of_contexts_that_nobody_supports_are_refused(device: LibraryDevice, option: int) -> None:
    assert make_context(device, plain(option)) == (NOT_SUPPORTED, 0)


@pytest.mark.parametrize("option", [0, 14, 999])
def test_unknown_htp_options_of_contexts_are_refused(device: LibraryDevice, option: int) -> None:
    keep: list[Any] = []
    config = custom("HtpContextConfig", option, keep)
    assert make_context(device, config) == (INVALID_CONTEXT_CONFIG, 0)


def test_b13_an_option_without_effect_is_a_warning_with_its_name(
    device: LibraryDevice, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        assert make_context(device, plain(ContextOption.ERROR_REPORTING, number=1))[0] == 0
    assert "QNN_CONTEXT_CONFIG_OPTION_ERROR_REPORTING" in caplog.text


def test_b13_an_option_of_another_kind_of_context_is_a_warning(
    device: LibraryDevice, caplog: pytest.LogCaptureFixture
) -> None:
    context = LibraryContext.create(device)
    build(context)
    blob = context.get_binary()
    keep: list[Any] = []
    place = ctypes.c_void_p()
    for flag, told in ((0, False), (1, True)):
        config = custom("HtpContextConfig", HtpContextOption.PREPARE_ONLY, keep, flag=flag)
        with caplog.at_level(logging.WARNING, "openhtp.capi"):
            device.library.call(
                "contextCreateFromBinary",
                device.backend.handle,
                device.handle,
                pointer_list([config]),
                ctypes.cast(ctypes.c_char_p(blob), ctypes.c_void_p),
                len(blob),
                ctypes.addressof(place),
                None,
            )
        assert ("QNN_HTP_CONTEXT_CONFIG_OPTION_PREPARE_ONLY" in caplog.text) is told


def test_lists_that_are_null_or_empty_say_nothing(device: LibraryDevice) -> None:
    place = ctypes.c_void_p()
    arguments = (device.backend.handle, device.handle)
    for listing in (None, (ctypes.c_void_p * 1)()):
        assert device.library.ask("contextCreate", *arguments, listing, ctypes.addressof(place)) == 0
        context = place.value
        assert device.library.ask("graphCreate", context, b"g", listing, ctypes.addressof(place)) == 0


def test_a_custom_option_of_null_is_an_invalid_argument(device: LibraryDevice) -> None:
    code, _ = make_context(device, plain(CUSTOM))
    assert code == 5000


# Graphs


@pytest.mark.parametrize("option", [GraphOption.PROFILE_HANDLE, GraphOption.PROFILING_STATE, 77])
def test_a7_options_of_graphs_that_nobody_supports_are_refused(device: LibraryDevice, option: int) -> None:
    context = LibraryContext.create(device)
    assert make_graph(device, context.handle, plain(option)) == (NOT_SUPPORTED, 0)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (HtpGraphOption.PARALLEL_GRAPH_EXECUTION, NOT_SUPPORTED),
        (HtpGraphOption.HMX_BOUNDING, NOT_SUPPORTED),
        (999, INVALID_GRAPH_ARGUMENT),
    ],
)
def test_a7_htp_options_of_graphs_that_nobody_supports_are_refused(
    device: LibraryDevice, option: int, expected: int
) -> None:
    context, keep = LibraryContext.create(device), []
    assert make_graph(device, context.handle, custom("HtpGraphConfig", option, keep)) == (expected, 0)


@pytest.mark.parametrize("kind", [Optimization.FINALIZE_RETRIES, 99])
def test_unknown_optimizations_are_refused(
    device: LibraryDevice, kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    context, keep = LibraryContext.create(device), []
    assert make_graph(device, context.handle, optimization(kind, 1.0, keep)) == (INVALID_GRAPH_ARGUMENT, 0)
    assert f"optimization type {kind}" in caplog.text


def test_b13_an_optimization_without_effect_is_a_warning_with_its_name(
    device: LibraryDevice, caplog: pytest.LogCaptureFixture
) -> None:
    context, keep = LibraryContext.create(device), []
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        config = optimization(Optimization.SPARSE_WEIGHTS_COMPRESSION, 1.0, keep)
        assert make_graph(device, context.handle, config)[0] == 0
        config = custom("HtpGraphConfig", HtpGraphOption.FINALIZE_CONFIG, keep)
        assert make_graph(device, context.handle, config, name=b"h")[0] == 0
    assert "QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_SPARSE_WEIGHTS_COMPRESSION" in caplog.text
    assert "QNN_HTP_GRAPH_CONFIG_OPTION_FINALIZE_CONFIG" in caplog.text


MB = 1 << 20


@pytest.mark.parametrize(
    ("option", "number", "name", "found"),
    [
        (HtpGraphOption.VTCM_SIZE_IN_MB, 100, "vtcm_bytes", 8 * MB),
        (HtpGraphOption.VTCM_SIZE_IN_MB, 5000, "vtcm_bytes", 8 * MB),
        (HtpGraphOption.VTCM_SIZE_IN_BYTES, 100 * MB, "vtcm_bytes", 8 * MB),
        (HtpGraphOption.VTCM_SIZE_IN_BYTES, 1000, "vtcm_bytes", MB),
        (HtpGraphOption.NUM_HVX_THREADS, 0, "hvx_threads", None),
        (HtpGraphOption.NUM_HVX_THREADS, 5, "hvx_threads", 4),
        (HtpGraphOption.NUM_HVX_THREADS, 1000, "hvx_threads", 4),
    ],
)
def test_more_than_the_chip_has_is_clipped_with_a_warning(
    device: LibraryDevice, caplog: pytest.LogCaptureFixture, option: int, number: int, name: str, found: int | None
) -> None:
    context, keep = LibraryContext.create(device), []
    body = {"number64": number} if option == HtpGraphOption.NUM_HVX_THREADS else {"number32": number}
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        code, handle = make_graph(device, context.handle, custom("HtpGraphConfig", option, keep, **body))
    assert code == 0
    assert handles.find(GraphHeld, handle).graph.options[name] == found
    if number:
        assert str(number) in caplog.text


def test_a_graph_with_more_vtcm_than_the_chip_has_runs(device: LibraryDevice) -> None:
    graph = build(LibraryContext.create(device), "g", LibraryGraphOptions(vtcm_mb=100, hvx_threads=16))
    plainly = build(LibraryContext.create(device))
    assert np.array_equal(graph.execute(values())["o"], plainly.execute(values())["o"])


# Set later


@pytest.mark.parametrize("flags", [(1,), (1, 0)])
def test_b2_dsp_memory_profiling_is_turned_on_and_off_later(device: LibraryDevice, flags: tuple[int, ...]) -> None:
    context, keep = LibraryContext.create(device), []
    for flag in flags:
        config = custom("HtpContextConfig", HtpContextOption.DSP_MEMORY_PROFILING, keep, flag=flag)
        device.library.call("contextSetConfig", context.handle, pointer_list([config]))
    profile = device.backend.create_profile(ProfileLevel.BASIC)
    device.library.call("contextFree", context.handle, profile.handle)
    told = {event.identifier for top in profile.events() for event in top.walk()}
    assert ("DSP:after_context_freed" in told) is bool(flags[-1])
    device.library.call("profileFree", profile.handle)


def test_b13_power_options_without_effect_are_warnings_with_their_names(
    device: LibraryDevice, caplog: pytest.LogCaptureFixture
) -> None:
    place, number = ctypes.c_void_p(), ctypes.c_uint32()
    device.library.call("deviceGetInfrastructure", ctypes.addressof(place))
    functions = struct("Infrastructure").from_address(place.value)
    code, u32, address = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p
    ddr = struct("PowerConfig")(option=PowerOption.DDR_PERF_MODE)
    with caplog.at_level(logging.WARNING, "openhtp.capi"):
        assert ctypes.CFUNCTYPE(code, u32, u32, address)(functions.create_id)(0, 0, ctypes.addressof(number)) == 0
        assert ctypes.CFUNCTYPE(code, u32, address)(functions.set_power)(number, pointer_list([ddr])) == 0
        assert ctypes.CFUNCTYPE(code, u32, u32, address)(functions.set_memory)(0, 0, pointer_list([ddr])) == 0
        assert ctypes.CFUNCTYPE(code, u32)(functions.destroy_id)(number) == 0
        # As the vendor's library answers: Genie destroys number 0, which nobody has made.
        assert ctypes.CFUNCTYPE(code, u32)(functions.destroy_id)(number) == 0
        assert ctypes.CFUNCTYPE(code, u32)(functions.destroy_id)(0) == 0
    assert "power configuration 0 does not exist" in caplog.text
    assert "QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DDR_PERF_MODE" in caplog.text
    assert "QnnHtpPerfInfrastructure_setMemoryConfig" in caplog.text
