"""Context binaries of one network by one compiler, for many sizes of VTCM, in a process of their own.

Run with a folder, it prepares what ``order.json`` in it asks for; that process may end at any case without harm.
Time is that from a graph in memory to its binary, of the whole process; a command adds a second for its start.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from openhtp.capi.identity import backend_path
from openhtp.compiler.driver import CompileOptions, portable_program
from openhtp.core.errors import QnnError
from openhtp.core.units import MIB
from openhtp.device.library_target import build_graph
from openhtp.frontend.onnx_import import load as load_model
from openhtp.hw.catalog import find_soc
from openhtp.ir.graph import Graph
from openhtp.options import GRAPH
from openhtp.runtime.objects.backend import Backend
from openhtp.tools.models import library_of
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary

ROOT = Path(__file__).parent.parent
SOC, LEVEL = "SM8650", 2
FLOAT = "float"
_LIMIT_S = 900
_REASON = 160
_MODEL, _ORDER = "network.onnx", "order.json"
# A graph and its options, to a binary and the processor time that it took.
Save = Callable[[Graph, dict[str, int]], tuple[bytes, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One network in one precision for one chip, size of VTCM and level of optimization."""

    network: str
    precision: str = FLOAT
    soc: str = SOC
    vtcm_mb: int
    level: int = LEVEL


class CompiledBinary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A binary: bytes of the file and of its spill-fill buffer, processor time; or why there is none."""

    nbytes: int = 0
    spill_fill: int = 0
    seconds: float = 0.0
    refused: str = ""


class Compiler:
    """One of the two: the vendor's library at a path, or this package. Keeps what it has made."""

    def __init__(self, library: Path | None, results: Path) -> None:
        self._library = library
        self._results = results
        # Ours changes with the source, the vendor's with its library.
        self._version = _source_digest() if library is None else str(load(library).build_id)

    def make(self, model: bytes, cases: Sequence[Case]) -> list[CompiledBinary]:
        """The binaries of a network, made now or earlier. All cases are for one chip."""
        self._results.mkdir(parents=True, exist_ok=True)
        files = [self._kept(model, case) for case in cases]
        while missing := [(case, path) for case, path in zip(cases, files, strict=True) if not path.exists()]:
            ended = self._run(model, missing)
            # Where the process ended, it wrote nothing: this case is why.
            if not missing[0][1].exists():
                _write(missing[0][1], CompiledBinary(refused=ended))
        return [msgspec.json.decode(path.read_bytes(), type=CompiledBinary) for path in files]

    def _kept(self, model: bytes, case: Case) -> Path:
        words = (self._version, case.soc, str(case.vtcm_mb), str(case.level))
        name = hashlib.sha256("\0".join(words).encode() + model).hexdigest()[:24]
        return self._results / f"{name}.json"

    def _run(self, model: bytes, missing: Sequence[tuple[Case, Path]]) -> str:
        """Prepare cases in a process; what it said at its end."""
        library = None if self._library is None else library_of(str(self._library))
        order = {"library": library, "cases": [(asdict(case), str(path.resolve())) for case, path in missing]}
        with tempfile.TemporaryDirectory(prefix="openhtp-compilers-") as folder:
            Path(folder, _MODEL).write_bytes(model)
            Path(folder, _ORDER).write_text(json.dumps(order))
            command = [sys.executable, __file__, folder]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
            except subprocess.TimeoutExpired:
                return f"not ready after {_LIMIT_S} s"
        said = done.stderr.splitlines()[-1:] or [""]
        return f"its process ended with status {done.returncode}. {said[0]}"[:_REASON]


def prepare(folder: Path) -> None:
    """Make all binaries of an order, on one device, and write what is known of each."""
    order = json.loads(Path(folder, _ORDER).read_text())
    library = order["library"]
    cases = [(Case(**words), Path(path)) for words, path in order["cases"]]
    system = SystemLibrary.beside(load(library or backend_path()))
    save = _by_ours(cases[0][0].soc) if library is None else _by_library(Path(library), cases[0][0].soc)
    for case, path in cases:
        try:
            graph = load_model(Path(folder, _MODEL).read_bytes())
            blob, seconds = save(graph, {"vtcm_bytes": case.vtcm_mb * MIB, "optimization_level": case.level})
            (saved,) = system.binary_info(blob).graphs
        except QnnError as error:
            _write(path, CompiledBinary(refused=" ".join(str(error).split())[:_REASON]))
        else:
            spilled = saved.spill_fill_bytes
            _write(path, CompiledBinary(nbytes=len(blob), spill_fill=spilled, seconds=round(seconds, 2)))


def _by_ours(soc: str) -> Save:
    device = Backend().create_device(soc=soc, host="thread")

    def save(graph: Graph, options: dict[str, int]) -> tuple[bytes, float]:
        began = time.process_time()
        with device.create_context(prepare_only=True) as context:
            context.compose_graph(graph, **options).finalize()
            return context.get_binary(), time.process_time() - began

    return save


def _by_library(library: Path, soc: str) -> Save:
    """The library in this process, as the device process of ``--backend`` uses it."""
    model = find_soc(soc).soc_model
    device = LibraryBackend(load(library), soc=model).create_device(soc=model)

    def save(graph: Graph, options: dict[str, int]) -> tuple[bytes, float]:
        program = portable_program(graph, CompileOptions(GRAPH.defaults().replace(**options)))
        with LibraryContext.create(device) as context:
            built = build_graph(context, program)
            began = time.process_time()
            built.finalize()
            return context.get_binary(), time.process_time() - began

    return save


def _write(path: Path, outcome: CompiledBinary) -> None:
    path.write_bytes(msgspec.json.encode(outcome))


def _source_digest() -> str:
    package = ROOT / "src" / "openhtp"
    rooms = ("compiler", "program", "ops", "frontend", "ir", "hw")
    total = hashlib.sha256()
    for path in sorted(path for room in rooms for path in (package / room).rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
