"""What a program does with a native KV cache: found by the compiler, used by whoever computes."""

from __future__ import annotations

from dataclasses import dataclass

from openhtp.core.hmx_layout import BLOCK, Side, round_up


@dataclass(frozen=True, slots=True)
class NativeTensor:
    """An input or output in the HMX weight layout, and which half of the cache it is: ``key`` or ``value``."""

    name: str
    side: str

    @property
    def half(self) -> Side:
        """The side as the layout knows it."""
        return Side[self.side.upper()]


@dataclass(frozen=True, slots=True)
class MaskInput:
    """The attention mask, and which stored numbers in it let a place take part."""

    name: str
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKv:
    """Native caches of one graph: where new tokens go is in ``index``, ``tokens`` of them come at a time."""

    index: str
    tokens: int
    context: int
    caches: tuple[NativeTensor, ...]
    outputs: tuple[NativeTensor, ...] = ()
    mask: MaskInput | None = None
    strict: bool = False

    @property
    def last_index(self) -> int:
        """The highest place at which a pass still has room."""
        return self.context - round_up(self.tokens)

    def place(self, index: int) -> int:
        """Where new tokens land: places are taken in whole blocks."""
        return -(-index // BLOCK) * BLOCK
