"""The graphs of a context binary go to the device together: what they share once, and all of them or none."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

import openhtp as htp
from openhtp.program.binary import read_binary
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from tests.conftest import dense_graph, ramp

ROWS = 256
WEIGHTS = np.arange(ROWS * ROWS, dtype=np.float32).reshape(ROWS, ROWS) % 7
HALVES = WEIGHTS.nbytes // 2  # as they are stored
NAMES = ("first", "second", "third")


@pytest.fixture(scope="module")
def binary(shared_device: htp.Device) -> bytes:
    with shared_device.create_context(weight_sharing_enabled=True) as context:
        for name in NAMES:
            dense_graph(context, name, WEIGHTS)
        return context.get_binary()


@pytest.fixture(params=["rpc", "inprocess"])
def device(backend: htp.Backend, request: pytest.FixtureRequest) -> htp.Device:
    return backend.create_device(transport=request.param)


def session(device: htp.Device) -> dict:
    (only,) = device.info()["sessions"]
    return only


@contextlib.contextmanager
def in_memory(data: bytes) -> Iterator[int]:
    with contextlib.closing(SharedBuffer.holding([data])) as buffer:
        yield buffer.fd


def test_equal_weights_are_held_once(device: htp.Device, binary: bytes) -> None:
    with device.create_context_from_binary(binary) as context:
        assert HALVES <= session(device)["memory"]["weights"] < 1.5 * HALVES
        expected = dense_graph(device.create_context(), "alone", WEIGHTS).execute({"x": ramp((1, ROWS))})["y"]
        for name in NAMES:
            np.testing.assert_array_equal(context.graph(name).execute({"x": ramp((1, ROWS))})["y"], expected)
    assert session(device)["graphs"] == ["alone"]


def test_graphs_that_are_not_enabled_are_not_sent(device: htp.Device, binary: bytes) -> None:
    with device.create_context_from_binary(binary, enable_graphs=["third"]):
        assert session(device)["graphs"] == ["third"]
    with device.create_context_from_binary(binary, enable_graphs=[]):
        assert session(device)["memory"]["weights"] == 0


def test_what_graphs_share_is_sent_once(binary: bytes) -> None:
    whole = read_binary(binary)
    for names in (["third"], ["third", "first"], list(NAMES)):
        assert HALVES < sum(part.end - part.begin for part in whole.ranges(names)) < HALVES * 1.5
    assert all(one.end <= other.begin for one, other in itertools.pairwise(whole.ranges(["third", "first"]))), (
        "each byte once, in order"
    )
    with pytest.raises(htp.InvalidArgument, match="no graph 'fourth'"):
        whole.ranges(["fourth"])


def test_a_damaged_graph_is_named_and_nothing_is_loaded(backend: htp.Backend) -> None:
    device = backend.create_device()
    with device.create_context() as context:
        dense_graph(context, "sound", WEIGHTS)
        other = context.create_graph("spoilt")
        x = other.add_tensor("x", (8, 512), "float32", kind="app_write")
        b = other.add_tensor("b", (8, 512), "float32", data=np.arange(4096, dtype=np.float32).reshape(8, 512) % 5)
        y = other.add_tensor("y", (8, 512), "float32", kind="app_read")
        other.add_node("ElementWiseAdd", inputs=[x, b], outputs=[y])
        other.finalize()
        data = bytearray(context.get_binary())
    [section] = set(read_binary(data).packed("spoilt").blobs) - set(read_binary(data).packed("sound").blobs)
    data[section.begin] ^= 0xFF
    with pytest.raises(htp.BadBinary, match=r"damaged.*graph 'spoilt'"):
        device.create_context_from_binary(data)
    assert session(device)["graphs"] == []
    assert session(device)["bytes"] == 0


@pytest.mark.parametrize("places", [[(0, 0), (1, 99)], [(0, 0), (0, 0)], [(0, 0), (3, 0)], [(-1, 0)], []], ids=str)
def test_all_or_none(device: htp.Device, binary: bytes, places: list[tuple[int, int]]) -> None:
    """A core that does not exist, a graph twice, one that does not exist, and no graph at all."""
    context = device.create_context()

    def load(wanted: list[tuple[int, int]]) -> ms.Reply:
        graphs = [ms.WantedGraph(place=place, priority=100, core=core) for place, core in wanted]
        request = ms.LoadGraphs(context=context.opened.number, nbytes=len(binary), graphs=graphs)
        with in_memory(binary) as fd:
            return context.opened.link.request(request, (fd,))

    with pytest.raises(htp.QnnError):
        load(places)
    assert session(device)["graphs"] == []
    assert session(device)["bytes"] == 0
    reply = load([(1, 0), (0, 0)])
    assert session(device)["graphs"] == ["second", "first"]
    assert len({loaded.graph for loaded in reply.graphs}) == 2


def test_a_place_is_told_once() -> None:
    from openhtp.core.errors import error_context

    error = htp.InvalidArgument("it")
    places = error_context(graph="g"), error_context(node="n"), error_context(graph="g")
    with pytest.raises(htp.InvalidArgument), places[0], places[1], places[2]:
        raise error
    assert error.context == ["graph 'g'", "node 'n'"]


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_data_that_changes_after_it_was_given_changes_nothing(transport: str) -> None:
    """A constant is what it was when its tensor was made: in results, and in what is saved later."""
    with htp.Backend() as backend:
        context = backend.create_device(transport=transport).create_context()
        graph = context.create_graph("sums")
        given = np.full((1, 4096), 2, np.float32)
        x = graph.add_tensor("x", (1, 4096), "float32", kind="app_write")
        c = graph.add_tensor("c", (1, 4096), "float32", kind="static", data=given)
        y = graph.add_tensor("y", (1, 4096), "float32", kind="app_read")
        given[:] = 3
        graph.add_node("ElementWiseAdd", inputs=[x, c], outputs=[y])
        graph.finalize()
        given[:] = 4
        ones = np.ones((1, 4096), np.float32)
        assert (graph.execute({"x": ones})["y"] == 3).all()
        saved = backend.create_device(transport=transport).create_context_from_binary(context.get_binary())
        assert (saved.graphs["sums"].execute({"x": ones})["y"] == 3).all()
