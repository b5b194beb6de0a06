"""Paths that a caller gave are read by ``core/files.py`` and nowhere else: there they are regular and bounded."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src/openhtp"
READS = {"open", "read_bytes", "read_text", "fromfile", "memmap", "loadtxt", "genfromtxt"}
LOADERS = ("np", "numpy", "onnx")

# Who reads files that no caller named, or writes.
OWN = {
    "core/files.py": "the one place; it also writes",
    "core/model_store.py": "the package's own files; locks of its own, links not followed; writes",
    "abi/memory.py": "/proc; a file that is mapped here already, without blocking, checked to be that",
    "bench/cancelling.py": "openhtp.onnx.load, of a model that it made",
    "bench/loading.py": "what it wrote itself; /proc",
    "bench/subjects.py": "openhtp.onnx.load, of a model that it made",
    "capi/system.py": "writes",
    "cli/doctor.py": "/proc and /sys",
    "cli/device.py": "/proc",
    "cli/run.py": "opens members of an archive that it writes",
    "cli/_terminal.py": "/dev/null; /proc",
    "cli/main.py": "the package's own files",
    "core/shared_library.py": "the head of the library that is to be loaded; the package's own files",
    "cost/model.py": "a resource of the package",
    "cost/rates.py": "a resource of the package",
    "device/connection.py": "/dev/null",
    "cost/llm.py": "a resource of the package",
    "device/power.py": "the kernel's own file for latencies, which is only written",
    "llm/tokenizer.py": "bytes that came through core/files.py",
    "engine/code_pages.py": "/proc",
    "engine/cutting.py": "opens sessions, not files",
    "engine/prepared.py": "opens sessions, not files",
    "engine/seal.py": "the user's own key, opened without blocking, with its owner and size checked; /proc",
    "engine/sessions.py": "what ONNX Runtime just wrote to a folder of ours",
    "engine/integer_kernels.py": "/proc",
    "frontend/calibration.py": "pictures and members of an archive whose bytes came through core/files.py",
    "frontend/quantize.py": "what the quantizer just wrote to a folder of ours",
    "hw/clocks.py": "a resource of the package",
    "hw/catalog.py": "a resource of the package",
    "report/page.py": "a resource of the package",
    "rpc/shm.py": "/dev",
    "rpc/rendezvous.py": "a folder",
    "rpc/windows.py": "/proc",
    "session/on_cpu.py": "what ONNX Runtime just wrote to a folder of ours",
    "session/profiling.py": "writes",
    "runtime/instruments/saver.py": "writes",
    "sweeping/engine.py": "the package's own files",
    "sweeping/results.py": "a resource of the package",
    "sweeping/store.py": "a lock, links not followed; SQLite's file once it is known to be a regular one",
}


def reads_files(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.open":  # also where it is handed on
            return True
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                name, of = node.func.attr, getattr(node.func.value, "id", "")
            else:
                name, of = "open" if getattr(node.func, "id", "") == "open" else "", ""
            if name in READS or (name == "load" and of in LOADERS):
                return True
    return False


def test_no_other_place_reads_files() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if reads_files(path)}
    assert found - set(OWN) == set(), "read what a caller named through openhtp.core.files"
    assert set(OWN) - found == set(), "these read no files any more"
