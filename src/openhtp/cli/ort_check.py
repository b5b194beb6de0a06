"""``openhtp ort-check``: the whole chain from ONNX Runtime's QNN provider to our library, proved here."""

from __future__ import annotations

import dataclasses

import typer

from openhtp.cli._terminal import JsonFile, TextTable, complain, progress_console, show, write_json
from openhtp.core.errors import QnnError


def ort_check(json_file: JsonFile = None) -> None:
    """Run a quantized model through ONNX Runtime's QNN provider on libQnnHtp.so of openhtp, and compare."""
    from openhtp.capi.check import prove

    try:
        with progress_console.status("running a model through the QNN provider..."):
            proof = prove()
    except (QnnError, RuntimeError) as error:
        complain(f"ort-check failed: {error}", "red")
        raise typer.Exit(1) from None
    passed = proof.widest <= 1
    sheet = TextTable("openhtp ort-check", ("what", "found"), ("found",))
    sheet.add("client", proof.client)
    sheet.add("library", proof.backend)
    sheet.add("session created", f"{proof.create_ms:.0f} ms (measured)")
    sheet.add("run, median", f"{proof.median_us:.0f} us (measured)")
    same = f"{proof.elements - proof.differing} of {proof.elements} outputs equal ONNX Runtime's own"
    sheet.add("result", f"{same}; widest difference {proof.widest} steps")
    show(sheet)
    write_json(json_file, {"passed": passed, **dataclasses.asdict(proof)})
    if not passed:
        raise typer.Exit(1)
