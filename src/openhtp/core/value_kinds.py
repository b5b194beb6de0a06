"""Kinds of values: each reads a value that a person wrote, or says in words what it expected.

Options, config files, scenarios and studies all have values of these kinds. A kind does not know where a value
stands: ``validating.py`` joins its words to the place.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol

from openhtp.core.checks import is_encodable, items_of, real_number, whole_number
from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument
from openhtp.core.limits import SESSION_LIMIT_BYTES

_MAX_TEXT = 4096
MAX_ITEMS = 65536


class RefusedValue(Exception):
    """The value is not of this kind; ``expected`` says what is.

    ``problem`` is the whole complaint, for a kind that can say more than what it expected.
    """

    def __init__(self, expected: str, problem: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.problem = problem


class ValueKind(Protocol):
    """Reads values of one kind."""

    @property
    def words(self) -> str:
        """The accepted values in words, for messages and the reference page."""

    @property
    def python_type(self) -> str:
        """The type of a Python argument, as it is written in a signature."""

    def read(self, value: object) -> Any:
        """The value in its plain form. Raises RefusedValue."""


@dataclass(frozen=True, slots=True)
class Flag:
    """On or off."""

    words: str = "True or False"

    python_type = "bool"

    def read(self, value: object) -> bool:
        """Accept booleans, numpy's included, and nothing that only looks like one."""
        if type(value).__name__ in ("bool", "bool_"):
            return bool(value)
        raise RefusedValue(self.words)


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
            raise RefusedValue(self.words)
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
        raise RefusedValue(self.words)


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
        raise RefusedValue(self.words)


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
            raise RefusedValue(self.words) from None


@dataclass(frozen=True, slots=True)
class Names:
    """Names of graphs."""

    words = "a list of graph names"
    python_type = "Iterable[str]"

    def read(self, value: object) -> tuple[str, ...]:
        """Accept a list of strings; a single string is no list of names."""
        names = items_of(value, MAX_ITEMS)
        if names is None or not all(isinstance(name, str) and name for name in names):
            raise RefusedValue(self.words)
        return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRegistration:
    """How a context says that it shares buffers with others.

    ``first`` is the context that began the group, None to begin one. ``max_spill_fill_buffer`` is the size in
    bytes of the one buffer that all graphs of the group use in turn: as much as the largest of them needs. A
    context that joins may leave it out, or repeat it.
    """

    max_spill_fill_buffer: int = 0
    first: object = None


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """Membership in a group of contexts that share buffers."""

    words = "a GroupRegistration"
    python_type = "GroupRegistration"

    def read(self, value: object) -> GroupRegistration:
        """Accept one that begins a group with a size, or joins one with or without."""
        if not isinstance(value, GroupRegistration):
            raise RefusedValue(self.words)
        nbytes = whole_number(value.max_spill_fill_buffer)
        if nbytes is None or not 0 <= nbytes <= SESSION_LIMIT_BYTES:
            raise RefusedValue(f"max_spill_fill_buffer from 0 to {SESSION_LIMIT_BYTES} bytes")
        if value.first is None and nbytes == 0:
            raise RefusedValue("the first context of a group to say max_spill_fill_buffer, above 0")
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
            raise RefusedValue(self.words)
        return value


@dataclass(frozen=True, slots=True)
class AnyObject:
    """An object of ours or of the caller's; the code that uses it checks it."""

    words: str
    python_type: str

    def read(self, value: object) -> object:
        """Accept it as it is."""
        return value


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
        """Accept numbers, and refuse booleans."""
        if not isinstance(value, (int, float)) or real_number(value) is None:
            raise RefusedValue(self.words)
        if not self.low <= value <= self.high or (self.step and value % self.step):
            raise RefusedValue(self.words)
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
            raise RefusedValue(self.words)
        return self.number


@dataclass(frozen=True, slots=True)
class OffOnly:
    """A flag that cannot be on, and why."""

    why: str

    python_type = "bool"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"false, as {self.why}"

    def read(self, value: object) -> bool:
        """Accept false."""
        if value is not False:
            raise RefusedValue(self.words)
        return False


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one kind."""

    item: ValueKind

    python_type = "list"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"a list, each item {self.item.words}"

    def read(self, value: object) -> tuple[Any, ...]:
        """Accept lists; a single value is no list."""
        if not isinstance(value, (list, tuple)) or len(value) > MAX_ITEMS:
            raise RefusedValue(self.words)
        return tuple(self.item.read(item) for item in value)


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object whose keys are documented nowhere."""

    words = "an object"
    python_type = "dict"

    def read(self, value: object) -> object:
        """Accept objects."""
        if not isinstance(value, dict):
            raise RefusedValue(self.words)
        return value
