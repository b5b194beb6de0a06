"""Runs ONNX's own node tests on the emulator and sorts the results.

``python tests/conformance/suite.py`` prints the counts per operator; ``exceptions.toml`` says why some do not
apply. ``passed.txt`` names those that passed when it was written, with ``--record``, and which onnx they are of.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from rich.console import Console
from rich.table import Table

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


GONE = "it is no longer among the tests that are run"


@dataclass(frozen=True, slots=True)
class Record:
    """Names of tests that passed before, of that version of onnx."""

    onnx_version: str
    names: frozenset[str]

    @classmethod
    def read(cls) -> Record:
        """As it was written."""
        version, *names = _RECORD.read_text().splitlines()
        return cls(version.removeprefix(_VERSION), frozenset(names))

    def lost(self, outcomes: Sequence[Outcome]) -> dict[str, str]:
        """Those that pass no longer, and what is wrong with each. Another onnx may have other tests."""
        problems = {outcome.name: outcome.problem for outcome in outcomes}
        if self.is_of_this_onnx:
            problems = dict.fromkeys(self.names, GONE) | problems
        return {name: problem for name, problem in problems.items() if problem and name in self.names}

    def gained(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Those that pass and are not recorded, though this onnx is."""
        passed = [outcome.name for outcome in outcomes if not outcome.problem]
        return [name for name in passed if name not in self.names] if self.is_of_this_onnx else []

    @property
    def is_of_this_onnx(self) -> bool:
        """Whether the tests are the ones that are installed."""
        return self.onnx_version == onnx.__version__


_RECORD = Path(__file__).with_name("passed.txt")
_VERSION = "# onnx "


def write_record(outcomes: Sequence[Outcome]) -> None:
    """Record what passes now."""
    passed = sorted(outcome.name for outcome in outcomes if not outcome.problem)
    _RECORD.write_text("\n".join([_VERSION + onnx.__version__, *passed, ""]))


def main() -> int:
    """Print counts per operator, the listed exceptions and what changed since the record."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--record", action="store_true", help="write the names of those that pass to passed.txt")
    wanted = parser.parse_args()
    outcomes = [run_case(case) for case in cases()]
    console = Console()
    failed = _print_table(outcomes, console)
    record = Record.read()
    lost = record.lost(outcomes)
    for name, problem in lost.items():
        console.print(f"passed before: {name}: {problem}", markup=False)
    for name in record.gained(outcomes):
        console.print(f"passes now: {name}; record it (--record)", markup=False)
    if wanted.record:
        write_record(outcomes)
    console.print(
        f"{len(outcomes)} tests of onnx {onnx.__version__} in {time.process_time():.0f} s of processor time"
    )
    return 1 if failed or (lost and not wanted.record) else 0


def _print_table(outcomes: Sequence[Outcome], console: Console) -> int:
    """Show the counts; returns how many failed."""
    reasons, table = exceptions(), Table("operator", "passed", "failed", "not applicable")
    counts: dict[str, Counter[str]] = {}
    why: Counter[str] = Counter()
    for outcome in outcomes:
        reason = reason_for(outcome.name, reasons)
        kind = "passed" if not outcome.problem else "not applicable" if reason else "failed"
        counts.setdefault(outcome.operator, Counter())[kind] += 1
        if kind == "not applicable":
            why[str(reason)] += 1
        if kind == "failed":
            console.print(f"failed {outcome.name}: {outcome.problem}", style="red", markup=False)
    for operator in sorted(counts):
        row = counts[operator]
        table.add_row(operator, *(str(row[kind]) for kind in ("passed", "failed", "not applicable")))
    total = sum(counts.values(), Counter())
    table.add_section()
    table.add_row("all", *(str(total[kind]) for kind in ("passed", "failed", "not applicable")))
    console.print(table)
    for reason, count in why.most_common():
        console.print(f"{count:4} {reason}")
    return total["failed"]


if __name__ == "__main__":
    sys.exit(main())
