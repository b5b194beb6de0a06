"""The one validator of values that people write: options, config files, scenarios and studies.

A kind (``value_kinds.py``) says what a value may be. A *place* says where the value stands, and words the
complaint: which source, which key, and which line if the value was read from text. A ``WrittenValue`` is a value
at its place. ``written`` wraps a mapping, whose values have keys and no lines.

Messages are checked by ``msgspec``, which knows neither lines nor names that are spelled alike.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from openhtp.core.checks import is_encodable, shown
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.status import Status
from openhtp.core.value_kinds import Flag, RefusedValue, ValueKind

MAX_DEPTH = 16
MAX_VALUES = 200_000
MAX_TEXT = 4096
_MAX_INTEGER = 1 << 64
_MAX_SHOWN = 80
_MAX_NAME = 100
_YES_OR_NO = Flag("true or false")


class ValuePlace(ABC):
    """Where a value stands. Places are made on the way down and are never changed."""

    __slots__ = ("path", "source")

    def __init__(self, source: str, path: str = "") -> None:
        self.source = source
        self.path = path

    @abstractmethod
    def error(self, problem: str) -> QnnError:
        """The error that names this place and says what is wrong."""

    def unexpected(self, value: object, expected: str) -> QnnError:
        """The error for a value that is not what was expected."""
        return self.error(f"is {shown(value)}; expected {expected}")

    def read(self, value: object, kind: ValueKind) -> Any:
        """The value as its kind reads it. Raises the error of this place."""
        try:
            return kind.read(value)
        except RefusedValue as refusal:
            error = self.unexpected(value, refusal.expected) if refusal.problem is None else None
            raise error or self.error(str(refusal.problem)) from None


class ArgumentPlace(ValuePlace):
    """An argument of a call: ``graph option vtcm_mb``."""

    __slots__ = ("_status",)

    def __init__(self, owner: str, name: str, status: Status) -> None:
        super().__init__(owner, name)
        self._status = status

    def error(self, problem: str) -> QnnError:
        """``graph option vtcm_mb is -1; expected ...``."""
        return InvalidArgument(f"{self.source} option {self.path} {problem}", self._status)


class PointerPlace(ValuePlace):
    """A value of a JSON document, by its JSON pointer: ``/devices/0/core_id``."""

    __slots__ = ("_error",)

    def __init__(self, source: str, path: str = "", *, error: type[QnnError] = InvalidArgument) -> None:
        super().__init__(source, path)
        self._error = error

    def inside(self, step: str | int) -> PointerPlace:
        """The place of a key's value, or of an item."""
        name = clipped(str(step), _MAX_NAME).replace("~", "~0").replace("/", "~1")
        return PointerPlace(self.source, f"{self.path}/{name}", error=self._error)

    def error(self, problem: str) -> QnnError:
        """``config.json: /devices/0/core_id is -1; expected ...``."""
        return self._error(f"{self.source}: {self.path} {problem}" if self.path else f"{self.source}: {problem}")


class KeyPlace(ValuePlace):
    """A value of a scenario or study, by its keys: ``clients[0].name``. It has a line if it was read from text."""

    __slots__ = ("_error", "line")

    def __init__(self, source: str, path: str = "", *, line: int | None = None, error: type[QnnError]) -> None:
        super().__init__(source, path)
        self.line = line
        self._error = error

    def inside(self, step: str | int, line: int | None = None) -> KeyPlace:
        """The place of a key's value, or of an item."""
        dotted = f"{self.path}.{step}" if self.path else str(step)
        path = f"{self.path}[{step}]" if isinstance(step, int) else dotted
        return KeyPlace(self.source, path, line=line, error=self._error)

    def at_line(self, line: int | None) -> KeyPlace:
        """These keys, in another line."""
        return KeyPlace(self.source, self.path, line=line, error=self._error)

    def error(self, problem: str) -> QnnError:
        """``s.yaml:4: clients[0].depth: 301 is above 300``; without a line if there is none."""
        line = "" if self.line is None else f":{self.line}"
        path = f"{self.path}: " if self.path else ""
        return self._error(f"{self.source}{line}: {path}{problem}")

    def unexpected(self, value: object, expected: str) -> QnnError:
        """The error for a value that is not what was expected."""
        return self.error(f"expected {expected}, found {in_words(value)}")

    def __str__(self) -> str:
        return f"at {self.path}" if self.line is None else f"in line {self.line}"


class WrittenValue:
    """One value that a person wrote, at its place. The readers below complain in terms of that place.

    ``raw`` is a plain value, a list of written values, or a dictionary of them.
    """

    __slots__ = ("place", "raw")

    def __init__(self, raw: object, place: KeyPlace) -> None:
        self.raw = raw
        self.place = place

    def fail(self, problem: str) -> NoReturn:
        """Refuse this value."""
        raise self.place.error(problem)

    def read(self, kind: ValueKind) -> Any:
        """This value as its kind reads it."""
        return self.place.read(self.raw, kind)

    def fields(self, known: Iterable[str]) -> WrittenFields:
        """This value as a mapping with no keys but ``known``."""
        if not isinstance(self.raw, dict):
            raise self.place.unexpected(self.raw, "keys and values")
        known = list(known)
        for key, value in self.raw.items():
            if key not in known:
                hint = did_you_mean(key, known, form=repr) or f"known keys: {', '.join(known)}"
                raise self.place.at_line(value.place.line).error(f"unknown key {in_words(key)}; {hint}")
        return WrittenFields(self, self.raw)

    def items(self) -> list[WrittenValue]:
        """This value as a list."""
        if not isinstance(self.raw, list):
            raise self.place.unexpected(self.raw, "a list")
        return self.raw

    def text(self) -> str:
        """This value as a word or sentence; numbers are taken as they are written."""
        if isinstance(self.raw, (dict, list, bool)) or self.raw is None or str(self.raw) == "":
            raise self.place.unexpected(self.raw, "text")
        text = str(self.raw)
        if len(text) > MAX_TEXT:
            self.fail(f"a text of {len(text)} characters; at most {MAX_TEXT} are read")
        return text

    def choice(self, *words: str) -> str:
        """This value as one of ``words``."""
        word = self.text()
        if word not in words:
            hint = did_you_mean(word, words, form=repr)
            self.fail(f"{word!r} is not one of {', '.join(words)}{f'; {hint}' if hint else ''}")
        return word

    def flag(self) -> bool:
        """This value as yes or no."""
        return bool(self.read(_YES_OR_NO))


class WrittenFields:
    """A mapping that a person wrote, with its place."""

    __slots__ = ("_values", "whole")

    def __init__(self, whole: WrittenValue, values: dict[str, WrittenValue]) -> None:
        self.whole = whole
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> WrittenValue:
        if key not in self._values:
            self.whole.fail(f"{key!r} is missing")
        return self._values[key]

    def get(self, key: str) -> WrittenValue | None:
        """The value, or None if the key is absent."""
        return self._values.get(key)

    def replaced(self, key: str, raw: object) -> WrittenValue:
        """The whole mapping with another value under a key, which takes the place of the old one in messages."""
        place = self._values[key].place if key in self._values else self.whole.place
        return WrittenValue({**self._values, key: WrittenValue(raw, place)}, self.whole.place)

    def read(self, key: str, kind: ValueKind, default: Any = None) -> Any:
        """The value as its kind reads it; ``default`` if the key is absent."""
        value = self._values.get(key)
        return default if value is None else value.read(kind)


def written(value: object, place: KeyPlace) -> WrittenValue:
    """A value that a program gave instead of a file, checked to be one that a file can hold.

    Raises the error of the place: for objects that no file can hold, nesting without end, or too many values.
    """
    return _Wrapping().wrap(value, place, 0)


class _Wrapping:
    """Wraps one tree of values, and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def wrap(self, value: object, place: KeyPlace, depth: int) -> WrittenValue:
        self._count += 1
        if self._count > MAX_VALUES:
            raise place.error(f"more than {MAX_VALUES} values")
        if isinstance(value, Mapping | list | tuple) and depth >= MAX_DEPTH:
            raise place.error(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise place.error(f"the key {in_words(key)} is no text")
            return WrittenValue(
                {str(key): self.wrap(item, place.inside(str(key)), depth + 1) for key, item in value.items()},
                place,
            )
        if isinstance(value, list | tuple):
            items = [self.wrap(item, place.inside(number), depth + 1) for number, item in enumerate(value)]
            return WrittenValue(items, place)
        return WrittenValue(plain_value(value, place), place)


def plain_value(value: object, place: KeyPlace) -> object:
    """A value without parts, in Python's own type. Raises the error of the place for what no file can hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        verify_size(value, place)
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        if not is_encodable(value):
            raise place.error(f"{in_words(value)} is no text that a file can hold")
        return str(value)
    raise place.unexpected(value, "what a file can hold: keys and values, a list, text, a number, true or false")


def verify_size(value: object, place: ValuePlace) -> None:
    """Refuse a whole number that is too long to be meant."""
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        raise place.error(f"a number of more than {_MAX_INTEGER.bit_length() - 1} bits")


def did_you_mean(
    name: str, known: Iterable[str], *, most: int = 1, form: Callable[[str], str] = str
) -> str | None:
    """``did you mean vtcm_mb?`` for a name that is not known; None if no other is spelled alike."""
    near = difflib.get_close_matches(name[:_MAX_NAME], list(known), most)
    return f"did you mean {' or '.join(map(form, near))}?" if near else None


def in_words(value: object) -> str:
    """A value as a complaint shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    return clipped(shown(value))


def clipped(text: str, most: int = _MAX_SHOWN) -> str:
    """The text, cut where it is too long to be shown."""
    return text if len(text) <= most else f"{text[:most]}..."
