"""Every operator of ONNX Runtime's QNN provider on our library: a table, beside the CPU and the vendor's library.

``python tools/ort_table.py [--vendor] [--json FILE] [NAME ...]``; needs the onnxruntime-qnn package.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.capi.ort_models import CASES, Case, feeds_of, float_model, quantized_model
from tests.capi.ort_sessions import on_cpu, session

from openhtp import backend_path
from openhtp.vendor.library import find_library


def outputs(model: onnx.ModelProto, library: str, feeds: dict[str, np.ndarray], form: str) -> list[np.ndarray]:
    """What a library makes of a model."""
    options = {"soc_model": "57", "enable_htp_fp16_precision": "1"} if form == "float" else {}
    return list(session(model, library, options).run(None, feeds))


def step_of(model: onnx.ModelProto, name: str) -> float:
    """The step of an output's encoding; 1 for what has none."""
    for node in model.graph.node:
        if node.output[0] == name and node.op_type == "DequantizeLinear":
            scale = next(one for one in model.graph.initializer if one.name == node.input[1])
            return float(onnx.numpy_helper.to_array(scale))
    return 1.0


def off(model: onnx.ModelProto, form: str, got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The part of the outputs that is further away than allowed: one step, or half precision."""
    wrong = total = 0
    for info, one, other in zip(model.graph.output, got, wanted, strict=True):
        distance = np.abs(one.astype(np.float64) - other.astype(np.float64))
        if form == "float":
            allowed = 0.004 * max(1.0, float(np.abs(other.astype(np.float64)).max()))
        else:
            allowed = 1.001 * step_of(model, info.name)
        wrong += int((distance > allowed).sum())
        total += one.size
    return wrong / max(1, total)


def row(case: Case, form: str, vendor: str | None) -> dict[str, Any]:
    """One operator in one form."""
    found: dict[str, Any] = {"operator": case.name, "form": form}
    try:
        model = float_model(case) if form == "float" else quantized_model(case, on_cpu)
        feeds = feeds_of(case, 1)
        wanted = on_cpu(model, feeds)
    except Exception as error:
        return {**found, "state": "bad case", "why": str(error)[:200]}
    try:
        got = outputs(model, backend_path(), feeds, form)
        found["elements"] = sum(one.size for one in got)
        found["off_cpu"] = off(model, form, got, wanted)
        found["state"] = "pass" if found["off_cpu"] <= 0.001 else "differs"
    except Exception as error:
        found.update(state="refused", why=str(error)[:200])
    if vendor:
        try:
            theirs = outputs(model, vendor, feeds, form)
            found["vendor"] = "pass" if off(model, form, theirs, wanted) <= 0.1 else "differs"
            if "off_cpu" in found:
                found["off_vendor"] = off(model, form, got, theirs)
        except Exception:
            found["vendor"] = "refused"
    return found


def share(rows: list[dict[str, Any]], key: str) -> str:
    """How many outputs of all operators together are as near as allowed."""
    counted = [one for one in rows if key in one]
    total = sum(one["elements"] for one in counted)
    near = total - sum(round(one[key] * one["elements"]) for one in counted)
    return f"{near} of {total} outputs ({near / max(1, total):.2%})"


def main() -> int:
    """Print the table; fail if an operator that the vendor's library runs is not run by ours."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("names", nargs="*")
    words.add_argument("--vendor", action="store_true", help="also run the vendor's library")
    words.add_argument("--json", dest="json_file")
    chosen = words.parse_args()
    library = find_library() if chosen.vendor else None
    rows = []
    print(f"{'operator':24} {'form':6} {'state':8} {'off CPU':>8} {'vendor':8} {'off vendor':>10}")
    for case in CASES:
        if chosen.names and case.op not in chosen.names:
            continue
        for form, wanted in (("QDQ", case.quantized), ("float", case.floating)):
            if not wanted:
                continue
            found = row(case, form, str(library) if library else None)
            rows.append(found)
            away, from_vendor = (f"{found[key]:.2%}" if key in found else "" for key in ("off_cpu", "off_vendor"))
            line = f"{case.name:24} {form:6} {found['state']:8} {away:>8} {found.get('vendor', ''):8}"
            print(line, f"{from_vendor:>10}", found.get("why", "")[:120], flush=True)
    states = [one["state"] for one in rows]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)), "(all measured)")
    print("within one step, or half precision, of the CPU:", share(rows, "off_cpu"))
    if library:
        print("of the vendor's library:", share(rows, "off_vendor"))
    if chosen.json_file:
        Path(chosen.json_file).write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
    behind = [one for one in rows if one["state"] != "pass" and one.get("vendor", "pass") == "pass"]
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
