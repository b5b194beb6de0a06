"""Memory that the client made: used where it lies; on a device of several programs only if it cannot shrink."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import socket
import tempfile
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.rpc import messages as ms
from tests.conftest import ramp, relu_graph

SHRINK, GROW, WRITE, SEAL = 2, 4, 8, 1


@contextlib.contextmanager
def memfd(nbytes: int, *, seals: int = 0, sealing: bool = True) -> Iterator[int]:
    fd = os.memfd_create("client", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealing else 0))
    try:
        os.ftruncate(fd, nbytes)
        if seals:
            fcntl.fcntl(fd, 1033, seals)
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.fixture(params=["rpc", "inprocess"])
def context(backend: htp.Backend, request: pytest.FixtureRequest) -> htp.Context:
    return backend.create_device(transport=request.param).create_context()


@pytest.mark.parametrize("mem_type", [None, "ion", "dma_buf", "QNN_MEM_TYPE_DMA_BUF", 1])
def test_results_are_written_into_the_clients_memory(context: htp.Context, mem_type: Any) -> None:
    graph = relu_graph(context)
    with memfd(4096) as fd:
        os.pwrite(fd, ramp().tobytes(), 0)
        mem = context.register_memory(fd=fd, nbytes=4096, mem_type=mem_type)
        x, y = mem.array("x", offset=0), mem.array("y", offset=2048)
        graph.execute({"x": x}, {"y": y})
        found = np.frombuffer(os.pread(fd, 32, 2048), np.float32)
        np.testing.assert_array_equal(found, np.maximum(ramp(), 0).ravel())
        os.pwrite(fd, (-ramp()).tobytes(), 0)  # nothing was copied: the device sees what is written now
        graph.execute({"x": x}, {"y": y})
        np.testing.assert_array_equal(y, np.maximum(-ramp(), 0))


@contextlib.contextmanager
def shm_opened(nbytes: int) -> Iterator[int]:
    memory = SharedMemory(create=True, size=nbytes)
    try:
        with open(f"/dev/shm/{memory.name}", "r+b") as file:
            yield file.fileno()
    finally:
        memory.close()
        memory.unlink()


UNSEALED = [lambda: memfd(4096, sealing=False), lambda: memfd(4096, seals=SEAL), lambda: shm_opened(4096)]


@pytest.mark.parametrize("make", UNSEALED)
def test_memory_that_cannot_be_sealed_serves_a_device_of_ones_own(context: htp.Context, make: Any) -> None:
    graph = relu_graph(context)
    with make() as fd:
        os.pwrite(fd, ramp().tobytes(), 0)
        mem = context.register_memory(fd=fd, nbytes=4096)
        graph.execute({"x": mem.array("x", offset=0)}, {"y": mem.array("y", offset=2048)})
        found = np.frombuffer(os.pread(fd, 32, 2048), np.float32)
        np.testing.assert_array_equal(found, np.maximum(ramp(), 0).ravel())


@pytest.mark.parametrize("make", UNSEALED)
def test_memory_that_cannot_be_sealed_is_refused_where_it_would_end_others(
    backend: htp.Backend, make: Any
) -> None:
    device = backend.create_device(name=f"several-{os.getpid()}")
    context = device.create_context()
    with make() as fd, pytest.raises(htp.InvalidArgument, match="MFD_ALLOW_SEALING") as caught:
        context.register_memory(fd=fd, nbytes=4096)
    assert caught.value.name == "QNN_MEM_ERROR_INVALID_ARGUMENT"


def test_who_cuts_the_memory_short_loses_a_device_of_ones_own(backend: htp.Backend) -> None:
    context = backend.create_device().create_context()
    graph = relu_graph(context)
    with memfd(4096, sealing=False) as fd:
        mem = context.register_memory(fd=fd, nbytes=4096)
        x, y = mem.array("x", offset=0), mem.array("y", offset=2048)
        os.ftruncate(fd, 0)
        with pytest.raises(htp.DeviceLost):
            graph.execute({"x": x}, {"y": y})


def test_the_size_is_sealed_and_the_descriptor_stays_the_clients(context: htp.Context) -> None:
    with memfd(8192) as fd:
        mem = context.register_memory(nbytes=100, fd=fd)
        assert mem.nbytes == 100
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        os.ftruncate(fd, 16384)
        os.close(fd)
        mem.bytes[:] = 7
        mem.deregister()


def test_memory_that_is_refused_is_not_sealed(context: htp.Context) -> None:
    with memfd(100) as fd:
        with pytest.raises(htp.InvalidArgument):
            context.register_memory(nbytes=4096, fd=fd)
        os.ftruncate(fd, 0)


def test_only_what_was_asked_for_is_counted(context: htp.Context) -> None:
    with memfd(1 << 20) as fd:
        context.register_memory(nbytes=4096, fd=fd)
        (session,) = context.device.info()["sessions"]
        assert session["memory"]["io"] == 4096


@contextlib.contextmanager
def regular_file() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        yield file.fileno()


@contextlib.contextmanager
def readable_only() -> Iterator[int]:
    with memfd(4096) as fd:
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        try:
            yield again
        finally:
            os.close(again)


@contextlib.contextmanager
def a_socket() -> Iterator[int]:
    with socket.socket() as made:
        yield made.fileno()


@pytest.mark.parametrize(
    ("make", "status", "words"),
    [
        (regular_file, "QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE", "no shared memory.*dma-buf"),
        (a_socket, "QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE", "no shared memory"),
        (lambda: memfd(4096, seals=WRITE), "QNN_MEM_ERROR_MAPPING", "reading and writing"),
        (readable_only, "QNN_MEM_ERROR", "descriptor"),
        (lambda: memfd(100), "QNN_MEM_ERROR_INVALID_ARGUMENT", "has 100 B"),
        (lambda: memfd(0), "QNN_MEM_ERROR_INVALID_ARGUMENT", "has 0 B"),
        (lambda: contextlib.nullcontext(987654), "QNN_MEM_ERROR_INVALID_ARGUMENT", "cannot be used"),
        (lambda: contextlib.nullcontext(-1), "QNN_MEM_ERROR_INVALID_ARGUMENT", "open descriptor"),
        (lambda: contextlib.nullcontext("3"), "QNN_MEM_ERROR_INVALID_ARGUMENT", "open descriptor"),
    ],
)
def test_what_is_no_memory_or_written_by_nobody_is_refused(
    context: htp.Context, make: Any, status: str, words: str
) -> None:
    gc.collect()  # what earlier tests left must not go in between
    before = set(os.listdir("/proc/self/fd"))
    with make() as fd:
        with pytest.raises(htp.QnnError, match=words) as caught:
            context.register_memory(nbytes=4096, fd=fd)
        assert caught.value.name.startswith(status)
    assert set(os.listdir("/proc/self/fd")) <= before  # threads may close what earlier tests had
    (session,) = context.device.info()["sessions"]
    assert session["bytes"] == 0


@pytest.mark.parametrize(
    ("mem_type", "fd", "words"),
    [("ion", None, "no descriptor"), ("custom", 3, "custom"), ("nonsense", 3, "unknown"), (99, 3, "unknown")],
)
def test_types_that_do_not_go_with_what_is_given(context: htp.Context, mem_type: Any, fd: Any, words: str) -> None:
    with pytest.raises(htp.QnnError, match=words):
        context.register_memory(nbytes=64, fd=fd, mem_type=mem_type)


def test_the_same_memory_is_registered_once(context: htp.Context) -> None:
    with memfd(4096) as fd:
        mem = context.register_memory(nbytes=4096, fd=fd)
        again = os.dup(fd)
        with pytest.raises(htp.WrongState, match=f"memory {mem.number}") as caught:
            context.register_memory(nbytes=64, fd=again)
        os.close(again)
        assert caught.value.name == "QNN_MEM_ERROR_ALREADY_REGISTERED"
        mem.deregister()
        context.register_memory(nbytes=64, fd=fd)


@pytest.mark.parametrize("make", [regular_file, lambda: memfd(4096), lambda: memfd(4096, sealing=False)])
def test_the_device_does_not_believe_the_client_library(backend: htp.Backend, make: Any) -> None:
    context = backend.create_device(name=f"several-{os.getpid()}").create_context()
    with make() as fd, pytest.raises(htp.InvalidArgument, match="sealed"):
        context.opened.link.request(ms.RegisterMemory(context=context.opened.number), (fd,))
    with memfd(64, seals=SHRINK) as fd, pytest.raises(htp.InvalidArgument, match="sealed size"):
        context.opened.link.request(ms.RegisterMemory(context=context.opened.number, nbytes=65), (fd,))
    assert backend.has_capability("MEMORY_SUPPORT_MEM_TYPE_DMA_BUF")


@pytest.mark.skipif(not Path("/dev/udmabuf").exists(), reason="the system makes no dma-bufs")
def test_a_dma_buf(context: htp.Context) -> None:
    import struct

    with memfd(4096, seals=SHRINK) as fd:
        driver = os.open("/dev/udmabuf", os.O_RDWR)
        buffer = fcntl.ioctl(driver, 0x40187542, struct.pack("IIQQ", fd, 1, 0, 4096))
        mem = context.register_memory(nbytes=4096, fd=buffer, mem_type="dma_buf")
        mem.bytes[:] = 1
        os.close(buffer)
        os.close(driver)
