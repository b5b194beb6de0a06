"""What large context binaries cost: time until their metadata is there, and memory of the device process.

All measured. Memory is what the kernel counts for the device process: its share (PSS) before and after, and its
peak while a binary is loaded, which ``/proc/PID/clear_refs`` sets back before.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import openhtp as htp
from openhtp import zoo
from openhtp.bench.queueing import Progress
from openhtp.bench.subjects import import_network, quantized_network
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.units import GIB, MIB
from openhtp.ir.builder import GraphBuilder
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.packed import pack_program
from openhtp.program.qnn_program import QnnProgram

_ROUNDS = 7
BUDGET_MB = 25
_LAYERS, _WIDTH, _BATCH = 12, 3072, 64
STEPS = 5
"""Steps of progress that ``run`` tells."""


class BinaryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All measured. Ratios are two graphs of equal weights to one of them; bytes are over what stays resident.

    ``sizes`` are a float ResNet18 at two resolutions; ``float_file_ratio`` is one to the bytes of its weights.
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


def run(done: int, total: int) -> Iterator[Progress | BinaryFigures]:
    """Measure; yields progress, and the figures last. ``done`` of ``total`` steps went before."""
    with tempfile.TemporaryDirectory(prefix="openhtp-") as folder:
        yield Progress("a binary of 1 GiB: writing", done, total)
        large = _large_file(Path(folder) / "large.bin")
        yield Progress("a binary of 1 GiB: metadata", done + 1, total)
        validate_s, metadata_s = _metadata(large)
        large_bytes = large.stat().st_size
        large.unlink()
        yield Progress("two ResNet50 graphs: shared weights", done + 2, total)
        files = _twins(Path(folder))
        one, two = (_growth(path) for path in files)
        yield Progress("a float ResNet18 at two resolutions: shared weights", done + 3, total)
        sizes = _sizes(Path(folder))
        small, both = (_growth(path) for path in sizes)
        yield Progress("a read budget of 25 MB", done + 4, total)
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


def _metadata(path: Path) -> tuple[float, float]:
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
    return _one_and_both(folder, "resnet50", model, model)


def _sizes(folder: Path) -> tuple[Path, Path]:
    """A binary of a float ResNet18 at one resolution, and one of it at two."""
    return _one_and_both(folder, "resnet18", zoo.resnet18(224), zoo.resnet18(160))


def _one_and_both(folder: Path, name: str, one: bytes, other: bytes) -> tuple[Path, Path]:
    paths = folder / f"{name}-one.bin", folder / f"{name}-both.bin"
    with htp.Backend() as backend, backend.create_device(threads=1).create_context() as context:
        for place, (model, path) in enumerate(zip((one, other), paths, strict=True)):
            import_network(context, model, f"{name}{place}")
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
    """Bytes that a fresh device has at most, while it loads, above what it keeps."""
    with htp.Backend() as backend:
        device = backend.create_device(threads=1)
        warm(device)
        Path(f"/proc/{device.pid}/clear_refs").write_text("5", encoding="ascii")
        with device.create_context_from_binary(path, file_read_memory_budget_in_mb=budget_mb):
            return kernel_says(device, "status", "VmHWM") - kernel_says(device, "status", "VmRSS")


def warm(device: htp.Device) -> None:
    """Let the device load what it loads once."""
    with device.create_context() as context:
        import_network(context, quantized_network("small_cnn"), "warm")
        binary = context.get_binary()
    device.create_context_from_binary(binary).free()


def kernel_says(device: htp.Device, file: str, field: str) -> int:
    """Bytes that the kernel counts for the device's process."""
    with open(f"/proc/{device.pid}/{file}", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
