"""Runs ONNX's own node tests on the emulator and sorts the results.

``python tests/conformance/suite.py`` prints the counts per operator; ``exceptions.toml`` says why some do not
apply.
"""

from __future__ import annotations

import fnmatch
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from openhtp.core.errors import QnnError
from openhtp.onnx import backend

# Half precision has 11 bits: results are good to about 1 in 1000, and errors add up over a few operations.
RELATIVE, ABSOLUTE = 5e-3, 5e-3

# The operator table of ONNX Runtime's QNN execution provider, and what is taken beyond it.
OPERATORS = frozenset(
    name for file in ("operators.txt", "beyond.txt") for name in Path(__file__).with_name(file).read_text().split()
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test: its name, the operator, and what went wrong (nothing if it passed)."""

    name: str
    operator: str
    problem: str = ""


def cases() -> Iterator[Any]:
    """The node tests whose nodes are all in the lists."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind="node")
    for case in found:
        if {node.op_type for node in case.model.graph.node} <= OPERATORS:
            yield case


def run_case(case: Any) -> Outcome:
    """Run one test on all its data."""
    operator = case.model.graph.node[-1].op_type
    try:
        prepared = backend.prepare(case.model)
        for inputs, expected in case.data_sets:
            results = prepared.run([_array(item) for item in inputs])
            for result, wanted in zip(results, map(_array, expected), strict=True):
                _compare(result, wanted)
    except QnnError as error:
        return Outcome(case.name, operator, str(error))
    except AssertionError as error:
        return Outcome(case.name, operator, "wrong: " + " ".join(str(error).split())[:200])
    return Outcome(case.name, operator)


def _array(item: Any) -> np.ndarray:
    return numpy_helper.to_array(item) if isinstance(item, TensorProto) else np.asarray(item)


def _compare(result: np.ndarray, wanted: np.ndarray) -> None:
    assert result.shape == wanted.shape, f"shape {result.shape}, expected {wanted.shape}"
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(result.astype(float), wanted.astype(float), rtol=RELATIVE, atol=ABSOLUTE)
    else:
        np.testing.assert_array_equal(result, wanted)


def exceptions() -> dict[str, str]:
    """Reasons by pattern of test names."""
    data = tomllib.loads(Path(__file__).with_name("exceptions.toml").read_text())
    return {pattern: entry["reason"] for entry in data["exception"] for pattern in entry["tests"]}


def reason_for(name: str, reasons: dict[str, str]) -> str | None:
    """Why a test does not apply, if it is listed."""
    return next((reason for pattern, reason in reasons.items() if fnmatch.fnmatchcase(name, pattern)), None)


def main() -> None:
    """Print counts per operator and the listed exceptions."""
    from rich.console import Console
    from rich.table import Table

    reasons, table = exceptions(), Table("operator", "passed", "failed", "not applicable")
    counts: dict[str, Counter[str]] = {}
    why: Counter[str] = Counter()
    for case in cases():
        outcome = run_case(case)
        reason = reason_for(outcome.name, reasons)
        kind = "passed" if not outcome.problem else "not applicable" if reason else "failed"
        counts.setdefault(outcome.operator, Counter())[kind] += 1
        if kind == "not applicable":
            why[str(reason)] += 1
        if kind == "failed":
            Console().print(f"[red]failed[/] {outcome.name}: {outcome.problem}")
    for operator in sorted(counts):
        row = counts[operator]
        table.add_row(operator, *(str(row[kind]) for kind in ("passed", "failed", "not applicable")))
    total = sum(counts.values(), Counter())
    table.add_section()
    table.add_row("all", *(str(total[kind]) for kind in ("passed", "failed", "not applicable")))
    Console().print(table)
    for reason, count in why.most_common():
        Console().print(f"{count:4} {reason}")


if __name__ == "__main__":
    main()
