"""What values of config keys may be, beyond what options have: JSON has one type of number, and lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openhtp.core.checks import real_number
from openhtp.hw.catalog import catalog, find_soc
from openhtp.options import Kind, Refused

_MOST_ITEMS = 65536


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number that is a multiple of ``step``, written as 2 or 2.0; any number if ``step`` is 0."""

    low: int
    high: int
    step: int = 1

    python_type = "int"

    @property
    def words(self) -> str:
        """What is accepted."""
        what = (
            "a number" if not self.step else "a whole number" if self.step == 1 else f"a multiple of {self.step}"
        )
        return f"{what} from {self.low} to {self.high}"

    def read(self, value: object) -> int | float:
        """Accept numbers, and no booleans."""
        if not isinstance(value, (int, float)) or real_number(value) is None:
            raise Refused(self.words)
        if not self.low <= value <= self.high or (self.step and value % self.step):
            raise Refused(self.words)
        return int(value) if self.step else value


@dataclass(frozen=True, slots=True)
class Fixed:
    """One number, and why there is no other."""

    number: int
    why: str

    python_type = "int"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"{self.number}, as {self.why}"

    def read(self, value: object) -> int:
        """Accept that number."""
        if isinstance(value, bool) or value != self.number:
            raise Refused(self.words)
        return self.number


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of values of one kind."""

    item: Kind

    python_type = "list"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"a list, each item {self.item.words}"

    def read(self, value: object) -> tuple[Any, ...]:
        """Accept lists; a single value is no list."""
        if not isinstance(value, (list, tuple)) or len(value) > _MOST_ITEMS:
            raise Refused(self.words)
        return tuple(self.item.read(item) for item in value)


@dataclass(frozen=True, slots=True)
class Obj:
    """An object whose keys are documented nowhere."""

    words = "an object"
    python_type = "dict"

    def read(self, value: object) -> object:
        """Accept objects."""
        if not isinstance(value, dict):
            raise Refused(self.words)
        return value


@dataclass(frozen=True, slots=True)
class Soc:
    """A SoC by its model number."""

    words = "the model number of a SoC, or 0 to leave it open"
    python_type = "int"

    def read(self, value: object) -> str | None:
        """The SoC's name."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(self.words)
        if value == 0:
            return None
        known = {soc.soc_model for soc in catalog().values()}
        if value not in known:
            raise Refused(f"{self.words}: one of {', '.join(map(str, sorted(known)))}")
        return find_soc(value).name


@dataclass(frozen=True, slots=True)
class Architecture:
    """A SoC by its architecture, as ``v73``; the first of the catalog that has it."""

    python_type = "str"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"one of {', '.join(f'v{arch}' for arch in sorted({soc.arch for soc in catalog().values()}))}"

    def read(self, value: object) -> str:
        """The SoC's name."""
        for soc in catalog().values():
            if isinstance(value, str) and value.lower() == soc.arch_name:
                return soc.name
        raise Refused(self.words)
