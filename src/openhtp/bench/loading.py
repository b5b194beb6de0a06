"""How soon a network is ready, and how soon its first result is there: from ONNX, and from a context binary.

The binary is made on one device and loaded on another, whose process already runs, as a client finds it. The peer
is plain ONNX Runtime, making its session from the same QDQ file and from that file as it saves it, optimised. All
are measured in turns. The time of the first result reveals a way that only defers work to the first inference.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

import openhtp as htp
from openhtp import zoo
from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, median
from openhtp.bench.subjects import NETWORKS, import_network, plain_session, quantized_network
from openhtp.config import BackendConfig
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.units import GIB, MIB
from openhtp.ir.builder import GraphBuilder
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.packed import pack_program
from openhtp.program.qnn_program import QnnProgram

IMPORT, BINARY, IN_PROCESS = "OpenHTP, from ONNX", "OpenHTP, its binary as bytes", "OpenHTP, binary, in process"
FILE = "OpenHTP, its binary in a file"
FAST = "OpenHTP, file, init_acceleration"
PLAIN, SAVED = "ONNX Runtime, same file", "ONNX Runtime, saved .ort"
_GRAPH = "network"


class LoadTimes(NamedTuple):
    """Seconds from the start of loading until it is done, and until the first inference is."""

    ready: float
    first: float


class LoadRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to get one network ready.

    ``times_onnxruntime`` says how many times sooner than the plain peer, ``time_to_saved_ort`` which part of the
    time that the peer takes from its own saved file.
    """

    network: str
    way: str
    ready_s: float
    first_result_s: float
    times_onnxruntime: float
    time_to_saved_ort: float
    file_bytes: int


class LoadResult(QuietResult, kw_only=True):
    """Everything ``openhtp bench load`` measured: medians, of the wall clock."""

    rows: list[LoadRow] = msgspec.field(default_factory=list)
    binaries: BinaryFigures | None = None
    lists: list[ListRow] = msgspec.field(default_factory=list)
    prepared: bool = True  # False if a device could not use what another had prepared, and prepared it again


class _Way(NamedTuple):
    piece: Callable[[], LoadTimes]
    file: bytes


def run(
    *,
    networks: Sequence[str] = NETWORKS,
    rounds: int = 9,
    large: bool = True,
    config: BackendConfig | None = None,
) -> Iterator[BenchProgress | LoadResult]:
    """Measure; yields progress, and the result last. ``large``: large binaries, too."""
    result = LoadResult()
    total = len(networks) * (rounds + 1) + (BINARY_STEPS if large else 0)
    with (
        htp.Backend() as makers,
        htp.Backend() as readers,
        tempfile.TemporaryDirectory(prefix="openhtp-") as folder,
    ):
        maker = makers.create_device(threads=1, config=config)
        reader = readers.create_device(threads=1, config=config)
        local = readers.create_device(transport="inprocess", threads=1, config=config)
        quiet = QuietGate()
        for number, name in enumerate(networks):
            done = number * (rounds + 1)
            yield BenchProgress(f"{name}: quantizing and compiling", done, total)
            path = Path(folder) / f"{name}.bin"
            ways = _ways_to_load(name, maker, reader, local, path)
            result.prepared &= _is_prepared(reader, ways[BINARY].file)
            times: dict[str, list[Measurement[LoadTimes]]] = {way: [] for way in ways}
            for turn in range(rounds):
                yield BenchProgress(f"{name}: round {turn + 1} of {rounds}", done + 1 + turn, total)
                for way, contender in ways.items():
                    times[way].append(quiet.measure(contender.piece))
            result.rows += _rows(name, ways, times)
            result.lists.append(compare(name, reader, path, quiet, rounds))
    quiet.tell(result)
    for step in measure_binaries(total - BINARY_STEPS, total) if large else ():
        if isinstance(step, BinaryFigures):
            result.binaries = step
        else:
            yield step
    yield result


def _ways_to_load(
    name: str, maker: htp.Device, reader: htp.Device, local: htp.Device, path: Path
) -> dict[str, _Way]:
    model = quantized_network(name)
    feed = zoo.random_feeds(model, 1, seed=7)[0]
    with maker.create_context() as context:
        graph = import_network(context, model, _GRAPH)
        binary = context.get_binary()
        stored = _stored(graph, feed)
    saved = _saved(model)
    path.write_bytes(binary)
    ways = {
        IMPORT: _Way(lambda: _imported(reader, model, stored), model),
        BINARY: _Way(lambda: _restored(reader, binary, stored), binary),
        FILE: _Way(lambda: _restored(reader, path, stored), binary),
        FAST: _Way(lambda: _restored(reader, path, stored, fast=True), binary),
        IN_PROCESS: _Way(lambda: _restored(local, binary, stored), binary),
        PLAIN: _Way(lambda: _load_in_onnxruntime(model, feed), model),
        SAVED: _Way(lambda: _load_in_onnxruntime(saved, feed), saved),
    }
    for way in ways.values():
        way.piece()  # code is loaded, and memory touched, for the first time
    return ways


def _rows(name: str, ways: dict[str, _Way], times: dict[str, list[Measurement[LoadTimes]]]) -> list[LoadRow]:
    ready = {way: _median_of("ready", samples) for way, samples in times.items()}
    first = {way: _median_of("first", samples) for way, samples in times.items()}
    return [
        LoadRow(
            network=name,
            way=way,
            ready_s=ready[way],
            first_result_s=first[way],
            times_onnxruntime=ready[PLAIN] / ready[way],
            time_to_saved_ort=ready[way] / ready[SAVED],
            file_bytes=len(contender.file),
        )
        for way, contender in ways.items()
    ]


def _median_of(field: str, samples: Sequence[Measurement[Any]]) -> float:
    return median([Measurement(getattr(sample.value, field), sample.quiet) for sample in samples])


def _imported(device: htp.Device, model: bytes, feed: dict[str, npt.NDArray[Any]]) -> LoadTimes:
    begin = time.perf_counter()
    with device.create_context() as context:
        graph = import_network(context, model, _GRAPH)
        return _times(begin, lambda: graph.execute(feed))


def _restored(
    device: htp.Device, binary: bytes | Path, feed: dict[str, npt.NDArray[Any]], *, fast: bool = False
) -> LoadTimes:
    begin = time.perf_counter()
    with device.create_context_from_binary(binary, init_acceleration=fast) as context:
        graph = context.graph(_GRAPH)
        return _times(begin, lambda: graph.execute(feed))


def _is_prepared(device: htp.Device, binary: bytes) -> bool:
    with device.create_context_from_binary(binary) as context:
        return context.graph(_GRAPH).was_prepared


def _load_in_onnxruntime(model: bytes, feed: dict[str, npt.NDArray[Any]]) -> LoadTimes:
    begin = time.perf_counter()
    session = plain_session(model)
    return _times(begin, lambda: session.run(None, feed))


def _times(begin: float, infer: Callable[[], object]) -> LoadTimes:
    ready = time.perf_counter() - begin
    infer()
    return LoadTimes(ready, time.perf_counter() - begin)


def _stored(graph: htp.Graph, feed: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Any input of the right size does: the time does not depend on it."""
    values = iter(feed.values())
    return {
        tensor.name: np.resize(next(values), tensor.shape).astype(tensor.dtype.numpy) for tensor in graph.inputs
    }


def _saved(model: bytes) -> bytes:
    """The model as ONNX Runtime saves it for quick loading."""
    with tempfile.TemporaryDirectory(prefix="openhtp-") as folder:
        path = Path(folder) / "model.ort"
        plain_session(model, save_to=path)
        return path.read_bytes()


# Eight contexts from binaries in files: one after the other, against one call that makes them side by side.

CONTEXTS = 8


class ListRow(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until all contexts are ready; ``ratio`` is how many times sooner the list is than one by one.

    ``accelerated_s`` is one by one as well, each with ``init_acceleration``: on all processors that there are.
    ``cpus`` are processors that client and device kept busy meanwhile.
    """

    network: str
    contexts: int
    one_by_one_s: float
    one_by_one_cpus: float
    accelerated_s: float
    list_s: float
    list_cpus: float
    ratio: float


class _ListingTime(NamedTuple):
    seconds: float
    cpus: float


def compare(network: str, device: htp.Device, path: Path, quiet: QuietGate, rounds: int) -> ListRow:
    """Measure all in turns."""
    ways = (
        lambda: _one_by_one(device, path),
        lambda: _one_by_one(device, path, fast=True),
        lambda: device.create_contexts_from_binaries([path] * CONTEXTS).result(),
    )
    in_turn, accelerated, listed = zip(
        *([quiet.measure(partial(_timed, device, way)) for way in ways] for _ in range(rounds)), strict=True
    )
    slow, quick = _median_of("seconds", in_turn), _median_of("seconds", listed)
    return ListRow(
        network=network,
        contexts=CONTEXTS,
        one_by_one_s=slow,
        one_by_one_cpus=_median_of("cpus", in_turn),
        accelerated_s=_median_of("seconds", accelerated),
        list_s=quick,
        list_cpus=_median_of("cpus", listed),
        ratio=slow / quick,
    )


def _one_by_one(device: htp.Device, path: Path, *, fast: bool = False) -> list[htp.Context]:
    return [device.create_context_from_binary(path, init_acceleration=fast) for _ in range(CONTEXTS)]


def _timed(device: htp.Device, make: Callable[[], list[htp.Context]]) -> _ListingTime:
    used, begin = _processor_seconds(device), time.perf_counter()
    contexts = make()
    took = time.perf_counter() - begin
    used = _processor_seconds(device) - used
    for context in contexts:
        context.free()
    return _ListingTime(took, used / took)


def _processor_seconds(device: htp.Device) -> float:
    """Processor time of this process and of the device's, ended threads included."""
    return time.process_time() + time.clock_gettime(~device.pid << 3 | 2)


# Large context binaries: the time until their metadata is known, and memory of the device process.
#
# All measured. Memory is what the kernel counts for the device process: its share (PSS) before and after, and the
# most data (not code) that it has while a binary is loaded, looked at every millisecond.


_ROUNDS = 7
BUDGET_MB = 25
_LAYERS, _WIDTH, _BATCH = 12, 3072, 64
_SAMPLE_S = 0.001
BINARY_STEPS = 5
"""Steps of progress that ``run`` reports."""


class BinaryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All measured. Ratios compare two graphs of equal weights with one; bytes are what comes to those that stay.

    ``sizes`` are a float ResNet18 at two resolutions. ``float_file_ratio`` compares its file with its weights.
    """

    metadata_file_bytes: int
    validate_s: float
    metadata_s: float
    shared_file_ratio: float
    shared_memory_ratio: float
    one_graph_bytes: int
    sizes_file_ratio: float
    sizes_memory_ratio: float
    float_file_ratio: float
    budget_file_bytes: int
    peak_over_bytes: int
    peak_over_with_budget_bytes: int
    budget_bytes: int = BUDGET_MB * MIB


def measure_binaries(done: int, total: int) -> Iterator[BenchProgress | BinaryFigures]:
    """Measure; yields progress, and the figures last. ``done`` of ``total`` steps went before."""
    with tempfile.TemporaryDirectory(prefix="openhtp-") as folder:
        yield BenchProgress("a binary of 1 GiB: writing", done, total)
        large = _large_file(Path(folder) / "large.bin")
        yield BenchProgress("a binary of 1 GiB: metadata", done + 1, total)
        validate_s, metadata_s = _metadata_seconds(large)
        large_bytes = large.stat().st_size
        large.unlink()
        yield BenchProgress("two ResNet50 graphs: shared weights", done + 2, total)
        files = _twins(Path(folder))
        one, two = (_growth(path) for path in files)
        yield BenchProgress("a float ResNet18 at two resolutions: shared weights", done + 3, total)
        sizes = _sizes(Path(folder))
        small, both = (_growth(path) for path in sizes)
        yield BenchProgress("a read budget of 25 MB", done + 4, total)
        dense = _dense_file(Path(folder) / "dense.bin")
        yield BinaryFigures(
            metadata_file_bytes=large_bytes,
            validate_s=validate_s,
            metadata_s=metadata_s,
            shared_file_ratio=files[1].stat().st_size / files[0].stat().st_size,
            shared_memory_ratio=two / one,
            one_graph_bytes=one,
            sizes_file_ratio=sizes[1].stat().st_size / sizes[0].stat().st_size,
            sizes_memory_ratio=both / small,
            float_file_ratio=sizes[0].stat().st_size / _weight_bytes(sizes[0]),
            budget_file_bytes=dense.stat().st_size,
            peak_over_bytes=_peak_over(dense, 0),
            peak_over_with_budget_bytes=_peak_over(dense, BUDGET_MB),
        )


def _large_file(path: Path) -> Path:
    """One graph whose weights are 1 GiB of zeros, which take no room on a disk that knows holes."""
    rows, columns = 1 << 14, 1 << 14
    weights = np.zeros((rows, columns), np.float32)
    assert weights.nbytes == GIB
    x = TensorSpec("x", (1, columns), DType.FLOAT_32, None, TensorKind.APP_WRITE)
    w = TensorSpec("w", weights.shape, DType.FLOAT_32, None, TensorKind.STATIC)
    y = TensorSpec("y", (1, rows), DType.FLOAT_32, None, TensorKind.APP_READ)
    builder = GraphBuilder("large")
    builder.add_tensor(x)
    builder.add_tensor(w, weights)
    builder.add_tensor(y)
    builder.add_node(OpCall("FullyConnected", "dense", (x, w), (y,)))
    graph = builder.finish()
    program = QnnProgram(graph.name, graph.tensors, graph.statics, graph.nodes)
    with path.open("wb") as file:
        for part in pack_graphs([pack_program(program)[0]], BinaryInfo()):
            if len(part) == GIB:
                file.seek(GIB, 1)
            else:
                file.write(part)
        file.truncate()
    return path


def _metadata_seconds(path: Path) -> tuple[float, float]:
    """Seconds until a file is validated, and until a context knows all about its graphs."""
    validated, known = [], []
    with htp.Backend() as backend:
        device = backend.create_device(threads=1)
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            device.validate_binary(path)
            validated.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            with device.create_context_from_binary(path, enable_graphs=[]) as context:
                assert context.graph("large").inputs[0].shape == (1, 1 << 14)
                known.append(time.perf_counter() - begin)
    return sorted(validated)[_ROUNDS // 2], sorted(known)[_ROUNDS // 2]


def _twins(folder: Path) -> tuple[Path, Path]:
    """A binary of one ResNet50 graph, and one of two."""
    model = quantized_network("resnet50")
    return _one_and_two_graphs(folder, "resnet50", model, model)


def _sizes(folder: Path) -> tuple[Path, Path]:
    """A binary of a float ResNet18 at one resolution, and one of it at two."""
    return _one_and_two_graphs(folder, "resnet18", zoo.resnet18(224), zoo.resnet18(160))


def _one_and_two_graphs(folder: Path, name: str, one: bytes, other: bytes) -> tuple[Path, Path]:
    paths = folder / f"{name}-one.bin", folder / f"{name}-both.bin"
    with (
        htp.Backend() as backend,
        backend.create_device(threads=1).create_context(weight_sharing_enabled=True) as context,
    ):
        for number, (model, path) in enumerate(zip((one, other), paths, strict=True)):
            import_network(context, model, f"{name}{number}")
            path.write_bytes(context.get_binary())
    return paths


def _weight_bytes(path: Path) -> int:
    """Bytes of the static tensors of the only graph."""
    binary = read_binary(path.read_bytes())
    return binary.graph_info(binary.graph_names[0]).static_bytes


def _dense_file(path: Path) -> Path:
    """Twelve layers of 9 MB of 8-bit weights, enough work to be cut into parts."""
    rng = np.random.default_rng(0)
    quant: Any = htp.ScaleOffset(0.01, -128)
    with htp.Backend() as backend, backend.create_device(threads=1).create_context() as context:
        graph = context.create_graph("dense")
        last = graph.add_tensor("x", (_BATCH, _WIDTH), "ufixed8", quant=quant, kind="app_write")
        for number in range(_LAYERS):
            data = rng.integers(0, 256, (_WIDTH, _WIDTH)).astype(np.uint8)
            weights = graph.add_tensor(f"w{number}", data.shape, "ufixed8", quant=quant, data=data)
            kind = "app_read" if number == _LAYERS - 1 else "native"
            result = graph.add_tensor(f"y{number}", (_BATCH, _WIDTH), "ufixed8", quant=quant, kind=kind)
            graph.add_node("FullyConnected", name=f"n{number}", inputs=[last, weights], outputs=[result])
            last = result
        graph.finalize()
        path.write_bytes(context.get_binary())
    return path


def _growth(path: Path) -> int:
    """Bytes by which a fresh device grows when it loads a binary."""
    with htp.Backend() as backend:
        device = backend.create_device(threads=1)
        warm(device)
        before = kernel_says(device, "smaps_rollup", "Pss")
        with device.create_context_from_binary(path):
            return kernel_says(device, "smaps_rollup", "Pss") - before


def _peak_over(path: Path, budget_mb: int) -> int:
    """Bytes of data by which a fresh device, while it loads, exceeds what it keeps, at most.

    The kernel's own peak would count code as well, which a device has in memory only while it loads.
    """
    with htp.Backend() as backend:
        device = backend.create_device(threads=1)
        warm(device)
        loaded, most = threading.Event(), 0

        def watch() -> None:
            nonlocal most
            while not loaded.wait(_SAMPLE_S):
                most = max(most, kernel_says(device, "status", "RssAnon"))

        with ThreadPoolExecutor(1) as side:
            watching = side.submit(watch)
            try:
                context = device.create_context_from_binary(path, file_read_memory_budget_in_mb=budget_mb)
            finally:
                loaded.set()
            watching.result()
        kept = kernel_says(device, "status", "RssAnon")
        context.free()
        return max(0, most - kept)


def warm(device: htp.Device) -> None:
    """Let the device load the code that it loads only once."""
    with device.create_context() as context:
        import_network(context, quantized_network("small_cnn"), "warm")
        binary = context.get_binary()
    device.create_context_from_binary(binary).free()


def kernel_says(device: htp.Device, file: str, field: str) -> int:
    """Bytes that the kernel counts for the device's process."""
    with open(f"/proc/{device.pid}/{file}", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
