"""One op on given real numbers: for tests that say what should come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ops_cases import Case, real, run_case

from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import find_op, resolve
from openhtp.ops._opdef import TYPE_WORDS


@dataclass(frozen=True)
class Given:
    """Numbers, the word of their type, and their encoding where the type has one."""

    numbers: npt.ArrayLike
    word: str = "f32"
    quant: ScaleOffset | None = None
    static: bool = False


def call_of(op: str, inputs: Sequence[Given], outputs: Sequence[Any], params: dict[str, Any]) -> Case:
    """The call, unresolved. An output is a shape, a word and, for fixed point, an encoding."""
    specs, stored = [], {}
    for index, given in enumerate(inputs):
        array, dtype = np.asarray(given.numbers), TYPE_WORDS[given.word]
        kind = TensorKind.STATIC if given.static else TensorKind.APP_WRITE
        quant = given.quant or (ScaleOffset(1.0, 0) if dtype.is_fixed_point else None)
        spec = TensorSpec(f"x{index}", array.shape, dtype, quant, kind)
        held = array if quant is None else quant.quantize(array, *dtype.integer_range)
        specs.append(spec)
        stored[spec.name] = np.ascontiguousarray(held, dtype.numpy)
    results = []
    for index, (shape, word, *quant) in enumerate(outputs):
        dtype = TYPE_WORDS[word]
        encoding = quant[0] if quant else ScaleOffset(1.0, 0) if dtype.is_fixed_point else None
        results.append(TensorSpec(f"y{index}", tuple(shape), dtype, encoding, TensorKind.APP_READ))
    return Case(find_op(op), OpCall(op, "node", tuple(specs), tuple(results), params), stored, ())


def run(op: str, inputs: Sequence[Given], outputs: Sequence[Any], **params: Any) -> list[np.ndarray]:
    """Real values of the outputs."""
    case = call_of(op, inputs, outputs, params)
    resolve(case.call, case.stored)
    return [real(spec, got) for spec, got in zip(case.call.outputs, run_case(case), strict=True)]


def check(op: str, inputs: Sequence[Given], outputs: Sequence[Any], **params: Any) -> None:
    """Only check the call; raises what is wrong with it."""
    case = call_of(op, inputs, outputs, params)
    resolve(case.call, case.stored)
