"""Context binaries in files: by path and by descriptor, read when needed, and what happens when they change."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import onnx, zoo
from openhtp.core import telling
from openhtp.program.binary import read_binary
from openhtp.program.sources import FileSource
from tests.conftest import dense_graph, ramp, relu_graph
from tests.program.forging import parts_of, put_together
from tests.waiting import PATIENCE_S

ROWS = 512
WEIGHTS = np.random.default_rng(1).normal(size=(ROWS, ROWS)).astype(np.float32)

F_ADD_SEALS, F_SEAL_WRITE = 1033, 8


@pytest.fixture(scope="module")
def binary(shared_device: htp.Device) -> bytes:
    """A graph that is prepared, and two plain ones."""
    with shared_device.create_context() as context:
        context.compose_graph(onnx.load(zoo.quantized(zoo.MODELS["small_cnn"]())), "net").finalize()
        dense_graph(context, "dense", WEIGHTS)
        relu_graph(context, "relu")
        return context.get_binary()


@pytest.fixture
def path(binary: bytes, tmp_path: Path) -> Path:
    found = tmp_path / "model.bin"
    found.write_bytes(binary)
    return found


def run(graph: htp.Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return graph.execute({t.name: rng.normal(size=t.shape).astype(t.dtype.numpy) for t in graph.inputs})


@pytest.fixture(scope="module")
def expected(shared_device: htp.Device, binary: bytes) -> dict[str, dict[str, np.ndarray]]:
    with shared_device.create_context_from_binary(binary) as context:
        return {name: run(graph) for name, graph in context.graphs.items()}


def check(context: htp.Context, expected: dict[str, dict[str, np.ndarray]]) -> None:
    for name, values in expected.items():
        for key, found in run(context.graph(name)).items():
            np.testing.assert_array_equal(found, values[key])


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
@pytest.mark.parametrize("how", ["path", "str", "descriptor", "memory"])
def test_a_context_from_a_file(
    backend: htp.Backend,
    path: Path,
    expected: dict[str, dict[str, np.ndarray]],
    transport: str,
    how: str,
) -> None:
    device = backend.create_device(transport=transport)
    fd = os.open(path, os.O_RDONLY)
    memory = os.memfd_create("binary")
    os.write(memory, path.read_bytes())
    given = {"path": path, "str": str(path), "descriptor": fd, "memory": memory}[how]
    try:
        with device.create_context_from_binary(given) as context:
            assert context.graph("net").was_prepared
            check(context, expected)
            assert context.get_binary() == path.read_bytes()
    finally:
        os.close(fd)  # it stayed the caller's
        os.close(memory)


def test_descriptors_are_given_back(shared_device: htp.Device, path: Path) -> None:
    def count() -> tuple[int, int]:
        gc.collect()  # what tests before this one left behind is not to go in between
        return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{shared_device.pid}/fd"))

    shared_device.create_context_from_binary(path).free()
    before = count()
    held = [shared_device.create_context_from_binary(path) for _ in range(5)]
    for context in held:
        context.free()
    assert count() == before


def test_only_the_header_is_read_for_metadata(
    shared_device: htp.Device, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []
    real = FileSource.read

    def watched(file: FileSource, begin: int, end: int) -> memoryview:
        read.append((begin, end))
        return real(file, begin, end)

    monkeypatch.setattr(FileSource, "read", watched)
    summary = shared_device.validate_binary(path)
    assert [graph.name for graph in summary.graphs] == ["net", "dense", "relu"]
    assert summary.nbytes == path.stat().st_size
    assert summary.info.soc == "SM8650"
    assert summary.suboptimal == ""
    assert sum(end - begin for begin, end in read) <= 4096
    shared_device.validate_binary(path, check_data=True)
    assert sum(end - begin for begin, end in read) > summary.nbytes - 4096


def test_graphs_that_are_not_enabled_are_not_read(backend: htp.Backend, path: Path, binary: bytes) -> None:
    """Their damage is nobody's business until somebody wants them."""
    weights = read_binary(binary).packed("dense").blobs[0]
    with open(path, "r+b") as file:
        file.seek(weights.begin + 100)
        file.write(b"damage")
    device = backend.create_device()
    with device.create_context_from_binary(path, enable_graphs=["relu"]) as context:
        np.testing.assert_array_equal(context.graph("relu").execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    with pytest.raises(htp.BadBinary, match=r"'w' \(bytes .*\) is damaged.*make the binary again.*'dense'"):
        device.create_context_from_binary(path)
    with pytest.raises(htp.BadBinary, match="damaged"):
        device.validate_binary(path, check_data=True)
    assert device.validate_binary(path).nbytes == len(binary)
    assert device.restarts == 0


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_a_file_that_is_cut_while_it_is_in_use(
    backend: htp.Backend, path: Path, expected: dict[str, dict[str, np.ndarray]], transport: str
) -> None:
    """Graphs that are ready go on; what has to be read again is an error, in either process, and no SIGBUS."""
    device = backend.create_device(transport=transport)
    with device.create_context_from_binary(path) as context:
        os.truncate(path, 8192)
        check(context, expected)
        with pytest.raises(htp.BadBinary, match=r"ends at byte \d+; it had"):
            context.get_binary()
    with pytest.raises(htp.BadBinary, match="it was cut"):
        device.create_context_from_binary(path)
    assert device.restarts == 0


def test_a_client_that_cuts_a_file_under_the_device(
    backend: htp.Backend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the client's look at the header and the device's at the data."""
    from openhtp.runtime.binaries import load

    real = load.load_graphs

    def cut_first(*args: object, **options: object) -> None:
        os.truncate(path, 16384)
        real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "load_graphs", cut_first)
    device = backend.create_device()
    with pytest.raises(htp.BadBinary, match="cut"):
        device.create_context_from_binary(path)
    assert device.restarts == 0
    assert device.info()["sessions"][0]["bytes"] == 0


def test_a_mapped_file_and_an_array_are_bytes(shared_device: htp.Device, path: Path) -> None:
    """The documents advise to map binaries."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        for given in (mapped, np.fromfile(path, np.uint8), bytearray(mapped)):
            with shared_device.create_context_from_binary(given) as context:  # type: ignore[arg-type]
                assert context.graphs
        with pytest.raises(htp.InvalidArgument, match="expected a list of at least one binary"):
            shared_device.create_contexts_from_binaries(mapped)  # type: ignore[arg-type]
    with pytest.raises(htp.InvalidArgument, match="binary is a mmap"):
        shared_device.create_context_from_binary(mapped)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_PATH])
def test_a_descriptor_that_cannot_be_read(shared_device: htp.Device, path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        with pytest.raises(htp.InvalidArgument, match=f"descriptor {fd}, which was not opened for reading"):
            shared_device.create_context_from_binary(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.int64(3), "binary is an int64; expected bytes"),
        (1.5, "binary is a float; expected bytes, or the path or descriptor of a file"),
        (True, "binary is a bool"),
        (999_999, "descriptor 999999: Bad file descriptor"),
        (-1, "descriptor -1"),
        (1 << 70, "descriptor"),
        ("/nonexistent/x.bin", "cannot read '/nonexistent/x.bin': No such file"),
        ("/dev/zero", "it is a device; expected a regular file with a context binary"),
        ("/tmp", "it is a folder"),
        ("\0", "cannot read"),
    ],
)
def test_what_is_no_binary(shared_device: htp.Device, given: object, words: str) -> None:
    for call in (shared_device.create_context_from_binary, shared_device.validate_binary):
        with pytest.raises(htp.QnnError, match=words):
            call(given)  # type: ignore[operator]


def test_a_pipe_is_no_binary(shared_device: htp.Device) -> None:
    reading, writing = os.pipe()
    with pytest.raises(htp.InvalidArgument, match="no regular file"):
        shared_device.create_context_from_binary(reading)
    os.close(reading)
    os.close(writing)


# Whether it fits


def changed_info(binary: bytes, **info: object) -> bytes:
    header, sections = parts_of(binary)
    header["info"].update(info)
    return put_together(header, sections)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (
            {"soc": "SM8550", "arch": 73},
            r"made for 'SM8550' \(v73, 8 MB of VTCM\); this device is SM8650 \(v75, 8 MB\)",
        ),
        ({"vtcm_mb": 4}, "made for 4 MB of VTCM; this SM8650 has 8 MB"),
    ],
)
def test_a_binary_that_is_not_at_its_best(
    backend: htp.Backend,
    binary: bytes,
    info: dict[str, object],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = backend.create_device(transport="inprocess")
    other = changed_info(binary, **info)
    with pytest.raises(htp.QnnError, match=words) as caught:
        device.create_context_from_binary(other, compatibility="strict")
    assert caught.value.name == "QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL"
    assert "make it again for SM8650 from its model, or load it with compatibility=" in str(caught.value)
    with pytest.raises(htp.QnnError, match=words):
        device.validate_binary(other, compatibility="strict")
    assert device.info()["sessions"][0]["bytes"] == 0
    assert device.validate_binary(other).suboptimal
    with device.create_context_from_binary(other, compatibility="permissive") as context:
        context.graph("relu").execute({"x": ramp()})
    assert "compiled again" in caplog.text


@pytest.mark.parametrize(("platform", "refused"), [("android", True), ("any", False)])
def test_a_named_platform_refuses_a_binary_of_another_architecture(
    backend: htp.Backend, binary: bytes, platform: str, refused: bool
) -> None:
    device = backend.create_device(platform=platform, transport="inprocess")
    other = changed_info(binary, soc="SM8550", arch=73)
    for load in (device.create_context_from_binary, device.validate_binary):
        if refused:
            with pytest.raises(htp.QnnError, match="its results would not be determined on android") as caught:
                load(other)
            assert caught.value.name == "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY"
        else:
            load(other)
    device.create_context_from_binary(changed_info(binary, vtcm_mb=4)).free()


def test_strict_takes_what_is_at_its_best(backend: htp.Backend, binary: bytes) -> None:
    device = backend.create_device(transport="inprocess")
    device.validate_binary(binary, compatibility="strict")
    device.create_context_from_binary(binary, compatibility="strict").free()
    with pytest.raises(htp.QnnError, match="compatibility"):
        device.validate_binary(binary, compatibility="lenient")


# How it is loaded


@pytest.mark.parametrize(
    "options",
    [
        {"file_read_memory_budget_in_mb": 1},
        {"init_acceleration": True},
        {"file_read_memory_budget_in_mb": 25, "init_acceleration": True},
    ],
    ids=str,
)
def test_however_it_is_loaded_results_are_the_same(
    backend: htp.Backend, path: Path, expected: dict[str, dict[str, np.ndarray]], options: dict[str, Any]
) -> None:
    with backend.create_device().create_context_from_binary(path, **options) as context:
        assert context.graph("net").was_prepared
        check(context, expected)


@pytest.mark.parametrize(("way", "told"), [("bytes", 1), ("path", 0), ("mapped", 0), ("list of bytes", 1)])
def test_a_read_budget_for_memory_that_is_not_mapped_is_told_of_once(
    shared_device: htp.Device,
    path: Path,
    way: str,
    told: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(telling, "told", set())
    budget = {"file_read_memory_budget_in_mb": 1}
    for _ in range(2):
        if way == "list of bytes":
            creation = shared_device.create_contexts_from_binaries([path.read_bytes()], **budget)
            (context,) = creation.result(PATIENCE_S)
            context.free()
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            binary = {"bytes": path.read_bytes(), "path": path, "mapped": mapped}[way]
            shared_device.create_context_from_binary(binary, **budget).free()
    records = [each for each in caplog.records if "mapped memory" in each.message]
    assert [each.levelname for each in records] == ["WARNING"] * told


def test_equal_graphs_have_the_same_sessions(backend: htp.Backend) -> None:
    """Weights are held by sessions, so these are what must be there once."""
    device = backend.create_device(transport="inprocess")
    model = onnx.load(zoo.quantized(zoo.MODELS["small_cnn"]()))
    with device.create_context(weight_sharing_enabled=True) as context:
        for name in ("one", "two"):
            context.compose_graph(model, name).finalize()
        both = context.get_binary()
    opened = read_binary(both)
    assert opened.packed("one").blobs == opened.packed("two").blobs
    with device.create_context_from_binary(both) as context:
        one, two = context.graphs.values()
        held = [
            graph.loaded for graph in next(iter(device.link.lease.host.core.sessions.values())).graphs.values()
        ]
        stages = [{id(stage.session) for stage in loaded._stages.stages} for loaded in held]
        assert stages[0] == stages[1]
        assert one.was_prepared
        first = run(one)
        for name, values in run(two).items():
            np.testing.assert_array_equal(values, first[name])


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_bytes_whose_memory_the_kernel_is_busy_with(
    backend: htp.Backend,
    binary: bytes,
    expected: dict[str, dict[str, np.ndarray]],
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sealing answers EBUSY while pages are being moved; the binary is read all the same."""
    real, refused = fcntl.fcntl, []

    def busy(fd: int, command: int, value: int = 0) -> int:
        if command == F_ADD_SEALS and value & F_SEAL_WRITE:
            refused.append(fd)
            raise OSError(errno.EBUSY, "busy")
        return real(fd, command, value)

    device = backend.create_device(transport=transport)
    monkeypatch.setattr(fcntl, "fcntl", busy)
    with device.create_context_from_binary(binary) as context:
        check(context, expected)
    assert refused
