"""Whether two processors compute the operators' own samples with the same bits.

``python tools/operator_bits.py write FILE.npz [--part 1/2] [--data-set 1]`` on each (docs/wheels.md says how under
qemu), then ``python tools/operator_bits.py compare ONE.npz,ONE-2.npz OTHER.npz``. The cases are those of the
tests, so this needs the sources.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.append(str(Path(__file__).parents[1] / "tests" / "ops"))

Array = npt.NDArray[Any]
# Results by the case's name and the output's number.
Results = Mapping[str, Array]


@dataclass(frozen=True)
class Difference:
    """An output with other bits: how many of its numbers, and the widest difference as they are stored."""

    case: str
    numbers: int
    of: int
    widest: float


def main() -> int:
    """Write this processor's results, or compare those of two."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("write")
    writer.add_argument("file", type=Path)
    writer.add_argument("--part", default="1/1", help="2/3: the second of three parts of the cases")
    writer.add_argument("--data-set", type=int, default=0, help="other random inputs; the tests have set 0")
    comparer = commands.add_parser("compare")
    comparer.add_argument("one", help="files, with commas between them")
    comparer.add_argument("other", help="files, with commas between them")
    arguments = parser.parse_args()
    if arguments.command == "write":
        return write(arguments.file, *map(int, arguments.part.split("/")), arguments.data_set)
    return report(read(arguments.one.split(",")), read(arguments.other.split(",")))


def write(file: Path, part: int, parts: int, data_set: int = 0) -> int:
    """Compute a part of the cases and keep all results; 1 if one is farther from exact arithmetic than allowed."""
    from ops_cases import all_cases, assert_close, make_case, run_case

    from openhtp.ops import find_op, op_names

    cases = [(f"{name} {words}", parts) for name in op_names() for words, parts in all_cases(find_op(name))]
    results: dict[str, Array] = {}
    wrong = 0
    for words, case_parts in cases[part - 1 :: parts]:
        case = make_case(*case_parts, data_set)
        for number, (spec, got, exact) in enumerate(
            zip(case.call.outputs, run_case(case), case.exact, strict=True)
        ):
            results[f"{words} #{number} of set {data_set}"] = got
            try:
                assert_close(spec, got, exact)
            except AssertionError as error:
                wrong += 1
                print(f"wrong: {words}: {error}")
    np.savez(file, **{name.replace("/", "|"): values for name, values in results.items()})
    print(f"{len(cases[part - 1 :: parts])} of {len(cases)} cases computed, {wrong} outputs are wrong")
    return int(wrong > 0)


def read(files: Sequence[str]) -> Results:
    """The results in files, together."""
    results: dict[str, Array] = {}
    for file in files:
        with np.load(file) as kept:
            results.update({name: kept[name] for name in kept.files})
    return results


def differences(one: Results, other: Results) -> list[Difference]:
    """Outputs that both have and that differ in a bit; no number equals no number."""
    return [
        _difference(name, one[name], other[name])
        for name in one
        if name in other and one[name].tobytes() != other[name].tobytes()
    ]


def _difference(name: str, one: Array, other: Array) -> Difference:
    if one.shape != other.shape or one.dtype != other.dtype:
        return Difference(name, max(one.size, other.size), one.size, float("inf"))
    apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    raw, other_raw = (values.reshape(-1).view(np.uint8).reshape(values.size, -1) for values in (one, other))
    numbers = int((raw != other_raw).any(axis=1).sum())
    return Difference(name, numbers, one.size, float(np.nanmax(apart, initial=0)))


def report(one: Results, other: Results) -> int:
    """Print what differs; 1 if anything does, or if a case is on one side only."""
    lonely = sorted(one.keys() ^ other.keys())
    for name in lonely:
        print(f"on one side only: {name}")
    apart = differences(one, other)
    for row in apart:
        print(f"{row.case}: {row.numbers} of {row.of} numbers differ, at most by {row.widest:g} as stored")
    same, total = len(one.keys() & other.keys()) - len(apart), len(one.keys() | other.keys())
    print(f"{same} of {total} outputs have the same bits")
    return int(bool(apart or lonely))


if __name__ == "__main__":
    sys.exit(main())
