"""Calls of the C interface by a program in C: on our library and, where it can do the same, on the vendor's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import openhtp as htp
from openhtp.bench.preemption import UrgentRow, urgent_row
from openhtp.bench.quiet import Progress, QuietResult
from openhtp.bench.subjects import quantized_network
from openhtp.capi.identity import backend_path, lib_dir
from openhtp.core import status as st
from openhtp.core.errors import ExecutionError, UnsupportedFeature
from openhtp.vendor.library import find_library, load
from openhtp.vendor.metadata import SystemLibrary

_SOURCE = Path(__file__).parent / "native" / "c_calls.c"
# A piece counts if the loop before and after it took at most this much longer than the quickest one.
MOST_SLOWED = 1.06
# The program measures each of three kinds of pieces for half a minute at most.
_MOST_SECONDS = 300


class CallsRow(msgspec.Struct, frozen=True):
    """Microseconds at the median, on each library; None where the vendor's is not there or refuses."""

    what: str
    openhtp_us: float
    vendor_us: float | None = None


class CCallsResult(QuietResult, kw_only=True):
    """Everything ``openhtp bench c`` measured. All times are of the wall clock."""

    calls: list[CallsRow] = msgspec.field(default_factory=list)
    urgent: list[UrgentRow] = msgspec.field(default_factory=list)
    network: str = ""
    long_ms: float = 0.0
    vendor_installed: bool = False

    def ratio_to_later(self, what: str) -> float:
        """How many times as long as a later call the call takes that the program calls ``what``."""
        took_us = {row.what: row.openhtp_us for row in self.calls}
        return took_us[_WORDS[what]] / took_us[_WORDS["later"]]


class CallPiece(msgspec.Struct, frozen=True):
    """One line of the program."""

    what: str
    took_us: float
    quiet: bool


def run(*, pieces: int = 15, samples: int = 300, network: str = "resnet50") -> Iterator[Progress | CCallsResult]:
    """Measure; yields progress, and the result last."""
    vendor = find_library()
    result = CCallsResult(vendor_installed=vendor is not None, network=network)
    with tempfile.TemporaryDirectory(prefix="openhtp-bench-") as folder:
        program = _compile(Path(folder))
        yield Progress("calls of a trivial graph", 0, 3)
        ours = _pieces(program, backend_path(), "calls", str(pieces))
        yield Progress("the same on the vendor's library", 1, 3)
        theirs = [] if vendor is None else _pieces(program, str(vendor), "calls", str(pieces))
        result.calls = [
            CallsRow(words, _median(ours, what), _median(theirs, what) if _times_of(theirs, what) else None)
            for what, words in _WORDS.items()
        ]
        yield Progress(f"an urgent graph beside {network}", 2, 3)
        beside = _pieces(program, backend_path(), "urgent", _describe(Path(folder), network), str(samples))
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
    "first": "  the first one of a context that has run",
    "fresh": "  the first one of a graph that has not run",
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


def _describe(folder: Path, network: str) -> str:
    """A file that describes the run to the program: a context binary, and the tensors of its graph."""
    with htp.Backend() as backend, backend.create_device().create_context() as context:
        context.compose_graph(htp.onnx.load(quantized_network(network)), "long").finalize()
        blob = context.get_binary()
    binary = folder / "long.bin"
    binary.write_bytes(blob)
    (graph,) = SystemLibrary.beside(load(backend_path())).binary_info(blob).graphs
    ends = [
        [t for t in graph.tensors if t.spec.kind.is_input],
        [t for t in graph.tensors if t.spec.kind.is_output],
    ]
    lines = [str(binary), graph.name, " ".join(str(len(end)) for end in ends)]
    for tensor in (*ends[0], *ends[1]):
        spec = tensor.spec
        lines.append(" ".join(map(str, (tensor.id, spec.nbytes, spec.rank, *spec.shape))))
    described = folder / "long.txt"
    described.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(described)


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
    most = MOST_SLOWED * min(loops, default=0.0)
    return [CallPiece(row[0], float(row[1]), all(float(value) <= most for value in row[2:4])) for row in rows]


def _times_of(pieces: Sequence[CallPiece], what: str) -> list[float]:
    """Quiet ones; all, if there is none."""
    mine = [piece for piece in pieces if piece.what == what]
    return sorted(piece.took_us for piece in [piece for piece in mine if piece.quiet] or mine)


def _median(pieces: Sequence[CallPiece], what: str) -> float:
    times = _times_of(pieces, what)
    return times[len(times) // 2]


def _urgent_row(pieces: Sequence[CallPiece], what: str, words: str, long_us: float) -> UrgentRow:
    mine = [piece for piece in pieces if piece.what == what]
    return urgent_row(words, [piece.took_us for piece in mine if piece.quiet], [p.took_us for p in mine], long_us)
