"""What an option's value may be. A kind reads what a caller gave, or says in words what it expected."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol

from openhtp.core.checks import is_encodable, items_of, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.core.groups import GroupRegistration
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.priority import Priority

_MAX_TEXT = 4096
_MAX_NAMES = 65536


class Refused(Exception):
    """The value is not of this kind; the text says what was expected."""


class Kind(Protocol):
    """Reads values of one kind."""

    @property
    def words(self) -> str:
        """What is accepted, as messages and the reference page say it."""

    @property
    def python_type(self) -> str:
        """The type of a Python argument, as it is written in a signature."""

    def read(self, value: object) -> Any:
        """The value in its plain form. Raises Refused."""


@dataclass(frozen=True, slots=True)
class Flag:
    """On or off."""

    words = "True or False"
    python_type = "bool"

    def read(self, value: object) -> bool:
        """Accept booleans, numpy's included, and nothing that only looks like one."""
        if type(value).__name__ in ("bool", "bool_"):
            return bool(value)
        raise Refused(self.words)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds, and a multiple of ``step``.

    With ``or_max``, "max" or 0 is as much as there is, and read as 0.
    """

    low: int
    high: int
    unit: str = ""
    or_max: bool = False
    step: int = 1

    @property
    def python_type(self) -> str:
        """The type of a Python argument."""
        return "int | str" if self.or_max else "int"

    @property
    def words(self) -> str:
        """What is accepted."""
        kind = "a whole number" if self.step == 1 else f"a multiple of {self.step}"
        return (
            f"{kind} {f'of {self.unit} ' if self.unit and self.step == 1 else ''}from {self.low} to {self.high}"
            + (', or "max"' if self.or_max else "")
        )

    def read(self, value: object) -> int:
        """Accept whatever counts as a whole number in Python, except booleans."""
        number = whole_number(value)
        if self.or_max and (number == 0 or (isinstance(value, str) and value == "max")):
            return 0
        if number is None or not self.low <= number <= self.high or number % self.step:
            raise Refused(self.words)
        return number


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    choices: tuple[str, ...]

    python_type = "str"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"one of {', '.join(self.choices)}"

    def read(self, value: object) -> str:
        """Accept exactly one of the words."""
        if isinstance(value, str) and value in self.choices:
            return value
        raise Refused(self.words)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration of words, or the word."""

    members: type[enum.StrEnum]

    python_type = "str"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"one of {', '.join(self.members)}"

    def read(self, value: object) -> enum.StrEnum:
        """Accept a member, or exactly its word."""
        if isinstance(value, str) and value in list(self.members):
            return self.members(value)
        raise Refused(self.words)


@dataclass(frozen=True, slots=True)
class Level:
    """A priority, by name, member or number."""

    python_type = "Priority | str | int"

    @property
    def words(self) -> str:
        """What is accepted."""
        names = ", ".join(level.name.lower() for level in Priority)
        return f"one of {names}, or a number from {min(Priority):d} to {max(Priority):d}"

    def read(self, value: object) -> Priority:
        """Accept whatever ``Priority.parse`` takes."""
        try:
            return Priority.parse(value)  # type: ignore[arg-type]
        except InvalidArgument:
            raise Refused(self.words) from None


@dataclass(frozen=True, slots=True)
class Names:
    """Names of graphs."""

    words = "a list of graph names"
    python_type = "Iterable[str]"

    def read(self, value: object) -> tuple[str, ...]:
        """Accept a list of strings; a single string is no list of names."""
        names = items_of(value, _MAX_NAMES)
        if names is None or not all(isinstance(name, str) and name for name in names):
            raise Refused(self.words)
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Group:
    """Membership in a group of contexts that share buffers."""

    words = "a GroupRegistration"
    python_type = "GroupRegistration"

    def read(self, value: object) -> GroupRegistration:
        """Accept one that begins a group with a size, or joins one with or without."""
        if not isinstance(value, GroupRegistration):
            raise Refused(self.words)
        nbytes = whole_number(value.max_spill_fill_buffer)
        if nbytes is None or not 0 <= nbytes <= SESSION_LIMIT_BYTES:
            raise Refused(f"max_spill_fill_buffer from 0 to {SESSION_LIMIT_BYTES} bytes")
        if value.first is None and nbytes == 0:
            raise Refused("the first context of a group to say max_spill_fill_buffer, above 0")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """Any text; ``about`` says what it stands for."""

    about: str = "text"

    python_type = "str"

    @property
    def words(self) -> str:
        """What is accepted."""
        return self.about

    def read(self, value: object) -> str:
        """Accept strings that can be stored and printed."""
        if not isinstance(value, str) or len(value) > _MAX_TEXT or not is_encodable(value):
            raise Refused(self.words)
        return value


@dataclass(frozen=True, slots=True)
class Object:
    """An object of ours or of the caller's, checked by whoever uses it."""

    words: str
    python_type: str

    def read(self, value: object) -> object:
        """Accept it as it is."""
        return value
