"""Which operation, with which types: the unit that comparisons with the vendor's library count in."""

from __future__ import annotations

from dataclasses import dataclass

from openhtp.core.dtype import DType
from openhtp.ops import find_op
from openhtp.ops._opdef import Sample
from openhtp.ops._types import type_word

# Beside those of the definitions, where the vendor's library does not take or do the ones there: its validator
# wants rank 4 and the last axis, and its TransposeConv3d equal strides.
_MORE_SAMPLES = {
    "LayerNorm": (Sample(((1, 2, 5, 16), (16,), (16,)), {"axes": [3], "epsilon": 1e-5}, static=(1, 2)),),
    "LogSoftmax": (Sample(((1, 3, 4, 10),), {"axis": 3, "beta": 1.0}),),
    "InstanceNorm": (Sample(((1, 5, 4, 6), (6,), (6,)), {"epsilon": 1e-5}, static=(1, 2)),),
    "TransposeConv3d": (
        Sample(
            ((1, 3, 3, 4, 2), (2, 2, 2, 2, 3), (3,)),
            {"stride": [2, 2, 2], "pad_amount": [[0, 0], [0, 1], [0, 0]]},
            static=(1, 2),
        ),
    ),
}


def samples_of(op: str) -> tuple[Sample, ...]:
    """The samples of an operation's definition, and ours."""
    return (*find_op(op).samples, *_MORE_SAMPLES.get(op, ()))


@dataclass(frozen=True, slots=True)
class Row:
    """An operation and the types of its tensors, from one of the samples in its definition."""

    op: str
    sample: int
    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]

    @property
    def types(self) -> str:
        """The types in the notation of docs/ops.md."""
        given = [
            None if shape is None else dtype
            for shape, dtype in zip(samples_of(self.op)[self.sample].shapes, self.inputs, strict=True)
        ]
        return f"{' '.join(map(type_word, given))} > {' '.join(map(type_word, self.outputs))}"

    def __str__(self) -> str:
        return f"{self.op}/{self.sample} {self.types}"
