"""Which operation, with which types: the unit that comparisons with the vendor's library count in."""

from __future__ import annotations

from dataclasses import dataclass

from openhtp.core.dtype import DType
from openhtp.ops import find_op
from openhtp.ops._opdef import Sample, type_word


def samples_of(op: str) -> tuple[Sample, ...]:
    """The samples of an operation's definition."""
    return find_op(op).samples


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
