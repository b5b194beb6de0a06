"""VTCM backup buffers: a graph counts what it has in VTCM at once, on a device, in its binary and in a plan."""

from __future__ import annotations

import functools

import pytest

import openhtp as htp
from openhtp import onnx, zoo
from openhtp.core.units import MIB
from openhtp.estimation import estimate
from openhtp.memory.ledger import largest_backup
from openhtp.memory.needs import ContextNeeds, needs_of
from openhtp.memory.planning import ContextPlan, plan_memory
from openhtp.program.binary import read_binary
from openhtp.testing import virtual_device
from tests.conftest import relu_graph

PAGE = 4096
VTCM_BYTES = 8 * MIB  # of an SM8650


def saved_on(device: htp.Device) -> int:
    """Bytes of VTCM backup buffers that a device counts for its client."""
    (session,) = device.info()["sessions"]
    return int(session["memory"]["vtcm_backup"])


def needs_in(binary: bytes) -> ContextNeeds:
    """What a plan reads in a binary."""
    stored = read_binary(binary)
    graphs = [(stored.packed(name), stored.data_of(name)) for name in stored.graph_names]
    return needs_of(graphs, largest_backup=VTCM_BYTES)


@functools.cache
def mobilenet() -> bytes:
    return zoo.mobilenet_v2()


def fill(device: htp.Device, count: int) -> None:
    """Small contexts, and nothing else, in one process domain."""
    for _ in range(count):
        relu_graph(device.create_context())
    (session,) = device.info()["sessions"]
    (domain,) = session["domains"]
    assert len(domain["contexts"]) == count
    assert domain["memory"]["vtcm_backup"] == count * PAGE


def test_hundreds_of_small_contexts_fit_on_a_device(backend: htp.Backend) -> None:
    """With 8 MiB for each there would be room for 480."""
    fill(virtual_device(backend, compute=False), 500)


@pytest.mark.slow
def test_2000_small_contexts_fit_on_a_device(backend: htp.Backend) -> None:
    fill(backend.create_device(), 2000)


def test_2000_small_contexts_fit_into_a_planned_domain(shared_device: htp.Device) -> None:
    with shared_device.create_context() as context:
        relu_graph(context)
        needs = needs_in(context.get_binary())
    plan = plan_memory([ContextPlan(name=str(number), needs=needs) for number in range(2000)], most=1)
    assert plan.fits


@pytest.mark.parametrize("options", [{}, {"vtcm_mb": 2}, {"optimization_level": 1}])
def test_a_large_network_counts_its_peak(backend: htp.Backend, options: dict[str, int]) -> None:
    """The same on the device, in its binary, in a plan of it, and, as far as it was chosen, in an estimate."""
    device = virtual_device(backend, compute=False)
    context = device.create_context()
    context.compose_graph(onnx.load(mobilenet()), **options).finalize()  # type: ignore[arg-type]
    saved = saved_on(device)
    given = options.get("vtcm_mb", 8) * MIB
    assert given // 2 < saved <= given
    assert saved % PAGE == 0
    if not options:
        peak = estimate(mobilenet(), soc="SM8650", precision="float").vtcm_peak_bytes
        assert saved - PAGE < peak <= saved
    context.free()
    assert saved_on(device) == 0


def test_a_binary_tells_the_peak_of_each_of_its_graphs(shared_device: htp.Device, backend: htp.Backend) -> None:
    """Also of one that is too small to be stored in a prepared form, and if its maker never ran it."""
    with shared_device.create_context(prepare_only=True) as maker:
        relu_graph(maker, "tiny")
        maker.compose_graph(onnx.load(zoo.small_cnn())).finalize()
        binary = maker.get_binary()
    needs = needs_in(binary)
    assert needs.graph("tiny").backup_bytes == PAGE
    assert PAGE < needs.graph("small_cnn").backup_bytes < MIB
    device = backend.create_device()
    device.create_context_from_binary(binary)
    assert saved_on(device) == needs.backup_bytes


def test_a_small_graph_fits_where_little_is_left(backend: htp.Backend) -> None:
    """What it needs is known once it is compiled: it is not refused for what it might have needed."""
    device = backend.create_device(domain_mb=64, process_domains=1)
    context = device.create_context()
    most = largest_backup(VTCM_BYTES, 64 * MIB)
    assert most > 3 * PAGE
    context.register_memory(64 * MIB - 3 * PAGE)
    relu_graph(context)
    assert saved_on(device) == PAGE
