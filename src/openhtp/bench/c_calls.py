"""Calls of the C interface by a program in C: on our library and, where it can do the same, on the vendor's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

import openhtp as htp
from openhtp.bench.cancelling import late_ms
from openhtp.bench.preemption import DISTURBED, UrgentRow, urgent_goals, urgent_row
from openhtp.bench.quiet import BenchProgress, MeasuredGoal, QuietResult
from openhtp.bench.subjects import quantized_network
from openhtp.capi.identity import backend_path, lib_dir
from openhtp.core import status as st
from openhtp.core.errors import BadBinary, ExecutionError, UnsupportedFeature
from openhtp.core.files import read_file
from openhtp.vendor.library import find_library, load
from openhtp.vendor.metadata import SystemLibrary

_SOURCE = Path(__file__).parent / "native" / "c_calls.c"
# A piece counts if the loop before and after it took at most this much longer than the quickest one.
MOST_SLOWED = 1.06
# The program measures each of three kinds of pieces for half a minute at most.
_MOST_SECONDS = 300
_MOST_BYTES = 1 << 30
_GRAPHS = 4  # of the large binary, of which one is in use
_MOMENTS = 10
# The goals.
_MOST_QUEUED_US, _MOST_FIRST, _MOST_RESIDENT, _MOST_LATE_MS = 25, 2, 2.0, 100


class CallsRow(msgspec.Struct, frozen=True):
    """Microseconds at the median, on each library; None where the vendor's is not there or refuses."""

    what: str
    openhtp_us: float
    vendor_us: float | None = None


class CCallsResult(QuietResult, kw_only=True):
    """Everything ``openhtp bench c`` measured. All times are of the wall clock.

    ``late_ms`` has the longest time from an abort signal until the creation of a context was back, by the form in
    which the binary was given.
    """

    calls: list[CallsRow] = msgspec.field(default_factory=list)
    urgent: list[UrgentRow] = msgspec.field(default_factory=list)
    network: str = ""
    long_ms: float = 0.0
    graph_mib: int = 0
    resident_mib: float = 0.0
    late_ms: dict[str, float] = msgspec.field(default_factory=dict)
    vendor_installed: bool = False

    def ratio_to_later(self, what: str) -> float:
        """How many times as long the call named ``what`` takes as a later call after the same break."""
        took_us = {row.what: row.openhtp_us for row in self.calls}
        return took_us[_WORDS[what]] / took_us[_WORDS["rested"]]

    def goals(self) -> list[MeasuredGoal]:
        """The goals, each with the figure that was reached."""
        queued = next(row for row in self.calls if row.what == _WORDS["async"])
        in_use = f"memory with {self.graph_mib} of {_GRAPHS * self.graph_mib} MiB in use, the mapping given back"
        return [
            MeasuredGoal(queued.what, "us", queued.openhtp_us, _MOST_QUEUED_US),
            MeasuredGoal(
                "first asynchronous call of a context", "x a later", self.ratio_to_later("first"), _MOST_FIRST
            ),
            MeasuredGoal("  of a graph that has not run", "x a later", self.ratio_to_later("fresh"), _MOST_FIRST),
            *urgent_goals(row for row in self.urgent if row.what != _BESIDE["equal"]),
            MeasuredGoal(in_use, "MiB", self.resident_mib, _MOST_RESIDENT * self.graph_mib),
            *(
                MeasuredGoal(f"an aborted creation is back, {how}", "ms", late, _MOST_LATE_MS)
                for how, late in self.late_ms.items()
            ),
        ]


class CallPiece(msgspec.Struct, frozen=True):
    """One line of the program."""

    what: str
    number: float
    quiet: bool


def run(
    *, pieces: int = 15, samples: int = 300, network: str = "resnet50", graph_mib: int = 60
) -> Iterator[BenchProgress | CCallsResult]:
    """Measure; yields progress, and the result last. ``graph_mib``: the size of a graph of the large binary."""
    vendor = find_library()
    result = CCallsResult(vendor_installed=vendor is not None, network=network, graph_mib=graph_mib)
    with tempfile.TemporaryDirectory(prefix="openhtp-bench-") as name:
        folder = Path(name)
        program = _compile(folder)
        yield BenchProgress("calls of a trivial graph", 0, 5)
        ours = _pieces(program, backend_path(), "calls", str(pieces))
        yield BenchProgress("the same on the vendor's library", 1, 5)
        theirs = [] if vendor is None else _pieces(program, str(vendor), "calls", str(pieces))
        result.calls = [
            CallsRow(words, _median(ours, what), _median(theirs, what) if numbers_of(theirs, what) else None)
            for what, words in _WORDS.items()
        ]
        yield BenchProgress(f"an urgent graph beside {network}", 2, 5)
        beside = _pieces(program, backend_path(), "urgent", _describe_network(folder, network), str(samples))
        yield BenchProgress("memory for a graph of a large binary", 3, 5)
        large = _describe_large(folder, graph_mib)
        result.resident_mib = _median(_pieces(program, backend_path(), "memory", large), "resident")
        yield BenchProgress("creations that are aborted", 4, 5)
        result.late_ms = _late_ms(folder / "large.bin")
        aborted = _pieces(program, backend_path(), "cancel", large, str(_MOMENTS))
        result.late_ms["from C"] = max((piece.number / 1e3 for piece in aborted), default=0.0)
    result.long_ms = _median(beside, "long") / 1e3
    result.urgent = [_urgent_row(beside, what, words, result.long_ms * 1e3) for what, words in _BESIDE.items()]
    every = [*ours, *beside]
    result.quiet_pieces = sum(piece.quiet for piece in every)
    result.noisy_pieces = len(every) - result.quiet_pieces
    yield result


_WORDS = {
    "sync": "graphExecute",
    "async": "graphExecuteAsync, 10 deep, each",
    "later": "graphExecuteAsync until its notification, alone",
    "rested": "  after a break of some milliseconds",
    "first": "  the first one of a context that has run, after such a break",
    "fresh": "  the first one of a graph that has not run, after such a break",
    "cold": "  the first call of all, which makes everything ready",
}
_BESIDE = {
    "equal": "equal priorities, graphExecute on two threads",
    "sync": "low and high, graphExecute on two threads",
    "async": "low and high, graphExecuteAsync",
}


def _compile(folder: Path) -> Path:
    words = os.environ.get("CC", "").split() or next(
        ([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), []
    )
    if not words:
        raise UnsupportedFeature(
            "no C compiler was found, and this measures a program in C; install gcc, or set CC",
            st.QNN_COMMON_ERROR_NOT_SUPPORTED,
        )
    program = folder / "c_calls"
    include = lib_dir().parent / "include"
    command = [*words, "-O2", f"-I{include}", str(_SOURCE), "-o", str(program), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExecutionError(f"{words[0]} cannot compile {_SOURCE.name}: {done.stderr.strip()[-500:]}")
    return program


def _describe_network(folder: Path, network: str) -> str:
    """A network of the zoo, as a file for the program."""
    with htp.Backend() as backend, backend.create_device().create_context() as context:
        context.compose_graph(htp.onnx.load(quantized_network(network)), "long").finalize()
        return _describe(folder / "long.bin", context.get_binary())


def _describe_large(folder: Path, graph_mib: int) -> str:
    """Graphs with weights of this size, as a file for the program."""
    noise, sizes = np.random.default_rng(1), (1024 * graph_mib, 1024)
    with htp.Backend() as backend, backend.create_device().create_context() as context:
        for number in range(_GRAPHS):
            graph = context.create_graph(f"part{number}")
            x = graph.add_tensor("x", (1, 1024), "ufixed8", quant=_ACTIVATIONS, kind="app_write")
            weights = noise.integers(-127, 128, sizes, np.int8)
            w = graph.add_tensor("w", sizes, "sfixed8", quant=_WEIGHTS, kind="static", data=weights)
            o = graph.add_tensor("o", (1, sizes[0]), "ufixed8", quant=_ACTIVATIONS, kind="app_read")
            graph.add_node("FullyConnected", name="dense", inputs=[x, w], outputs=[o])
            graph.finalize()
        return _describe(folder / "large.bin", context.get_binary())


_ACTIVATIONS, _WEIGHTS = htp.ScaleOffset(0.02, -128), htp.ScaleOffset(0.01, 0)


def _describe(binary: Path, blob: bytes) -> str:
    """Write a context binary, and a file that describes its first graph's tensors to the program."""
    binary.write_bytes(blob)
    graph = SystemLibrary.beside(load(backend_path())).binary_info(blob).graphs[0]
    ends = [
        [t for t in graph.tensors if t.spec.kind.is_input],
        [t for t in graph.tensors if t.spec.kind.is_output],
    ]
    lines = [str(binary), graph.name, " ".join(str(len(end)) for end in ends)]
    for tensor in (*ends[0], *ends[1]):
        spec = tensor.spec
        lines.append(" ".join(map(str, (tensor.id, spec.nbytes, spec.rank, *spec.shape))))
    described = binary.with_suffix(".txt")
    described.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(described)


def _late_ms(binary: Path) -> dict[str, float]:
    """The longest time until an aborted creation was back, in Python."""
    with htp.Backend() as backend:
        device = backend.create_device()
        ways: dict[str, bytes | Path] = {
            "from bytes": read_file(binary, most=_MOST_BYTES, what="a context binary", error=BadBinary),
            "from a path": binary,
        }
        return {how: max(late_ms(device, source, _MOMENTS), default=0.0) for how, source in ways.items()}


def _pieces(program: Path, *words: str) -> list[CallPiece]:
    try:
        done = subprocess.run(
            [str(program), *words], capture_output=True, text=True, check=False, timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ExecutionError(
            f"the program in C is not over after {_MOST_SECONDS} s; expected a third of that on a busy machine"
        ) from error
    if done.returncode:
        raise ExecutionError(f"the program in C failed: {done.stderr.strip()[-500:] or done.returncode}")
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("= ")]
    loops = [float(value) for row in rows for value in row[2:4] if float(value)]
    most_us = MOST_SLOWED * min(loops, default=0.0)
    alone_us = next((float(row[1]) for row in rows if row[0] == "long"), 0.0)
    return [piece_of(row[0], *map(float, row[1:]), most_us=most_us, alone_us=alone_us) for row in rows]


def piece_of(
    what: str,
    number: float,
    before_us: float,
    after_us: float,
    long_us: float = 0.0,
    *,
    most_us: float,
    alone_us: float,
) -> CallPiece:
    """A piece is quiet if the loops were quick and the long run that it interrupted, if any, was not disturbed."""
    is_long_quiet = long_us <= DISTURBED * alone_us + number
    return CallPiece(what, number, max(before_us, after_us) <= most_us and is_long_quiet)


def numbers_of(pieces: Sequence[CallPiece], what: str) -> list[float]:
    """The values of quiet pieces; of all pieces, if none was quiet."""
    mine = [piece for piece in pieces if piece.what == what]
    return sorted(piece.number for piece in [piece for piece in mine if piece.quiet] or mine)


def _median(pieces: Sequence[CallPiece], what: str) -> float:
    numbers = numbers_of(pieces, what)
    return numbers[len(numbers) // 2]


def _urgent_row(pieces: Sequence[CallPiece], what: str, words: str, long_us: float) -> UrgentRow:
    mine = [piece for piece in pieces if piece.what == what]
    return urgent_row(words, [piece.number for piece in mine if piece.quiet], [p.number for p in mine], long_us)
