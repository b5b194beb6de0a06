"""How far results are apart, in steps (LSB), and whether that is what we promise.

The promises, per operation: with 8 bits, 99.9 % of our outputs are within one step of exact arithmetic and 99 %
within one step of the vendor's; with 16 bits, our largest error in a case is not above the vendor's (or half a
step, which is rounding). A step of a float is the distance between half-precision numbers of its size.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.tensor import TensorSpec
from vendor_agreement.differential import Case
from vendor_agreement.rows import Row

Array = npt.NDArray[Any]

KINDS = ("8", "16", "32", "float", "integer")
EXACT_SHARE = 0.999
VENDOR_SHARE = 0.99
# Half a step is correct rounding; the rest is the noise of 32-bit floats at a tie.
ROUNDING_STEPS = 0.51
# Values below this part of the largest one are not judged by steps of their own size.
_FLOAT_FLOOR = 2.0**-6
# The last place of a float32, in which the vendor's float results are off.
_NOISE_STEPS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far two results are apart."""

    equal: int
    within_one: int
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One output of one case. ``error_steps`` are distances of real numbers, the others of stored ones."""

    row: Row
    number: int
    kind: str  # one of KINDS; the numbers are widths of fixed point
    count: int
    vendor: Distance
    exact: Distance
    vendor_exact: Distance
    error_steps: float
    vendor_error_steps: float

    @property
    def agrees(self) -> bool:
        """Whether this output alone is as near to the vendor's as an operation as a whole has to be."""
        near = self.vendor.equal if self.kind == "integer" else self.vendor.within_one
        return near >= VENDOR_SHARE * self.count

    @property
    def is_exact(self) -> bool:
        """Whether every element of this output alone is as near to exact arithmetic as promised, kind by kind."""
        if self.kind == "8":
            return self.exact.most <= 1
        return self.kind != "16" or self.error_steps <= max(self.vendor_error_steps, ROUNDING_STEPS)


def measure(case: Case, number: int, ours: Sequence[Array], theirs: Sequence[Array]) -> list[Agreement]:
    """Compare all outputs of a case."""
    return [
        measure_output(case.row, number, spec, (mine, exact), (other, exact))
        for spec, mine, other, exact in zip(case.call.outputs, ours, theirs, case.exact, strict=True)
    ]


def measure_output(
    row: Row, number: int, spec: TensorSpec, ours: tuple[Array, Array], theirs: tuple[Array, Array]
) -> Agreement:
    """Compare an output. Each side is its result and the exact one for the inputs that it had.

    Where the inputs differ (inside a graph), so do the exact results; the two sides are then compared after what
    that explains is taken away.
    """
    kind = _kind(spec)
    mine, other = _Wanted.of(spec, kind, ours[1]), _Wanted.of(spec, kind, theirs[1])
    moved = _as_numbers(theirs[0]) + (mine.nearest - other.nearest if ours[1] is not theirs[1] else 0.0)
    return Agreement(
        row=row,
        number=number,
        kind=kind,
        count=ours[0].size,
        vendor=_distance(ours[0], moved, mine.unit),
        exact=_distance(ours[0], mine.nearest, mine.unit),
        vendor_exact=_distance(theirs[0], other.nearest, other.unit),
        error_steps=float(_steps(ours[0], mine.real, mine.unit).max(initial=0.0)),
        vendor_error_steps=float(_steps(theirs[0], other.real, other.unit).max(initial=0.0)),
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The exact result in stored numbers, not rounded and rounded, and how large a step is."""

    real: Array
    nearest: Array
    unit: Array

    @classmethod
    def of(cls, spec: TensorSpec, kind: str, exact: Array) -> _Wanted:
        real = np.asarray(exact, np.float64)
        if spec.quant is not None:
            low, high = spec.dtype.integer_range
            nearest: Array = np.asarray(spec.quant.quantize(real, low, high), np.float64)
            bounds = spec.quant.dequantize(np.array([low, high]))
            offset = getattr(spec.quant, "offset", 0)
            steps = np.clip(real, bounds[0], bounds[1]) / getattr(spec.quant, "scale", 1.0) - offset
            return cls(steps, nearest, np.ones(()))
        if kind == "float":
            finite = np.abs(real[np.isfinite(real)])
            floor = max(float(finite.max(initial=0.0)) * _FLOAT_FLOOR, 1e-7)
            unit = np.spacing(np.maximum(np.abs(real), floor).astype(np.float16)).astype(np.float64)
            return cls(real, real, unit)
        whole = real.astype(spec.dtype.numpy).astype(np.float64)
        return cls(whole, whole, np.ones(()))


def _kind(spec: TensorSpec) -> str:
    if spec.dtype.is_float:
        return "float"
    return str(spec.dtype.bits) if spec.dtype.is_fixed_point else "integer"


def _distance(one: Array, other: Array, unit: Array) -> Distance:
    steps = _steps(one, other, unit)
    return Distance(
        equal=int((steps <= _NOISE_STEPS).sum()),
        within_one=int((steps <= 1 + _NOISE_STEPS).sum()),
        most=float(steps.max(initial=0.0)),
    )


def _as_numbers(array: Array) -> Array:
    return np.asarray(array, np.float64)


def _steps(one: Array, other: Array, unit: Array) -> Array:
    a, b = _as_numbers(one), _as_numbers(other)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b) / unit
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Rows that are not judged by the vendor's results, and why. Patterns are those of file names."""

    ops: tuple[str, ...]
    reason: str
    types: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = ("*",)
    samples: tuple[int, ...] = ()
    odd_rounds_only: bool = False

    def covers(self, found: Agreement) -> bool:
        """Whether an output is one of these."""
        row = found.row
        return (
            any(fnmatch.fnmatchcase(row.op, op) for op in self.ops)
            and any(fnmatch.fnmatchcase(row.types, types) for types in self.types)
            and any(fnmatch.fnmatchcase(found.kind, kind) for kind in self.kinds)
            and (not self.samples or row.sample in self.samples)
            and (not self.odd_rounds_only or found.number % 2 == 1)
        )


def read_deviations(path: Path) -> tuple[Deviation, ...]:
    """The list of known deviations, from its file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["deviation"]
    return msgspec.convert(entries, tuple[Deviation, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All outputs of one operation and kind.

    Shares are of elements. ``set_aside`` counts the outputs that deviations keep from being judged by the
    vendor's; the shares of what is left are None if nothing is.
    """

    op: str
    kind: str
    rows: int
    set_aside: int
    equal: float | None
    within_one: float | None
    most: float | None
    exact_within_one: float
    exact_most: float
    vendor_exact_within_one: float
    vendor_exact_most: float
    broken: tuple[str, ...]


def summarize(
    found: Iterable[Agreement], deviations: Sequence[Deviation] = (), *, per_op: bool = True
) -> list[Summary]:
    """One line per operation and kind (or per kind), and which promises it breaks."""
    groups: dict[tuple[str, str], list[Agreement]] = {}
    for agreement in found:
        groups.setdefault((agreement.row.op if per_op else "all", agreement.kind), []).append(agreement)
    order = sorted(groups, key=lambda key: (key[0], KINDS.index(key[1])))
    return [_summary(*key, groups[key], deviations) for key in order]


def _summary(op: str, kind: str, group: list[Agreement], deviations: Sequence[Deviation]) -> Summary:
    judged = [item for item in group if not any(deviation.covers(item) for deviation in deviations)]
    everything = sum(item.count for item in group)
    exact_share = sum(item.exact.within_one for item in group) / everything
    count = sum(item.count for item in judged)
    share = sum(item.vendor.within_one for item in judged) / count if count else None
    broken = []
    if kind == "8" and exact_share < EXACT_SHARE:
        broken.append(f"{exact_share:.3%} within one step of exact arithmetic; promised {EXACT_SHARE:.1%}")
    if kind == "8" and share is not None and share < VENDOR_SHARE:
        broken.append(f"{share:.2%} within one step of the vendor's; promised {VENDOR_SHARE:.0%}")
    if kind == "16":
        broken += [
            f"{item.row} round {item.number}: {item.error_steps:.2f} steps from exact, the vendor"
            f" {item.vendor_error_steps:.2f}"
            for item in group
            if item.error_steps > max(item.vendor_error_steps, ROUNDING_STEPS)
        ]
    return Summary(
        op=op,
        kind=kind,
        rows=len({item.row for item in group}),
        set_aside=len(group) - len(judged),
        equal=sum(item.vendor.equal for item in judged) / count if count else None,
        within_one=share,
        most=max((item.vendor.most for item in judged), default=None),
        exact_within_one=exact_share,
        exact_most=max(item.exact.most for item in group),
        vendor_exact_within_one=sum(item.vendor_exact.within_one for item in group) / everything,
        vendor_exact_most=max(item.vendor_exact.most for item in group),
        broken=tuple(broken),
    )
