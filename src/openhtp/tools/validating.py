"""``qnn-platform-validator``: whether what a backend needs is there, and whether it computes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from openhtp.abi.numbers import LIBRARY_NAME
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.quant import ScaleOffset
from openhtp.hw.catalog import catalog, find_soc
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.device import Device

BACKENDS = ("dsp", "gpu")
COLUMNS = ("Backend", "Backend Hardware", "Backend Libraries", "Library Version", "Core Version", "Unit Test")
_NOT_QUERIED = "Not Queried"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRequest:
    """What is asked: which library (None: the emulator), which architecture, and which of the answers."""

    library: Path | None = None
    dsp_type: str | None = None
    core_version: bool = False
    lib_version: bool = False
    test: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFinding:
    """What was found out about a backend, in the vendor's words; ``problem`` says why it is of no use."""

    backend: str
    hardware: str
    libraries: str
    library_version: str = _NOT_QUERIED
    core_version: str = _NOT_QUERIED
    unit_test: str = _NOT_QUERIED
    problem: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of a row, in the order of the columns."""
        return astuple(self)[: len(COLUMNS)]


def library_in(directory: Path) -> Path:
    """The library of an SDK for this computer."""
    places = (*sorted(directory.glob(f"lib/x86_64*/{LIBRARY_NAME}")), directory / LIBRARY_NAME)
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise InvalidArgument(
            f"--directory {str(directory)!r} has no lib/x86_64*/{LIBRARY_NAME}; expected the folder of an SDK for"
            " this computer, or leave it out for the emulator"
        )
    return path


def validate(backend: str, wanted: ValidationRequest, build_id: str) -> BackendFinding:
    """Look at one backend. ``build_id`` is the version of the emulator."""
    if backend != "dsp":
        return BackendFinding(
            backend=backend.upper(),
            hardware="Not Supported",
            libraries="Not Found",
            problem="there is no GPU backend",
        )
    soc = _soc_for(wanted.dsp_type)
    try:
        with Backend(library=wanted.library) as opened, opened.create_device(soc=soc) as device:
            version = build_id if wanted.library is None else str(device.info().get("library_version", "unknown"))
            return BackendFinding(
                backend="DSP",
                hardware="Supported" if wanted.library else "Supported (emulated)",
                libraries="Found",
                library_version=version if wanted.lib_version else _NOT_QUERIED,
                core_version=(
                    f"Hexagon Architecture V{find_soc(device.soc).arch}" if wanted.core_version else _NOT_QUERIED
                ),
                unit_test=("Passed" if _computes(device) else "Failed") if wanted.test else _NOT_QUERIED,
            )
    except QnnError as error:
        return BackendFinding(backend="DSP", hardware="Not Supported", libraries="Not Found", problem=str(error))


def _soc_for(dsp_type: str | None) -> str:
    if dsp_type is None:
        return "SM8650"
    for soc in catalog().values():
        if soc.arch_name == dsp_type.lower():
            return soc.name
    known = sorted({soc.arch_name for soc in catalog().values()})
    raise InvalidArgument(f"--dsp_type {dsp_type!r}; expected one of {', '.join(known)}")


def _computes(device: Device) -> bool:
    """Whether a sum of quantized numbers is what it should be."""
    with device.create_context() as context:
        graph = context.create_graph("platform_validator")
        one = ScaleOffset(1.0, 0)
        a = graph.add_tensor("a", (1, 8), "ufixed8", quant=one, kind="app_write")
        b = graph.add_tensor("b", (1, 8), "ufixed8", quant=one, kind="app_write")
        o = graph.add_tensor("o", (1, 8), "ufixed8", quant=one, kind="app_read")
        graph.add_node("ElementWiseAdd", inputs=[a, b], outputs=[o])
        graph.finalize()
        numbers = np.arange(8, dtype=np.uint8).reshape(1, 8)
        return bool(np.array_equal(graph.execute({"a": numbers, "b": numbers})["o"], 2 * numbers))


def as_csv(findings: Sequence[BackendFinding]) -> str:
    """The result file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(finding.row for finding in findings)
    return text.getvalue()
