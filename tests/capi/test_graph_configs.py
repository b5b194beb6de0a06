"""Options that a C client changes after a graph was made: each has its effect, or is refused."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openhtp.abi.structs import pointer_list, struct
from openhtp.core.dtype import DType
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.limits import MAX_COMPRESSED_GRAPHS
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import GraphOption, HtpGraphOption, Optimization
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor.backend import LibraryBackend, LibraryDevice
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary
from tests.capi.raw_graph import RawGraph, htp_option

NOT_SUPPORTED, INVALID_ARGUMENT, FINALIZED = 1000, 6000, 6024
QUANT = ScaleOffset(0.02, -128)
X = TensorSpec("x", (1, 128, 128, 64), DType.UFIXED_POINT_8, QUANT, TensorKind.APP_WRITE)
M = TensorSpec("m", X.shape, DType.UFIXED_POINT_8, QUANT, TensorKind.NATIVE)
Y = TensorSpec("y", X.shape, DType.UFIXED_POINT_8, QUANT, TensorKind.APP_READ)
CALLS = [OpCall("Sigmoid", "first", (X,), (M,)), OpCall("Tanh", "second", (M,), (Y,))]
keep: list[Any] = []


def threads(count: int) -> Any:
    return htp_option(HtpGraphOption.NUM_HVX_THREADS, keep, number64=count)


def vtcm(megabytes: int) -> Any:
    return htp_option(HtpGraphOption.VTCM_SIZE_IN_MB, keep, number32=megabytes)


def optimization(kind: int, value: float) -> Any:
    return htp_option(HtpGraphOption.OPTIMIZATION, keep, optimization=(kind, value))


def slc(value: float) -> Any:
    return optimization(Optimization.SLC_ALLOCATOR, value)


@pytest.fixture
def backend(lib_dir: Path) -> Iterator[LibraryBackend]:
    made = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    yield made
    made.free()
    keep.clear()


@pytest.fixture
def device(backend: LibraryBackend) -> LibraryDevice:
    return backend.create_device(soc="SM8650")


@pytest.fixture
def context(device: LibraryDevice) -> LibraryContext:
    return LibraryContext.create(device)


def unfinished(context: LibraryContext) -> RawGraph:
    return RawGraph(context, (X, M, Y), CALLS, finalize=False)


def finalized(context: LibraryContext) -> RawGraph:
    return RawGraph(context, (X, M, Y), CALLS)


def executed(graph: RawGraph, profile: Any = None) -> int:
    rooms = [graph.room(name, np.zeros(X.shape, np.uint8)) for name in "xy"]
    return graph.execute(rooms[:1], rooms[1:], 0 if profile is None else profile.handle)


def told(backend: LibraryBackend, graph: RawGraph, level: ProfileLevel = ProfileLevel.DETAILED) -> dict[int, int]:
    """Events of an execution by number."""
    profile = backend.create_profile(level)
    assert executed(graph, profile) == 0
    return {event.type: event.value for top in profile.events() for event in top.walk()}


def stored(context: LibraryContext, lib_dir: Path) -> Any:
    """What a saved context says about its graph's preparation."""
    blob = context.get_binary()
    system = SystemLibrary(lib_dir / "libQnnSystem.so")
    handle, place = ctypes.c_void_p(), ctypes.c_void_p()
    data = ctypes.create_string_buffer(blob, len(blob))
    system.call("systemContextCreate", ctypes.addressof(handle))
    system.call("systemContextGetMetaData", handle, ctypes.addressof(data), len(blob), ctypes.addressof(place))
    info = struct("BinaryInfoV3").from_address(place.value)
    about = struct("GraphBlobInfo").from_buffer_copy(
        struct("GraphBlobInfo").from_address(struct("GraphInfo").from_address(info.graphs).blob)
    )
    system.call("systemContextFree", handle)
    return about


@pytest.mark.parametrize("late", [False, True])
def test_b1_hvx_threads_change_until_the_first_execution(
    backend: LibraryBackend, context: LibraryContext, lib_dir: Path, late: bool
) -> None:
    graph = unfinished(context)
    assert graph.set_config(threads(3)) == 0
    if late:
        graph.library_graph.finalize()
        assert stored(context, lib_dir).hvx_threads == 3
        assert graph.set_config(threads(1)) == 0
    else:
        assert graph.set_config(threads(1)) == 0
        graph.library_graph.finalize()
    assert stored(context, lib_dir).hvx_threads == 1
    for level in (ProfileLevel.BASIC, ProfileLevel.DETAILED):
        assert told(backend, graph, level)[8001] == 1
    assert graph.set_config(threads(2)) == INVALID_ARGUMENT
    assert told(backend, graph)[8001] == 1
    assert stored(context, lib_dir).hvx_threads == 1


def test_b1_fewer_threads_take_more_cycles(backend: LibraryBackend, device: LibraryDevice) -> None:
    cycles = []
    for count in (4, 1):
        graph = finalized(LibraryContext.create(device))
        assert graph.set_config(threads(count)) == 0
        cycles.append(told(backend, graph, ProfileLevel.LINTING)[6001])
    assert cycles[1] > 1.2 * cycles[0]


def test_b1_threads_that_were_changed_are_those_of_the_restored_graph(
    backend: LibraryBackend, device: LibraryDevice, context: LibraryContext
) -> None:
    graph = finalized(context)
    assert graph.set_config(threads(2)) == 0
    restored = LibraryContext.from_binary(device, context.get_binary())
    profile = backend.create_profile(ProfileLevel.BASIC)
    restored.graphs["g"].execute({"x": np.zeros(X.shape, np.uint8)}, profile)
    assert {event.type: event.value for event in profile.events()}[8001] == 2


def test_a_graph_that_its_context_cannot_have_is_an_error_in_the_log(
    context: LibraryContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients ask whether nodes are supported; whoever creates a graph wants it."""
    for number in range(MAX_COMPRESSED_GRAPHS):
        context.create_graph(f"plain {number}")
    place = ctypes.c_void_p()
    compressed = optimization(Optimization.DLBC, 1)
    listing = pointer_list([compressed])
    with caplog.at_level(logging.ERROR, "openhtp.capi"):
        asked = context.library.ask("graphCreate", context.handle, b"more", listing, ctypes.addressof(place))
    assert asked == NOT_SUPPORTED
    assert "is one too many" in caplog.text


@pytest.mark.parametrize("done", [False, True])
def test_b1_options_that_nobody_knows_are_refused(
    context: LibraryContext, done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    graph = finalized(context) if done else unfinished(context)
    unknown = [
        (htp_option(999, keep, number32=1), INVALID_ARGUMENT),
        (htp_option(HtpGraphOption.HMX_BOUNDING, keep, number32=1), NOT_SUPPORTED),
        (optimization(99, 1.0), INVALID_ARGUMENT),
        (struct("Config")(option=77), NOT_SUPPORTED),
        (struct("Config")(option=GraphOption.PROFILE_HANDLE), NOT_SUPPORTED),
    ]
    for option, code in unknown:
        for options in ((option,), (threads(2), option)):
            caplog.clear()
            assert graph.set_config(*options) == code, "as when a graph is created"
            assert [record.levelname for record in caplog.records] == ["ERROR"], "said in words"
    assert graph.ask("graphSetConfig", 0) == INVALID_ARGUMENT
    assert graph.set_config(threads(0)) == 0, "as many as there are"
    assert graph.set_config(threads(1 << 40)) == 0, "as many as there are"


def test_b13_an_option_without_effect_is_a_warning_also_later(
    context: LibraryContext, caplog: pytest.LogCaptureFixture
) -> None:
    graph = unfinished(context)
    assert graph.set_config(htp_option(HtpGraphOption.ASSUME_SAME_QUANT, keep, number32=1), threads(2)) == 0
    assert "QNN_HTP_GRAPH_CONFIG_OPTION_ASSUME_SAME_QUANT is taken, and has no effect" in caplog.text


def test_b1_what_is_fixed_by_preparation_changes_before_it_only(context: LibraryContext, lib_dir: Path) -> None:
    graph = unfinished(context)
    assert graph.set_config(vtcm(2), optimization(Optimization.FINALIZE_FLAG, 3.0)) == 0
    graph.library_graph.finalize()
    assert (stored(context, lib_dir).vtcm, stored(context, lib_dir).optimization) == (2 << 20, 3)
    for option in (vtcm(4), optimization(Optimization.FINALIZE_FLAG, 1.0), optimization(Optimization.DLBC, 1.0)):
        assert graph.set_config(option) == FINALIZED
        assert graph.set_config(threads(2), option) == FINALIZED
    about = stored(context, lib_dir)
    assert (about.vtcm, about.optimization, about.dlbc) == (2 << 20, 3, 0)


def with_slc(context: LibraryContext) -> RawGraph:
    """In little VTCM, so that something spills."""
    graph = unfinished(context)
    assert graph.set_config(slc(1.0), vtcm(1)) == 0
    graph.library_graph.finalize()
    return graph


def test_b3_the_system_cache_is_turned_off_and_on_between_executions(
    backend: LibraryBackend, context: LibraryContext
) -> None:
    graph = with_slc(context)
    first = told(backend, graph)[3003]
    assert graph.set_config(slc(0.0)) == 0
    without = told(backend, graph)[3003]
    assert without > first
    assert graph.set_config(slc(1.0)) == 0
    assert told(backend, graph)[3003] == first
    # As the page that documents it writes it: the kind of optimization where the option's number belongs.
    assert graph.set_config(htp_option(Optimization.SLC_ALLOCATOR, keep, optimization=(0x7FFFFFFF, 0.0))) == 0
    assert told(backend, graph)[3003] == without


def test_b3_a_graph_that_was_prepared_without_the_system_cache_stays_so(context: LibraryContext) -> None:
    graph = finalized(context)
    assert graph.set_config(slc(0.0)) == 0
    assert graph.set_config(slc(1.0)) == FINALIZED


def test_b10_what_a_binary_says_about_threads_and_compression(device: LibraryDevice, lib_dir: Path) -> None:
    plain = LibraryContext.create(device)
    finalized(plain)
    assert (stored(plain, lib_dir).hvx_threads, stored(plain, lib_dir).dlbc) == (4, 0)
    chosen = LibraryContext.create(device)
    graph = unfinished(chosen)
    assert graph.set_config(optimization(Optimization.DLBC, 1.0), threads(2)) == 0
    graph.library_graph.finalize()
    assert (stored(chosen, lib_dir).hvx_threads, stored(chosen, lib_dir).dlbc) == (2, 1)


@pytest.mark.parametrize(("value", "on"), [(0.0, 0), (1.0, 1), (2.5, 1)])
def test_compression_is_on_from_one_up(context: LibraryContext, lib_dir: Path, value: float, on: int) -> None:
    graph = unfinished(context)
    assert graph.set_config(optimization(Optimization.DLBC, value)) == 0
    graph.library_graph.finalize()
    assert stored(context, lib_dir).dlbc == on


def test_b10_all_levels_of_profiles_tell_the_same_number_of_threads(
    backend: LibraryBackend, context: LibraryContext
) -> None:
    graph = finalized(context)
    levels = (ProfileLevel.BASIC, ProfileLevel.DETAILED, ProfileLevel.LINTING)
    assert {told(backend, graph, level)[8001] for level in levels} == {4}
