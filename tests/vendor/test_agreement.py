"""The judge of the differential tests: it must find what is wrong. None of this needs the library."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openhtp.core.dtype import DType
from openhtp.ops import op_names
from vendor_agreement.agreement import Agreement, Deviation, measure, read_deviations, summarize
from vendor_agreement.differential import Case, draw_case, rows_of
from vendor_agreement.rows import Row

ROOT = Path(__file__).parents[2]
DEVIATIONS = read_deviations(Path(__file__).with_name("deviations.toml"))


def case_of(dtype: DType) -> Case:
    """A large enough addition in this type; its result is its own judge."""
    row = next(row for row in rows_of("ElementWiseAdd") if row.outputs == (dtype,))
    return draw_case(row, 0)


def nearest(case: Case) -> np.ndarray:
    spec = case.call.outputs[0]
    if spec.quant is None:
        return case.exact[0].astype(spec.dtype.numpy)
    return spec.quant.quantize(case.exact[0], *spec.dtype.integer_range).astype(spec.dtype.numpy)


def off_by(case: Case, steps: int, share: float = 1.0) -> np.ndarray:
    """The nearest result with a share of its elements moved by so many steps, away from the limits."""
    stored = nearest(case).astype(np.int64).reshape(-1)
    count = round(stored.size * share)
    low, high = case.call.outputs[0].dtype.integer_range
    stored[:count] += np.where(stored[:count] > (low + high) // 2, -steps, steps)
    return stored.reshape(case.exact[0].shape).astype(case.call.outputs[0].dtype.numpy)


def judged(case: Case, ours: np.ndarray, theirs: np.ndarray, *deviations: Deviation) -> Any:
    (line,) = summarize(measure(case, 1, [ours], [theirs]), deviations)
    return line


def test_equal_results_keep_every_promise() -> None:
    case = case_of(DType.UFIXED_POINT_8)
    line = judged(case, nearest(case), nearest(case))
    assert (line.kind, line.equal, line.within_one, line.most, line.exact_most) == ("8", 1, 1, 0, 0)
    assert not line.broken


def test_one_step_is_allowed_with_8_bits_and_two_are_not() -> None:
    case = case_of(DType.UFIXED_POINT_8)
    assert not judged(case, off_by(case, 1), nearest(case)).broken
    line = judged(case, off_by(case, 2, 0.05), nearest(case))
    assert len(line.broken) == 2
    assert "exact" in line.broken[0]
    assert "vendor" in line.broken[1]


def test_a_difference_that_is_the_vendors_is_told_apart() -> None:
    case = case_of(DType.UFIXED_POINT_8)
    theirs = off_by(case, 3, 0.5)
    (broken,) = judged(case, nearest(case), theirs).broken
    assert "vendor" in broken
    known = Deviation(ops=("ElementWise*",), reason="known", kinds=("8",), odd_rounds_only=True)
    line = judged(case, nearest(case), theirs, known)
    assert not line.broken
    assert (line.set_aside, line.within_one, line.most) == (1, None, None)
    assert line.vendor_exact_most == 3
    for other in (
        Deviation(ops=("MatMul",), reason=""),
        Deviation(ops=("*",), reason="", kinds=("16",)),
        Deviation(ops=("*",), reason="", types=("f16 *",)),
        Deviation(ops=("*",), reason="", samples=(7,)),
    ):
        assert judged(case, nearest(case), theirs, other).broken


def test_a_deviation_does_not_excuse_a_wrong_result_of_ours() -> None:
    case = case_of(DType.UFIXED_POINT_8)
    everything = Deviation(ops=("*",), reason="known")
    (broken,) = judged(case, off_by(case, 2, 0.05), nearest(case), everything).broken
    assert "exact" in broken


def test_16_bits_may_not_be_worse_than_the_vendor() -> None:
    case = case_of(DType.UFIXED_POINT_16)
    assert not judged(case, nearest(case), off_by(case, 3)).broken
    assert not judged(case, off_by(case, 3), off_by(case, 3)).broken
    (broken,) = judged(case, off_by(case, 2, 0.01), nearest(case)).broken
    assert "steps from exact" in broken


def test_floats_are_measured_in_steps_of_half_precision() -> None:
    case = case_of(DType.FLOAT_32)
    (found,) = measure(case, 0, [nearest(case)], [nearest(case)])
    assert found.vendor.most == 0
    assert found.exact.most < 1e-3
    moved = case.exact[0] + 4 * np.spacing(np.abs(case.exact[0]).astype(np.float16)).astype(np.float64)
    (found,) = measure(case, 0, [nearest(case)], [moved.astype(np.float32)])
    assert 3.5 < found.vendor.most <= 4.1
    assert not found.agrees
    broken = np.full_like(nearest(case), np.nan)
    (found,) = measure(case, 0, [nearest(case)], [broken])
    assert found.vendor.most == np.inf


def test_integers_agree_only_if_equal() -> None:
    row = Row("ElementWiseAdd", 0, (DType.INT_32,) * 2, (DType.INT_32,))
    case = draw_case(row, 0)
    (found,) = measure(case, 0, [nearest(case)], [nearest(case) + 1])
    assert isinstance(found, Agreement)
    assert found.kind == "integer"
    assert not found.agrees


def test_the_documentation_lists_the_deviations() -> None:
    spec = importlib.util.spec_from_file_location("vendor_diff", ROOT / "tools" / "vendor_diff.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "vendor.md").read_text(encoding="utf-8")
    in_graphs = read_deviations(Path(__file__).with_name("graph_deviations.toml"))
    for begin, listed, end in (
        (tool.BEGIN, DEVIATIONS, tool.END),
        (tool.GRAPHS_BEGIN, in_graphs, tool.GRAPHS_END),
    ):
        assert begin + tool.deviations_text(listed) + end in page, "run tools/vendor_diff.py --write-docs"


FILES = ("deviations.toml", "graph_deviations.toml")
ALL_DEVIATIONS = [
    pytest.param(deviation, id=f"{name} {number}")
    for name in FILES
    for number, deviation in enumerate(read_deviations(Path(__file__).with_name(name)))
]
KINDS = ("8", "16", "32", "float", "integer")


def problems_of(deviation: Deviation) -> list[str]:
    """What an entry names that does not exist: it would set nothing aside, or not what it seems to."""
    ops = [op for op in op_names() if fnmatch(op, deviation.ops)]
    rows = [row for op in ops for row in rows_of(op)]
    typed = [row for row in rows if fnmatch(row.types, deviation.types)]
    samples = {row.sample for row in typed}
    named = [
        ("op", deviation.ops, ops),
        ("row", deviation.types, [row.types for row in rows]),
        ("kind", deviation.kinds, KINDS),
        ("sample", tuple(map(str, deviation.samples)), [str(number) for number in samples]),
    ]
    found = [
        f"no {what} is {pattern}"
        for what, patterns, known in named
        for pattern in patterns
        if not any(fnmatch(word, (pattern,)) for word in known)
    ]
    # Which of the two is right, and in what: a sentence that names a side.
    if not re.search(r"simulator|vendor|we |both|library", deviation.reason) or not deviation.reason.endswith("."):
        found.append(f"the reason names no side: {deviation.reason}")
    return found


def fnmatch(word: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(word, pattern) for pattern in patterns)


@pytest.mark.parametrize("deviation", ALL_DEVIATIONS)
def test_deviations_say_why_and_are_about_something(deviation: Deviation) -> None:
    assert problems_of(deviation) == []


@pytest.mark.parametrize("name", FILES)
def test_no_deviation_stands_twice(name: str) -> None:
    entries = read_deviations(Path(__file__).with_name(name))
    assert len(set(entries)) == len(entries)
    same = {replace(entry, reason="") for entry in entries}
    assert len(same) == len(entries)


@pytest.mark.parametrize(
    ("deviation", "said"),
    [
        (Deviation(ops=("Cosh",), reason="The simulator is off."), "no op is Cosh"),
        (Deviation(ops=("Relu",), types=("i32 > i32",), reason="The simulator is off."), "no row is i32"),
        (Deviation(ops=("Relu",), samples=(4,), reason="The simulator is off."), "no sample is 4"),
        (Deviation(ops=("Relu",), kinds=("7",), reason="The simulator is off."), "no kind is 7"),
        (Deviation(ops=("Relu",), reason="It is off."), "names no side"),
    ],
)
def test_an_entry_about_nothing_is_noticed(deviation: Deviation, said: str) -> None:
    assert any(said in problem for problem in problems_of(deviation))
