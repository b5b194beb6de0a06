"""Context binaries in a client's memory: when they are copied, and when they are read where they lie."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import mmap
import os
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openhtp.abi import memory
from openhtp.abi.structs import pointer_list, struct
from openhtp.capi import handles
from openhtp.capi.context import ContextHeld
from openhtp.capi.graph import GraphHeld
from openhtp.capi.signals import SignalHeld
from openhtp.core import telling
from openhtp.core.dtype import DType
from openhtp.core.enumerations import MemType
from openhtp.core.option_numbers import (
    CUSTOM,
    ContextOption,
    HtpContextOption,
    HtpContextProperty,
    SignalOption,
)
from openhtp.core.units import MIB
from openhtp.program.binary import pack_graphs, read_binary
from openhtp.program.container import make_section
from openhtp.rpc import shm
from openhtp.runtime.objects import backend as runtime
from openhtp.vendor.backend import LibraryBackend, LibraryDevice
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from tests.capi.test_client import build, expected, values
from tests.capi.test_configs import custom, plain
from tests.hostile.wire import mutated
from tests.waiting import PATIENCE_S, wait_until

ABORTED, INVALID_ARGUMENT, UNSUPPORTED_MEMTYPE = 5012, 5000, 8005
BAD_MEMORY, ALREADY_REGISTERED, INVALID_SHAPE = 8000, 8002, 8004
BALLAST = 64 * MIB
_TELL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64
)


@pytest.fixture
def device(lib_dir: Path) -> Iterator[LibraryDevice]:
    backend = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    made = backend.create_device(soc="SM8650")
    LibraryContext.create(made).free()
    yield made
    for entry, handle in (("backendFree", backend.handle), ("deviceFree", made.handle), ("logFree", backend.log)):
        made.library.call(entry, handle)


@pytest.fixture
def blob(device: LibraryDevice) -> bytes:
    """Two graphs, each with data that nothing uses."""
    context = LibraryContext.create(device)
    for name in ("first", "second"):
        build(context, name)
    small = read_binary(context.get_binary())
    context.free()
    packed = [small.packed(name) for name in small.graph_names]
    noise = np.random.default_rng(0)
    heavy = [
        dataclasses.replace(one, blobs=(*one.blobs, make_section(noise.bytes(BALLAST // 2)))) for one in packed
    ]
    return b"".join(pack_graphs(heavy, small.info))


@pytest.fixture
def mapped(blob: bytes, tmp_path: Path) -> Iterator[mmap.mmap]:
    (tmp_path / "context.bin").write_bytes(blob)
    with (tmp_path / "context.bin").open("rb") as file:
        yield mmap.mmap(file.fileno(), len(blob), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def address_of(room: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(room))


def switching() -> list[Any]:
    return [plain(ContextOption.PERSISTENT_BINARY, flag=1), plain(ContextOption.MEMORY_LIMIT_HINT, number64=1)]


def create(
    device: LibraryDevice, address: int, size: int, configs: list[Any], signal: int | None = None
) -> tuple[int, int]:
    """The code, and a handle."""
    place = ctypes.c_void_p()
    entry = "contextCreateFromBinary" + ("WithSignal" if signal else "")
    arguments = (
        device.backend.handle,
        device.handle,
        pointer_list(configs),
        address,
        size,
        ctypes.addressof(place),
    )
    return device.library.ask(entry, *arguments, None, *([signal] if signal else [])), place.value or 0


def abort_signal(device: LibraryDevice) -> int:
    place, config = ctypes.c_void_p(), struct("Config")(option=SignalOption.ABORT)
    device.library.call("signalCreate", device.backend.handle, pointer_list([config]), ctypes.addressof(place))
    return place.value or 0


def own_bytes() -> int:
    """Memory of this process that no file stands behind."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def run(device: LibraryDevice, context: int, name: bytes) -> None:
    place = ctypes.c_void_p()
    device.library.call("graphRetrieve", context, name, ctypes.addressof(place))
    inputs = values()
    out = handles.find(GraphHeld, place.value or 0).graph.execute(inputs)["o"]
    assert np.abs(out.astype(int) - expected(inputs).astype(int)).max() <= 1


def test_b7_of_a_mapped_binary_that_the_client_keeps_no_copy_is_kept(
    device: LibraryDevice, mapped: mmap.mmap
) -> None:
    before = own_bytes()
    code, context = create(device, address_of(mapped), len(mapped), switching())
    assert code == 0
    mapped.madvise(mmap.MADV_DONTNEED)
    for name in (b"first", b"second", b"first"):
        run(device, context, name)
    assert own_bytes() - before < BALLAST // 2
    device.library.call("contextFree", context, None)


def test_b7_what_a_mapped_binary_needs_is_told_without_a_copy(
    device: LibraryDevice, mapped: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, context = create(device, address_of(mapped), len(mapped), switching())
    assert code == 0
    monkeypatch.delattr(ContextHeld, "saved")
    wanted = struct("HtpContextProperty")(option=HtpContextProperty.WEIGHTS_BUFFER_SIZE)
    asked = struct("Config")(option=CUSTOM)
    asked.of.custom = ctypes.addressof(wanted)
    device.library.call("contextGetProperty", context, pointer_list([asked]))
    assert wanted.value > 0


def property_of(device: LibraryDevice, context: int, option: HtpContextProperty) -> int:
    wanted = struct("HtpContextProperty")(option=option)
    asked = struct("Config")(option=CUSTOM)
    asked.of.custom = ctypes.addressof(wanted)
    device.library.call("contextGetProperty", context, pointer_list([asked]))
    return int(wanted.value)


def register(
    device: LibraryDevice, context: int, kind: int, fd: int, size: int, offset: int = 0
) -> tuple[int, int]:
    """The code, and a handle, of a buffer of a kind that only the HTP has."""
    custom = struct("HtpMemory")(kind=kind, size=size)
    custom.of.place.fd, custom.of.place.offset = fd, offset
    given = struct("MemoryDescriptor")(mem_type=MemType.CUSTOM, data_type=int(DType.UINT_8))
    given.of.custom = ctypes.addressof(custom)
    place = ctypes.c_void_p()
    code = device.library.ask("memRegister", context, ctypes.addressof(given), 1, ctypes.addressof(place))
    return code, place.value or 0


_WEIGHTS, _SPILL_FILL = 2, 3


def test_b6_a_client_makes_and_frees_the_weights_buffer(
    device: LibraryDevice, mapped: mmap.mmap, blob: bytes
) -> None:
    """Of the size that the property tells, as a client of graph switching does it."""
    code, context = create(device, address_of(mapped), len(mapped), switching())
    assert code == 0
    size = property_of(device, context, HtpContextProperty.WEIGHTS_BUFFER_SIZE)
    fd = os.memfd_create("client", os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    seen = mmap.mmap(fd, size)
    assert register(device, context, _WEIGHTS, fd, 4096)[0] == INVALID_SHAPE
    assert register(device, context, _WEIGHTS, fd, size + 1)[0] == INVALID_SHAPE
    assert register(device, context, _WEIGHTS, fd, size, offset=64)[0] == BAD_MEMORY
    assert register(device, context, _WEIGHTS, -1, size)[0] == BAD_MEMORY
    assert register(device, context, 9, fd, size)[0] == UNSUPPORTED_MEMTYPE
    assert not any(seen[::512])
    code, mem = register(device, context, _WEIGHTS, fd, size)
    assert code == 0
    assert register(device, context, _WEIGHTS, fd, size)[0] == ALREADY_REGISTERED
    os.close(fd)
    binary = read_binary(blob)
    for name in ("first", "second", "first"):
        run(device, context, name.encode())
        own = binary.packed(name).blobs[-1].read()  # the ballast, which nothing else has
        assert seen.find(own[: 1 << 16]) >= 0
    place = ctypes.c_void_p(mem)
    assert device.library.ask("memDeRegister", ctypes.addressof(place), 1) == 0
    run(device, context, b"second")
    seen[:] = bytes(size)  # the client's again
    run(device, context, b"second")
    device.library.call("contextFree", context, None)
    seen.close()


def test_b6_a_client_makes_the_spill_fill_buffer(device: LibraryDevice, mapped: mmap.mmap) -> None:
    code, context = create(device, address_of(mapped), len(mapped), switching())
    assert code == 0
    size = max(MIB, property_of(device, context, HtpContextProperty.MAX_SPILLFILL_BUFFER_SIZE))
    fd = os.memfd_create("client", os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    assert register(device, context, _SPILL_FILL, fd, size)[0] == 0
    os.close(fd)
    for name in (b"first", b"second"):
        run(device, context, name)
    device.library.call("contextFree", context, None)  # with the buffer registered


@pytest.mark.parametrize("kind", [_WEIGHTS, _SPILL_FILL])
def test_b6_a_context_that_switches_no_graphs_has_no_such_buffer(
    device: LibraryDevice, blob: bytes, caplog: pytest.LogCaptureFixture, kind: int
) -> None:
    room = ctypes.create_string_buffer(blob, len(blob))
    code, context = create(device, ctypes.addressof(room), len(blob), [])
    assert code == 0
    fd = os.memfd_create("client", os.MFD_ALLOW_SEALING)
    os.truncate(fd, len(blob))
    with caplog.at_level(logging.ERROR, "openhtp.capi"):
        assert register(device, context, kind, fd, len(blob))[0] == UNSUPPORTED_MEMTYPE
    os.close(fd)
    assert "switches no graphs" in caplog.text
    run(device, context, b"second")
    device.library.call("contextFree", context, None)


def test_b7_what_a_client_changed_in_its_mapping_counts(device: LibraryDevice, mapped: mmap.mmap) -> None:
    mapped[10] ^= 1
    assert create(device, address_of(mapped), len(mapped), switching())[0] != 0
    mapped[10] ^= 1
    code, context = create(device, address_of(mapped), len(mapped), switching())
    assert code == 0
    run(device, context, b"second")


def test_b7_a_read_budget_reads_the_mapped_file_in_chunks(
    device: LibraryDevice, mapped: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    write = shm.write_at
    monkeypatch.setattr(
        shm, "write_at", lambda fd, offset, left: copied.append(len(left)) or write(fd, offset, left)
    )
    keep: list[Any] = []
    budget = custom("HtpContextConfig", HtpContextOption.FILE_READ_MEMORY_BUDGET, keep, number=4)
    code, context = create(device, address_of(mapped), len(mapped), [budget])
    assert code == 0
    run(device, context, b"second")
    assert sum(copied) < MIB


@pytest.mark.parametrize("is_mapped", [True, False])
def test_b7_a_read_budget_for_memory_that_is_not_mapped_is_told_of(
    device: LibraryDevice,
    mapped: mmap.mmap,
    blob: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_mapped: bool,
) -> None:
    monkeypatch.setattr(telling, "told", set())
    room = ctypes.create_string_buffer(blob, len(blob))
    keep: list[Any] = []
    budget = custom("HtpContextConfig", HtpContextOption.FILE_READ_MEMORY_BUDGET, keep, number=4)
    address = address_of(mapped) if is_mapped else ctypes.addressof(room)
    code, context = create(device, address, len(blob), [budget])
    assert code == 0
    run(device, context, b"second")
    assert ("mapped memory" in caplog.text) is not is_mapped


def test_b7_a_binary_that_the_client_does_not_keep_may_be_overwritten(device: LibraryDevice, blob: bytes) -> None:
    room = mmap.mmap(-1, len(blob))
    room[:] = blob
    code, context = create(device, address_of(room), len(room), [])
    assert code == 0
    room[:] = bytes(len(blob))
    run(device, context, b"first")
    size, written = ctypes.c_uint64(), ctypes.c_uint64()
    device.library.call("contextGetBinarySize", context, ctypes.addressof(size))
    assert size.value == len(blob)
    saved = ctypes.create_string_buffer(len(blob))
    device.library.call("contextGetBinary", context, ctypes.addressof(saved), len(blob), ctypes.addressof(written))
    assert saved.raw == blob


def test_b7_a_hole_in_the_middle_of_a_binary_is_an_error(device: LibraryDevice, blob: bytes) -> None:
    room = mmap.mmap(-1, len(blob))
    room[:] = blob
    hole = address_of(room) + len(blob) // 2 // mmap.PAGESIZE * mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(hole), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    assert create(device, address_of(room), len(room), [])[0] == INVALID_ARGUMENT
    assert create(device, address_of(room), len(room), switching())[0] == INVALID_ARGUMENT


def test_b8_a_signal_is_armed_before_a_binary_is_copied(
    device: LibraryDevice, blob: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal = abort_signal(device)
    armed: list[bool] = []

    def seen(call: Any) -> Any:
        def look(*arguments: Any) -> Any:
            armed.append(handles.find(SignalHeld, signal).signal.in_use)
            return call(*arguments)

        return look

    monkeypatch.setattr(shm, "write_at", seen(shm.write_at))
    monkeypatch.setattr(memory, "read_long", seen(memory.read_long))
    room = ctypes.create_string_buffer(blob, len(blob))
    assert create(device, ctypes.addressof(room), len(blob), [], signal)[0] == 0
    assert armed
    assert all(armed)


def test_b8_an_abort_ends_the_copying_of_a_binary(
    device: LibraryDevice, blob: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal = abort_signal(device)
    write, copied, answers = shm.write_at, [0], []

    def write_and_abort(fd: int, offset: int, left: memoryview) -> int:
        if not answers:
            answers.append(device.library.ask("signalTrigger", signal))
        copied[0] += len(left)
        return write(fd, offset, left)

    monkeypatch.setattr(shm, "write_at", write_and_abort)
    room = ctypes.create_string_buffer(blob, len(blob))
    assert create(device, ctypes.addressof(room), len(blob), [], signal) == (ABORTED, 0)
    assert answers == [0]
    assert copied[0] < BALLAST // 4


def test_b8_a_signal_ends_a_call_while_the_device_is_made(
    device: LibraryDevice, blob: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device of a process imports all that computes, which nothing interrupts."""
    fresh = device.backend.create_device(soc="SM8750")
    signal, room = abort_signal(device), ctypes.create_string_buffer(blob, len(blob))
    may_go, really = threading.Event(), runtime.Backend.create_device

    def slow(backend: runtime.Backend, **options: Any) -> Any:
        handles.find(SignalHeld, signal).signal.trigger()
        may_go.wait(PATIENCE_S)
        return really(backend, **options)

    monkeypatch.setattr(runtime.Backend, "create_device", slow)
    assert create(fresh, ctypes.addressof(room), len(blob), [], signal) == (ABORTED, 0)
    may_go.set()
    code, context = create(fresh, ctypes.addressof(room), len(blob), [])
    assert code == 0
    assert device.library.ask("contextFree", context, None) == 0
    fresh.free()


def test_b8_a_signal_is_armed_before_the_device_is_made(
    device: LibraryDevice, blob: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal, make, answers = abort_signal(device), runtime.Backend.create_device, []

    def make_and_abort(*arguments: Any, **options: Any) -> Any:
        answers.append(device.library.ask("signalTrigger", signal))
        return make(*arguments, **options)

    monkeypatch.setattr(runtime.Backend, "create_device", make_and_abort)
    fresh = device.backend.create_device(soc="SM8650")
    room = ctypes.create_string_buffer(blob, len(blob))
    try:
        assert create(fresh, ctypes.addressof(room), len(blob), [], signal) == (ABORTED, 0)
        wait_until(lambda: answers)  # the device is made on another thread, which goes on
        assert answers == [0]
    finally:
        fresh.free()


class ListTold:
    """A list of one or more contexts, and what its notifications told: kind, context and code."""

    def __init__(
        self, device: LibraryDevice, blobs: list[bytes], on_told: Callable[[], object] | None = None
    ) -> None:
        self.device = device
        self.seen: list[tuple[int, int, int]] = []
        self._on_told = on_told
        self._tell = _TELL(self._told)
        self._rooms = [ctypes.create_string_buffer(blob, len(blob)) for blob in blobs]
        self._params: list[Any] = []
        for room in self._rooms:
            one = struct("ContextParams")(version=1, binary=ctypes.addressof(room), size=len(room))
            one.notify = ctypes.cast(self._tell, ctypes.c_void_p)
            self._params.append(one)
        self._listing = pointer_list(self._params)

    def create(self, signal: int | None = None) -> int:
        arguments = (self.device.backend.handle, self.device.handle, self._listing, None, signal)
        code = self.device.library.ask("contextCreateFromBinaryListAsync", *arguments)
        for room in self._rooms:  # as a client that frees it
            ctypes.memset(room, 0xA5, len(room))
        return code

    def _told(self, context: int, graph: int, name: bytes, kind: int, param: int, code: int) -> None:
        self.seen.append((kind, context or 0, code))
        if self._on_told is not None:
            self._on_told()

    def free(self) -> None:
        for context in {context for _, context, _ in self.seen if context}:
            self.device.library.call("contextFree", context, None)


def test_everything_is_told_when_the_call_for_a_list_returns(device: LibraryDevice, blob: bytes) -> None:
    """Genie goes on with the handles, and frees the binaries, right after the call."""
    told = ListTold(device, [blob, blob[: len(blob) // 2], blob])
    assert told.create() == 0
    seen = list(told.seen)
    assert [kind for kind, _, _ in seen].count(1) == 3  # each context
    good = {context for kind, context, code in seen if kind == 1 and not code}
    assert len(good) == 2
    assert [code != 0 for kind, _, code in seen if kind == 1].count(True) == 1
    for context in good:
        run(device, context, b"second")
    told.free()


def test_a_callback_that_makes_a_list_is_told_afterwards(device: LibraryDevice, blob: bytes) -> None:
    inner = ListTold(device, [blob])
    answers: list[tuple[int, int]] = []

    def nested() -> None:
        if not answers:
            answers.append((inner.create(), len(inner.seen)))

    outer = ListTold(device, [blob], nested)
    assert outer.create() == 0
    wait_until(lambda: len(inner.seen) == 3)
    assert answers == [(0, 0)]
    inner.free()
    outer.free()


def test_a_binary_of_a_list_that_cannot_be_used_is_an_error_in_the_log(
    device: LibraryDevice, blob: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its notifications have a code, and no words; the other contexts are made."""
    told = ListTold(device, [blob, blob[: len(blob) // 2]])
    with caplog.at_level(logging.ERROR, "openhtp.capi"):
        assert told.create() == 0
    assert "context 2 of 2 in the list" in caplog.text
    assert sum(not code for *_, code in told.seen) == 3
    told.free()


def test_b8_a_signal_ends_a_list_while_the_device_is_made(
    device: LibraryDevice, blob: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = device.backend.create_device(soc="SM8750")
    signal, may_go, really = abort_signal(device), threading.Event(), runtime.Backend.create_device

    def slow(backend: runtime.Backend, **options: Any) -> Any:
        handles.find(SignalHeld, signal).signal.trigger()
        may_go.wait(PATIENCE_S)
        return really(backend, **options)

    monkeypatch.setattr(runtime.Backend, "create_device", slow)
    told = ListTold(fresh, [blob])
    assert told.create(signal) == ABORTED
    may_go.set()
    assert not told.seen
    assert not handles.find(SignalHeld, signal).signal.in_use
    again = ListTold(fresh, [blob])
    assert again.create(signal) == 0
    assert len(again.seen) == 3
    again.free()
    fresh.free()


def test_b7_of_mapped_binaries_of_a_list_no_copy_is_kept(device: LibraryDevice, mapped: mmap.mmap) -> None:
    told: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
    tell = _TELL(lambda context, graph, name, kind, param, code: told.put((kind, context or 0, code)))
    configs = switching()
    listing = pointer_list(configs)
    one = struct("ContextParams")(version=1, config=ctypes.addressof(listing))
    one.binary, one.size = address_of(mapped), len(mapped)
    one.notify = ctypes.cast(tell, ctypes.c_void_p)
    before = own_bytes()
    arguments = (device.backend.handle, device.handle, pointer_list([one]), None, None)
    device.library.call("contextCreateFromBinaryListAsync", *arguments)
    made = [told.get(timeout=PATIENCE_S) for _ in range(3)]  # two graphs and their context
    assert not any(code for *_, code in made)
    context = made[-1][1]
    run(device, context, b"second")
    assert own_bytes() - before < BALLAST // 2
    device.library.call("contextFree", context, None)


def test_damaged_binaries_with_a_signal_are_refused_and_let_go_of_it(device: LibraryDevice) -> None:
    """As those without one; a refusal or a context each, and the signal is free for the next."""
    context = LibraryContext.create(device)
    build(context, "g")
    sound = context.get_binary()
    context.free()
    signal, rng, answers = abort_signal(device), random.Random(22), Counter[bool]()
    for data in (sound, *(mutated(rng, sound) for _ in range(150)), sound[:-1], b"", sound):
        room = ctypes.create_string_buffer(data, max(1, len(data)))
        code, handle = create(device, ctypes.addressof(room), len(data), [], signal)
        assert (code == 0) == bool(handle)
        assert not handles.find(SignalHeld, signal).signal.in_use
        answers[code == 0] += 1
        if handle:
            device.library.call("contextFree", handle, None)
        assert data != sound or handle
    assert answers[True] >= 2
    assert answers[False] > 100
    device.library.call("signalFree", signal)
