"""Runs the tests that statements name and counts both: ``make documents``, or ``python -m tests.documents``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import pytest

from tests.documents.table import APPLYING, ROOT, Page, exists, pages

# What pytest's configuration leaves out and ``--all`` runs; the rest needs other environments or hours.
_ALL = "not soak and not bench and not download and not ray"
_COLUMNS = (*APPLYING, "passed", "failed", "not run")


class Outcomes:
    """A plugin of pytest that keeps how each test function ended, all its parameters taken together."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: set[str] = set()

    def note(self, nodeid: str, outcome: str) -> None:
        """Count one end; of a function with parameters, one failure is a failure."""
        function = nodeid.partition("[")[0]
        if outcome == "failed":
            self.failed.add(function)
            self.passed.discard(function)
        elif outcome == "passed" and function not in self.failed:
            self.passed.add(function)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each test."""
        if report.when == "call" or report.failed:
            self.note(report.nodeid, report.outcome)


def tests_of(chosen: Sequence[Page]) -> list[str]:
    """Every test that the pages name, once, in the order of the files."""
    return sorted({test for page in chosen for each in page.statement for test in each.tests})


def report(chosen: Sequence[Page], outcomes: Outcomes) -> str:
    """A line for each page: statements by verdict, then tests by how they ended."""
    width = max(len(page.title) for page in chosen)
    lines = ["  ".join([" " * width, *_COLUMNS])]
    for page in chosen:
        names = tests_of([page])
        passed = sum(name in outcomes.passed for name in names)
        failed = sum(name in outcomes.failed for name in names)
        counts = [*(page.count(verdict) for verdict in APPLYING), passed, failed, len(names) - passed - failed]
        cells = (f"{count:>{len(column)}}" for count, column in zip(counts, _COLUMNS, strict=True))
        lines.append("  ".join([f"{page.title:{width}}", *cells]))
    applying = sum(page.count(verdict) for page in chosen for verdict in APPLYING)
    holding = sum(page.count("same") + page.count("modelled") for page in chosen)
    if applying:
        lines.append(
            f"{holding} of {applying} statements that apply are same or modelled: {holding / applying:.1%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run and count; the status is 1 if a test failed or is missing."""
    everything = pages()
    options = _options([page.name for page in everything])
    chosen = [page for page in everything if page.name in options.pages] if options.pages else everything
    tests = tests_of(chosen)
    if missing := [test for test in tests if not exists(test)]:
        sys.stderr.write("".join(f"there is no test {test}\n" for test in missing))
        return 1
    outcomes = Outcomes()
    os.chdir(ROOT)
    marks = ["-m", _ALL] if options.all else []
    workers = ["-n", options.workers, "--dist", "worksteal"] if options.workers != "0" else []
    status = 0
    if not options.count:
        status = int(pytest.main(["-q", "--no-header", *marks, *workers, *tests], plugins=[outcomes]))
    sys.stdout.write(report(chosen, outcomes) + "\n")
    for page in chosen:
        for each in page.statement:
            for test in sorted(outcomes.failed.intersection(each.tests)):
                sys.stdout.write(f"{page.name}: {each.id} is not shown: {test} failed\n")
    # All tests of a page may be slow: then none was selected, and none failed.
    return int(status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED))


def _options(names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make documents ARGS=...", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"only these: {', '.join(names)}")
    parser.add_argument("--all", action="store_true", help="slow tests and those on the vendor's library, too")
    parser.add_argument("--count", action="store_true", help="count statements, run nothing")
    parser.add_argument("--workers", default="logical", metavar="N", help="as pytest -n; 0 for one process")
    options = parser.parse_args()
    if unknown := sorted(set(options.pages) - set(names)):
        parser.error(f"no pages {', '.join(unknown)}; there are {', '.join(names)}")
    return options
