"""``openhtp doctor``: what is installed, which devices work, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import typer
from rich.text import Text

import openhtp as htp
from openhtp.cli._terminal import JsonFile, TextTable, progress_console, show, write_json
from openhtp.core.errors import QnnError
from openhtp.core.foreign_text import printable
from openhtp.core.shared_library import FOREIGN_WHEEL, OUTDATED, REINSTALL, RENEW, WHAT_TO_DO, check_file
from openhtp.core.units import bytes_in_words
from openhtp.engine import native
from openhtp.engine.integer_kernels import integer_kernels
from openhtp.engine.onnxruntime import TELEMETRY_SWITCH
from openhtp.genie.libraries import GENIE_NAME, GENIE_VARIABLE, find_genie
from openhtp.rpc import rendezvous
from openhtp.rpc.shm import SharedBuffer
from openhtp.vendor.library import LIBRARY_VARIABLE, find_library


def doctor(json_file: JsonFile = None) -> None:
    """Check the installation and every device. Fails if anything is broken; a missing extra is no failure."""
    with progress_console.status("starting devices..."):
        findings = list(examine())
    show(_table(findings))
    usable = {
        finding.what: finding.health is Health.OK for finding in findings if finding.what in ("emulator", "vendor")
    }
    checks = [dataclasses.asdict(finding) for finding in findings]
    write_json(json_file, {"devices": usable, "checks": checks})
    if any(finding.health is Health.BROKEN for finding in findings):
        raise typer.Exit(1)


def _table(findings: list[CheckupLine]) -> TextTable:
    column = "found, and what to do"
    table = TextTable("openhtp doctor", ("what", "state", column), ("state", column))
    for finding in findings:
        text = Text(printable(finding.detail))
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="dim")
        table.add(finding.what, Text(finding.health.value, style=_STYLES[finding.health]), text)
    return table


# What ``openhtp doctor`` looks at: one function per finding, each with its advice.

# A computing device answers a trivial graph in milliseconds; one that takes this long hangs.
_PATIENCE_S = 60.0
_SHARED_BYTES = 16 << 20
_FEW_FILES = 256
_COMPILE = f"install gcc, then: {REINSTALL}"


class Health(StrEnum):
    """The verdict of a finding."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"


_STYLES = {Health.OK: "green", Health.MISSING: "yellow", Health.BROKEN: "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckupLine:
    """One line of the report. ``advice`` is empty where there is nothing to do."""

    what: str
    health: Health
    detail: str
    advice: str = ""


def examine() -> Iterator[CheckupLine]:
    """Look at everything, quick things first; devices are started and run."""
    yield from examine_installation()
    yield guarded("vendor", _vendor, f"check {LIBRARY_VARIABLE}, or reinstall onnxruntime-qnn")


def examine_installation() -> Iterator[CheckupLine]:
    """Look at everything but the vendor's library."""
    yield CheckupLine(
        what="python", health=Health.OK, detail=f"{platform.python_version()} on {platform.system()} {_machine()}"
    )
    yield CheckupLine(what="openhtp", health=Health.OK, detail=htp.__version__)
    for package in ("numpy", "onnx", "onnxruntime"):
        yield _package(package, "reinstall openhtp: pip install --force-reinstall openhtp")
    yield CheckupLine(what="telemetry", health=Health.OK, detail=_telemetry())
    yield guarded("sessions", sessions, _COMPILE)
    yield _package("onnxruntime-qnn", "only for the vendor device: pip install openhtp[vendor]")
    yield CheckupLine(
        what="cores", health=Health.OK, detail=f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"
    )
    yield guarded("shared memory", _shared_memory, "free memory, or raise the limit of the container")
    yield guarded("open files", _open_files, "raise the limit: ulimit -n 4096")
    yield guarded("runtime directory", runtime_directory, "set OPENHTP_RUNTIME_DIR to a directory of your own")
    yield guarded("emulator", _emulator, "please report this with the text above")
    yield guarded("products", products, "please report this with the text above, and the processor's name")
    yield guarded("genie", _genie, "give its path: openhtp genie chat --library PATH")


def guarded(what: str, look: Callable[[], CheckupLine | str], advice: str) -> CheckupLine:
    """The doctor must not fall ill: whatever a look raises is a finding."""
    try:
        seen = look()
    except Exception as error:
        detail = str(error) or repr(error)
        if isinstance(error, QnnError) and WHAT_TO_DO in error.message:
            cause, advice = error.message.split(WHAT_TO_DO, 1)
            detail = f"{cause} ({error.name}, {error.code})"
        return CheckupLine(what=what, health=Health.BROKEN, detail=detail, advice=advice)
    return seen if isinstance(seen, CheckupLine) else CheckupLine(what=what, health=Health.OK, detail=seen)


def _machine() -> str:
    return f"{platform.release()}, {platform.machine()}"


def _package(name: str, advice: str) -> CheckupLine:
    try:
        return CheckupLine(what=name, health=Health.OK, detail=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return CheckupLine(what=name, health=Health.MISSING, detail="not installed", advice=advice)


def sessions() -> CheckupLine | str:
    """How the engine makes sessions of ONNX Runtime; either way it computes the same."""
    missing = native.absence()
    if not missing:
        return "made by ONNX Runtime's C interface"
    if FOREIGN_WHEEL in missing:
        # C programs find no library then, so this is more than slow.
        cause = missing.split(f"; {REINSTALL}")[0]
        return CheckupLine(what="sessions", health=Health.BROKEN, detail=cause, advice=REINSTALL)
    cures = {OUTDATED: RENEW, f"{native.SWITCH}=0 in your environment": f"unset {native.SWITCH}"}
    return CheckupLine(
        what="sessions",
        health=Health.MISSING,
        detail=f"made by ONNX Runtime's Python package, as {missing}; graphs load and run more slowly",
        advice=cures.get(missing, _COMPILE),
    )


def _telemetry() -> str:
    """What becomes of the usage events that ONNX Runtime collects by itself."""
    chosen = os.environ.get(TELEMETRY_SWITCH, "1")
    if chosen == "1":
        return f"off: ONNX Runtime collects and sends nothing ({TELEMETRY_SWITCH}=1)"
    return f"as {TELEMETRY_SWITCH}={chosen} in your environment says; 1 turns ONNX Runtime's telemetry off"


def _shared_memory() -> str:
    buffer = SharedBuffer.create(_SHARED_BYTES)
    buffer.close()
    free = next(
        (int(line.split()[1]) << 10 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable")), None
    )
    return "works" if free is None else f"works; {bytes_in_words(free)} of memory are free"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _open_files() -> CheckupLine | str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < _FEW_FILES:
        raise OSError(f"only {limit} allowed; every device, lane and registered memory takes one")
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} allowed"


def runtime_directory() -> str:
    """The folder of named devices, and their names."""
    directory = rendezvous.directory()
    names = ", ".join(rendezvous.names())
    return f"{directory}; named devices: {names or 'none'}"


def _emulator() -> str:
    with htp.Backend() as backend:
        return try_device(backend)


def products() -> str:
    """Multiply extreme numbers, which kernels of some processors get wrong unless the engine takes care."""
    depth, scale = 96, 16384.0
    inputs: npt.NDArray[np.uint8] = np.repeat(np.array([[0], [255]], np.uint8), depth, axis=1)
    weights: npt.NDArray[np.int8] = np.repeat(np.array([[-128], [127]], np.int8), depth, axis=1)
    with htp.Backend() as backend:
        graph = backend.create_device(host="thread").create_context().create_graph("products")
        x = graph.add_tensor("x", inputs.shape, "ufixed8", quant=htp.ScaleOffset(1.0, -128), kind="app_write")
        w = graph.add_tensor("w", weights.shape, "sfixed8", quant=htp.ScaleOffset(1.0, 0), data=weights)
        y = graph.add_tensor("y", (2, 2), "ufixed8", quant=htp.ScaleOffset(scale, -128), kind="app_read")
        graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
        graph.finalize()
        computed = graph.execute({"x": inputs})["y"].astype(np.float64)
    exact = (inputs.astype(np.float64) - 128) @ weights.T / scale + 128
    if np.abs(computed - exact).max() > 1:
        raise ArithmeticError(
            f"products of extreme 8-bit numbers are wrong: {computed.tolist()}, not {exact.tolist()}"
        )
    return f"extreme 8-bit numbers are multiplied correctly (kernels: {integer_kernels()})"


def _genie() -> CheckupLine | str:
    path = find_genie()
    if path is None:
        return CheckupLine(
            what="genie",
            health=Health.MISSING,
            detail=f"{GENIE_NAME}, Qualcomm's engine for language models, was not found",
            advice=f"only for openhtp genie: pip install openhtp[vendor], or set {GENIE_VARIABLE}",
        )
    check_file(path)
    return f"{path}; openhtp genie chat runs it on our library"


def _vendor() -> CheckupLine | str:
    path = find_library()
    if path is None:
        return CheckupLine(
            what="vendor",
            health=Health.MISSING,
            detail="libQnnHtp.so was not found; everything else works without it",
            advice=f"pip install openhtp[vendor], or set {LIBRARY_VARIABLE} to the SDK's library",
        )
    with htp.Backend(library=path) as backend:
        kind = "simulator" if platform.machine() in ("x86_64", "AMD64") else "NPU"
        return f"{kind}, {try_device(backend)}"


def try_device(backend: htp.Backend) -> str:
    """Start a device, run ``o = a + b`` on it and check the answer."""
    begin = time.perf_counter()
    with backend.create_device() as device:
        version = device.info().get("library_version")
        graph = device.create_context().create_graph("checkup")
        shape = (1, 4, 4, 32)
        encoding = htp.ScaleOffset(0.1, -128)
        a, b, o = (
            graph.add_tensor(name, shape, "ufixed8", quant=encoding, kind=kind)
            for name, kind in (("a", "app_write"), ("b", "app_write"), ("o", "app_read"))
        )
        graph.add_node("ElementWiseAdd", inputs=[a, b], outputs=[o])
        graph.finalize()
        ready = time.perf_counter()
        values = {"a": np.full(shape, 138, np.uint8), "b": np.full(shape, 148, np.uint8)}
        result = graph.execute_async(values).result(_PATIENCE_S)["o"]
        end = time.perf_counter()
        if not (result == 158).all():  # 1.0 + 2.0 in steps of 0.1 from -12.8
            raise ArithmeticError(f"1 + 2 was computed as {(float(result.flat[0]) - 128) / 10:g}")
        text = (
            f"{device.soc}, ready in {(ready - begin) * 1e3:.0f} ms, a graph ran in {(end - ready) * 1e3:.1f} ms"
        )
        return f"{version}, {text}" if version else text
