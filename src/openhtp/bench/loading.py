"""How soon a network is ready, and how soon its first result is there: from ONNX, and from a context binary.

The binary is made on one device and loaded on another, whose process already runs, as a client finds it. The peer
is plain ONNX Runtime, making its session from the same QDQ file and from that file as it saves it, optimised. All
are measured in turns. Who only defers work to the first inference is found out by the time of the first result.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

import openhtp as htp
from openhtp import zoo
from openhtp.bench import binaries
from openhtp.bench.binaries import BinaryFigures
from openhtp.bench.queueing import Progress
from openhtp.bench.quiet import Measurement, Quiet, median
from openhtp.bench.subjects import NETWORKS, import_network, quantized_network
from openhtp.config import BackendConfig
from openhtp.engine.onnxruntime import onnxruntime

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

    ``times_onnxruntime`` says how many times sooner than the plain peer, ``time_to_saved_ort`` how much of the
    time that the peer takes from what it saved itself.
    """

    network: str
    way: str
    ready_s: float
    first_result_s: float
    times_onnxruntime: float
    time_to_saved_ort: float
    file_bytes: int


class LoadResult(msgspec.Struct, kw_only=True):
    """Everything ``openhtp bench load`` measured: medians, of the wall clock."""

    rows: list[LoadRow] = []
    binaries: BinaryFigures | None = None
    lists: list[ListRow] = []
    prepared: bool = True  # False if a device could not use what another had prepared, and prepared it again
    quiet_pieces: int = 0
    noisy_pieces: int = 0


class _Way(NamedTuple):
    piece: Callable[[], LoadTimes]
    file: bytes


def run(
    *,
    networks: Sequence[str] = NETWORKS,
    rounds: int = 9,
    large: bool = True,
    config: BackendConfig | None = None,
) -> Iterator[Progress | LoadResult]:
    """Measure; yields progress, and the result last. ``large``: large binaries, too."""
    result = LoadResult()
    total = len(networks) * (rounds + 1) + (binaries.STEPS if large else 0)
    with (
        htp.Backend() as makers,
        htp.Backend() as readers,
        tempfile.TemporaryDirectory(prefix="openhtp-") as folder,
    ):
        maker = makers.create_device(threads=1, config=config)
        reader = readers.create_device(threads=1, config=config)
        local = readers.create_device(transport="inprocess", threads=1, config=config)
        quiet = Quiet()
        for place, name in enumerate(networks):
            done = place * (rounds + 1)
            yield Progress(f"{name}: quantizing and compiling", done, total)
            path = Path(folder) / f"{name}.bin"
            ways = _ways(name, maker, reader, local, path)
            result.prepared &= _is_prepared(reader, ways[BINARY].file)
            times: dict[str, list[Measurement[LoadTimes]]] = {way: [] for way in ways}
            for number in range(rounds):
                yield Progress(f"{name}: round {number + 1} of {rounds}", done + 1 + number, total)
                for way, contender in ways.items():
                    times[way].append(quiet.measure(contender.piece))
            result.rows += _rows(name, ways, times)
            result.lists.append(compare(name, reader, path, quiet, rounds))
    result.quiet_pieces, result.noisy_pieces = quiet.kept, quiet.dropped
    for step in binaries.run(total - binaries.STEPS, total) if large else ():
        if isinstance(step, BinaryFigures):
            result.binaries = step
        else:
            yield step
    yield result


def _ways(name: str, maker: htp.Device, reader: htp.Device, local: htp.Device, path: Path) -> dict[str, _Way]:
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
        PLAIN: _Way(lambda: _plain(model, feed), model),
        SAVED: _Way(lambda: _plain(saved, feed), saved),
    }
    for way in ways.values():
        way.piece()  # code is loaded, and memory met, for the first time
    return ways


def _rows(name: str, ways: dict[str, _Way], times: dict[str, list[Measurement[LoadTimes]]]) -> list[LoadRow]:
    ready = {way: median([Measurement(s.value.ready, s.quiet) for s in found]) for way, found in times.items()}
    first = {way: median([Measurement(s.value.first, s.quiet) for s in found]) for way, found in times.items()}
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


def _plain(model: bytes, feed: dict[str, npt.NDArray[Any]]) -> LoadTimes:
    begin = time.perf_counter()
    session = onnxruntime.InferenceSession(model, _options(), providers=["CPUExecutionProvider"])
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


def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _saved(model: bytes) -> bytes:
    """The model as ONNX Runtime saves it for quick loading."""
    with tempfile.TemporaryDirectory(prefix="openhtp-") as folder:
        path = Path(folder) / "model.ort"
        options = _options()
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.save_model_format", "ORT")
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
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


def compare(network: str, device: htp.Device, path: Path, quiet: Quiet, rounds: int) -> ListRow:
    """Measure all in turns."""
    in_turn: list[Measurement[_ListingTime]] = []
    accelerated: list[Measurement[_ListingTime]] = []
    listed: list[Measurement[_ListingTime]] = []
    for _ in range(rounds):
        in_turn.append(quiet.measure(lambda: _timed(device, lambda: _one_by_one(device, path))))
        accelerated.append(quiet.measure(lambda: _timed(device, lambda: _one_by_one(device, path, fast=True))))
        listed.append(quiet.measure(lambda: _timed(device, lambda: _listed(device, path))))
    slow, quick = _seconds(in_turn), _seconds(listed)
    return ListRow(
        network=network,
        contexts=CONTEXTS,
        one_by_one_s=slow,
        one_by_one_cpus=median([Measurement(made.value.cpus, made.quiet) for made in in_turn]),
        accelerated_s=_seconds(accelerated),
        list_s=quick,
        list_cpus=median([Measurement(made.value.cpus, made.quiet) for made in listed]),
        ratio=slow / quick,
    )


def _seconds(samples: Sequence[Measurement[_ListingTime]]) -> float:
    return median([Measurement(made.value.seconds, made.quiet) for made in samples])


def _one_by_one(device: htp.Device, path: Path, *, fast: bool = False) -> list[htp.Context]:
    return [device.create_context_from_binary(path, init_acceleration=fast) for _ in range(CONTEXTS)]


def _listed(device: htp.Device, path: Path) -> list[htp.Context]:
    return device.create_contexts_from_binaries([path] * CONTEXTS).result()


def _timed(device: htp.Device, make: Callable[[], list[htp.Context]]) -> _ListingTime:
    used, begin = _processor_seconds(device), time.perf_counter()
    made = make()
    took = time.perf_counter() - begin
    used = _processor_seconds(device) - used
    for context in made:
        context.free()
    return _ListingTime(took, used / took)


def _processor_seconds(device: htp.Device) -> float:
    """Of this process and of the device's, by the kernel's clock of a process, which counts ended threads, too."""
    return time.process_time() + time.clock_gettime(~device.pid << 3 | 2)
