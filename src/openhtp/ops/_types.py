"""Type rows: which combinations of data types an op accepts, in a compact notation.

A row reads ``"u8 u8|s8 u8|s32 > u8"``: one word per port, inputs left of ``>``, outputs right of it,
alternatives joined by ``|``. ``u8``/``s8`` are fixed point, ``n8``/``i8`` plain unsigned/signed integers,
``f16``/``f32`` floats, ``b`` booleans. A word ending in ``*`` stands for all remaining ports of its side; the
rows of one op are alternatives, and a left-out optional input matches anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openhtp.core.dtype import DType

_WORDS = {
    "f16": DType.FLOAT_16,
    "f32": DType.FLOAT_32,
    "u8": DType.UFIXED_POINT_8,
    "u16": DType.UFIXED_POINT_16,
    "s8": DType.SFIXED_POINT_8,
    "s16": DType.SFIXED_POINT_16,
    "s32": DType.SFIXED_POINT_32,
    "i8": DType.INT_8,
    "i16": DType.INT_16,
    "i32": DType.INT_32,
    "i64": DType.INT_64,
    "n8": DType.UINT_8,
    "n16": DType.UINT_16,
    "n32": DType.UINT_32,
    "n64": DType.UINT_64,
    "b": DType.BOOL_8,
}
_BY_TYPE = {dtype: word for word, dtype in _WORDS.items()}

Choices = tuple[DType, ...]


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One accepted combination; ``text`` is the notation it was parsed from."""

    text: str
    inputs: tuple[Choices, ...]
    outputs: tuple[Choices, ...]
    variadic_input: bool = False
    variadic_output: bool = False

    def accepts(self, inputs: Sequence[DType | None], outputs: Sequence[DType]) -> bool:
        """Whether the row allows these types; None is a left-out input."""
        return _side(self.inputs, self.variadic_input, inputs) and _side(
            self.outputs, self.variadic_output, outputs
        )


def _side(choices: tuple[Choices, ...], variadic: bool, given: Sequence[DType | None]) -> bool:
    for index, dtype in enumerate(given):
        if index >= len(choices) and not variadic:
            return False
        if dtype is not None and dtype not in choices[min(index, len(choices) - 1)]:
            return False
    return True


def rows(*texts: str) -> tuple[TypeRow, ...]:
    """Parse rows; ``T`` written in a row before a colon list repeats it: ``"T > T : u8 s8 f16"``."""
    parsed: list[TypeRow] = []
    for text in texts:
        pattern, colon, types = text.partition(":")
        if not colon:
            parsed.append(_parse(text))
            continue
        parsed.extend(_parse(_substitute(pattern, dtype)) for dtype in types.split())
    return tuple(parsed)


def _substitute(pattern: str, dtype: str) -> str:
    words = [word.replace("T", dtype) for word in pattern.split()]
    return " ".join(words)


def _parse(text: str) -> TypeRow:
    left, _, right = text.partition(">")
    inputs, outputs = left.split(), right.split()
    return TypeRow(
        text=" ".join(text.split()),
        inputs=tuple(_choices(word) for word in inputs),
        outputs=tuple(_choices(word) for word in outputs),
        variadic_input=bool(inputs) and inputs[-1].endswith("*"),
        variadic_output=outputs[-1].endswith("*"),
    )


def _choices(word: str) -> Choices:
    return tuple(_WORDS[name] for name in word.rstrip("*").split("|"))


def type_word(dtype: DType | None) -> str:
    """The notation's word for a type (``-`` for a left-out input)."""
    return "-" if dtype is None else _BY_TYPE.get(dtype, dtype.short)


# Row sets that many ops share.
WEIGHTED = rows(
    "T T T > T : f16 f32",
    "f16 s8 f16 > f16",
    "u16 u8|s8|u16|s16 u8|s32 > u16",
    "u8 u8|s8 u8|s32 > u8",
    "s8 u8|s8 u8|s32 > s8",
)
