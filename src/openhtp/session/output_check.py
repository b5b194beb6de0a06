"""Whether a model's outputs are right: each against ONNX Runtime's, and whether that said anything.

An output of NaNs, or of one number over and over, agrees with itself whatever was computed: nothing was compared.
Where an output is a choice (NonMaxSuppression, TopK), half precision swaps what is nearly equal, so its rows are
compared as a set (``row_sets.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from openhtp.core.errors import BadModel, QnnError, UnsupportedFeature
from openhtp.engine.onnxruntime import onnxruntime, refusal_in_words
from openhtp.frontend.branches import settled
from openhtp.session.accuracy import Closeness, closeness
from openhtp.session.row_sets import RowSet, chosen_outputs, compare_row_sets

Array = npt.NDArray[Any]
Outputs = Mapping[str, Sequence[Array]]
"""By name, one array per sample."""


class CheckVerdict(enum.Enum):
    """The verdict on one output."""

    OK = "ok"
    TOO_FAR = "too far"
    NOTHING = "nothing was compared here"


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """One output over all samples: how close it is, what that means, and notes about it."""

    nearness: Closeness
    verdict: CheckVerdict
    note: str = ""


def check_outputs(
    model: bytes, samples: Sequence[Mapping[str, Array]], outputs: Outputs, least_db: float
) -> dict[str, CheckedOutput]:
    """Compare outputs with those of ONNX Runtime's CPU in the model's own precision.

    Raises UnsupportedFeature if an output has another shape there and is no choice of rows, and BadModel if ONNX
    Runtime cannot load or run the model.
    """
    reference = _reference(model, samples)
    exact = reference(list(outputs))
    chosen = chosen_outputs(ModelProto.FromString(model).graph)
    checked = {}
    for name, row_set in compare_row_sets(exact, outputs, chosen, least_db).items():
        checked[name] = _checked_set(row_set, joined(exact[name]), least_db)
    for name in outputs:
        if name not in checked:
            checked[name] = _checked(name, exact[name], outputs[name], least_db)
    far = [name for name in outputs if checked[name].verdict is CheckVerdict.TOO_FAR]
    again = reference(far) if far else {}
    for name in far:
        if not _repeats(exact[name], again[name], least_db):
            checked[name] = CheckedOutput(checked[name].nearness, CheckVerdict.NOTHING, _AT_RANDOM)
    return {name: checked[name] for name in outputs}


_AT_RANDOM = "ONNX Runtime itself puts out something else in a second run: the model draws random numbers"


def _repeats(first: Sequence[Array], second: Sequence[Array], least_db: float) -> bool:
    """Whether two runs of ONNX Runtime on the same samples agree."""
    if any(a.shape != b.shape for a, b in zip(first, second, strict=True)):
        return False
    wanted, other = joined(first), joined(second)
    if wanted.dtype.kind not in "biuf":
        return bool(np.array_equal(wanted, other))
    return closeness(wanted, other).sqnr_db >= least_db


def _reference(model: bytes, samples: Sequence[Mapping[str, Array]]) -> Callable[[Sequence[str]], Outputs]:
    """Runs of ONNX Runtime: a function from names of outputs to these."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        # With its optimisations, the runtime crashes on some Ifs whose condition is a constant.
        settled_model = settled(model, samples)
        session = onnxruntime.InferenceSession(settled_model, options, providers=["CPUExecutionProvider"])
    except QnnError:
        raise
    except Exception as error:  # its errors have no common class
        raise _unusable(error) from error

    def run(names: Sequence[str]) -> Outputs:
        try:
            runs = [session.run(names, dict(feeds)) for feeds in samples]
        except Exception as error:
            raise _unusable(error) from error
        return {name: [np.asarray(each[index]) for each in runs] for index, name in enumerate(names)}

    return run


def _unusable(error: Exception) -> BadModel:
    return BadModel(f"onnxruntime cannot run the model: {refusal_in_words(error)}")


def _checked(name: str, exact: Sequence[Array], other: Sequence[Array], least_db: float) -> CheckedOutput:
    if any(a.shape != b.shape for a, b in zip(exact, other, strict=True)):
        raise UnsupportedFeature(f"output {name!r} has another shape in ONNX Runtime: {list(exact[0].shape)}")
    wanted, computed = joined(exact), joined(other)
    if wanted.dtype.kind not in "biuf":
        same = float(np.array_equal(wanted, computed))
        nearness = Closeness(np.inf if same else -np.inf, same, 0.0 if same else np.inf)
        return CheckedOutput(nearness, CheckVerdict.OK if same else CheckVerdict.TOO_FAR, "compared as text")
    nearness = closeness(wanted, computed)
    if nearness.sqnr_db < least_db:
        return CheckedOutput(nearness, CheckVerdict.TOO_FAR, _one_sided(wanted, computed))
    reason = _says_nothing(wanted)
    return CheckedOutput(nearness, CheckVerdict.NOTHING if reason else CheckVerdict.OK, reason)


def _checked_set(row_set: RowSet, exact: Array, least_db: float) -> CheckedOutput:
    if row_set.nearness.sqnr_db < least_db:
        return CheckedOutput(row_set.nearness, CheckVerdict.TOO_FAR, row_set.note)
    # Classes of rows may well be one and the same.
    reason = _says_nothing(exact) if exact.dtype.kind == "f" or not row_set.rows else ""
    verdict = CheckVerdict.NOTHING if reason else CheckVerdict.OK
    return CheckedOutput(row_set.nearness, verdict, reason or row_set.note)


def _one_sided(exact: Array, other: Array) -> str:
    """Which side alone has numbers that are none."""
    broken = {
        "ONNX Runtime": int(np.sum(~np.isfinite(exact.astype(np.float64)))),
        "the HTP": int(np.sum(~np.isfinite(other.astype(np.float64)))),
    }
    return "; ".join(f"{count:,} infinite or NaN on {where}" for where, count in broken.items() if count)


def _says_nothing(exact: Array) -> str:
    """Why agreement with this array says nothing; empty if it says something."""
    numbers = exact.astype(np.float64)
    if not numbers.size:
        return "it is empty"
    nans = int(np.sum(np.isnan(numbers)))
    if nans:
        return f"{nans:,} of {numbers.size:,} numbers are NaN on both sides"
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return "all of it is infinite on both sides"
    # One number that is not 0 was computed from something.
    if finite.min() == finite.max() and (numbers.size > 1 or not finite[0]):
        return f"every number is {finite[0]:g}"
    return ""


def joined(arrays: Sequence[Array]) -> Array:
    """One row of all numbers."""
    return np.concatenate([array.reshape(-1) for array in arrays])
