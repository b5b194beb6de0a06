"""YAML or JSON into plain values that remember their line, so that every complaint can name its place.

JSON is read by the same parser, being a subset of YAML. Files are bounded in size, depth and number of values, and
aliases are refused: a scenario of a few lines must not be able to fill the memory.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import yaml

from openhtp.core import status as st
from openhtp.core.errors import FormatError
from openhtp.core.files import read_file as read_bytes
from openhtp.plan.ranges import RANGES, Range

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 16
MAX_VALUES = 200_000
MAX_TEXT = 4096
_MAX_INTEGER = 1 << 64
_MAX_SHOWN = 80

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadScenario(FormatError):
    """A scenario cannot be used; the message names the file, the line and what was expected."""

    default_status = st.QNN_COMMON_ERROR_INVALID_ARGUMENT


class Value:
    """One value of the file and where it stands. The readers below complain in terms of that place."""

    __slots__ = ("line", "path", "raw", "source")

    def __init__(self, raw: object, line: int, source: str, path: str) -> None:
        self.raw = raw
        self.line = line
        self.source = source
        self.path = path

    def fail(self, message: str) -> NoReturn:
        """Refuse this value."""
        where = f"{self.path}: " if self.path else ""
        raise BadScenario(f"{self.source}:{self.line}: {where}{message}")

    def fields(self, known: Iterable[str]) -> Fields:
        """This value as a mapping with no keys but ``known``."""
        if not isinstance(self.raw, dict):
            self.fail(f"expected keys and values, found {_in_words(self.raw)}")
        known = list(known)
        for key, value in self.raw.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
                Value(None, value.line, self.source, self.path).fail(f"unknown key {_in_words(key)}; {hint}")
        return Fields(self, self.raw)

    def items(self) -> list[Value]:
        """This value as a list."""
        if not isinstance(self.raw, list):
            self.fail(f"expected a list, found {_in_words(self.raw)}")
        return self.raw

    def text(self) -> str:
        """This value as a word or sentence; numbers are taken as they are written."""
        if isinstance(self.raw, (dict, list, bool)) or self.raw is None or str(self.raw) == "":
            self.fail(f"expected text, found {_in_words(self.raw)}")
        word = str(self.raw)
        if len(word) > MAX_TEXT:
            self.fail(f"a text of {len(word)} characters; at most {MAX_TEXT} are read")
        return word

    def choice(self, *words: str) -> str:
        """This value as one of ``words``."""
        word = self.text()
        if word not in words:
            near = difflib.get_close_matches(word, words, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            self.fail(f"{word!r} is not one of {', '.join(words)}{hint}")
        return word

    def number(self, bounds: Range) -> float:
        """This value as a finite number within bounds."""
        raw = self.raw
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not math.isfinite(raw):
            self.fail(f"expected a number, found {_in_words(raw)}")
        if not raw and bounds.lowest > 0:
            self.fail("0 must be above 0")
        if raw < bounds.lowest:
            self.fail(f"{raw} is below {bounds.lowest:g}" if bounds.lowest else f"{raw} is negative")
        if raw > bounds.highest:
            self.fail(f"{raw} is above {bounds.highest:,}, the most that is planned")
        return raw

    def integer(self, bounds: Range) -> int:
        """This value as a whole number within bounds."""
        number = self.number(bounds)
        if number != int(number):
            self.fail(f"expected a whole number, found {number}")
        return int(number)

    def flag(self) -> bool:
        """This value as yes or no."""
        if not isinstance(self.raw, bool):
            self.fail(f"expected true or false, found {_in_words(self.raw)}")
        return self.raw


class Fields:
    """A mapping of the file."""

    def __init__(self, at: Value, values: dict[str, Value]) -> None:
        self.at = at
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Value:
        if key not in self._values:
            self.at.fail(f"{key!r} is missing")
        return self._values[key]

    def get(self, key: str) -> Value | None:
        """The value, or None if the key is absent."""
        return self._values.get(key)

    def keys(self) -> list[str]:
        """The keys that are there."""
        return list(self._values)

    def integer(self, key: str, default: int) -> int:
        """A whole number within the bounds of its key."""
        return self._values[key].integer(RANGES[key]) if key in self._values else default

    def number(self, key: str) -> float | None:
        """A number within the bounds of its key; None if it is absent."""
        return self._values[key].number(RANGES[key]) if key in self._values else None


def read_file(path: Path, what: str = "a scenario") -> Value:
    """Read a scenario file, or another of the same form: ``what`` names it in messages.

    Raises:
        BadScenario: it cannot be read, is too large, or is neither YAML nor JSON.
    """
    return read_text(file_text(path, what), str(path))


def file_text(path: Path, what: str = "a scenario") -> str:
    """The text of a scenario file."""
    data = read_bytes(path, most=MAX_BYTES, what=what, error=BadScenario)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadScenario(f"{path}: cannot be read: {error}") from error


def read_text(text: str, source: str = "scenario") -> Value:
    """Read a scenario from a string; ``source`` names it in messages."""
    if len(text) > MAX_BYTES:
        raise BadScenario(f"{source}: {len(text)} bytes are too many for a scenario; the limit is {MAX_BYTES}")
    try:
        _verify_bounds(text, source)
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            raise BadScenario(f"{source}: the file is empty")
        return _to_value(node, source, "", _Loader(""))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadScenario(f"{source}{line}: neither YAML nor JSON: {problem}") from error
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise BadScenario(f"{source}: neither YAML nor JSON: {error}") from error


def _verify_bounds(text: str, source: str) -> None:
    """Walk the file's tokens once, without building anything, and refuse what would not be small."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise BadScenario(f"{source}:{line}: aliases (*{event.anchor}) are not allowed in a scenario")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        values += isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent))
        if depth > MAX_DEPTH:
            raise BadScenario(f"{source}:{line}: nested deeper than {MAX_DEPTH} levels")
        if values > MAX_VALUES:
            raise BadScenario(f"{source}:{line}: more than {MAX_VALUES} values")


def _to_value(node: yaml.Node, source: str, path: str, loader: yaml.SafeLoader) -> Value:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, Value] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            value = _to_value(value_node, source, f"{path}.{key}" if path else key, loader)
            value.line = key_node.start_mark.line + 1
            if key in fields:
                value.fail(f"key {key!r} is given twice")
            fields[key] = value
        return Value(fields, line, source, path)
    if isinstance(node, yaml.SequenceNode):
        items = [_to_value(item, source, f"{path}[{i}]", loader) for i, item in enumerate(node.value)]
        return Value(items, line, source, path)
    value = Value(None, line, source, path)
    try:
        value.raw = loader.construct_object(node)
    except yaml.YAMLError:
        raise
    except Exception as error:  # a tag, number or date that is none, about which the loader raises what it will
        value.fail(f"{_in_words(node.value)} cannot be read: {_clipped(str(error))}")
    if isinstance(value.raw, int) and abs(value.raw) > _MAX_INTEGER:
        value.raw = None
        value.fail(f"a number of more than {_MAX_INTEGER.bit_length() - 1} bits")
    return value


def _in_words(raw: object) -> str:
    if raw is None:
        return "nothing"
    if isinstance(raw, dict):
        return "keys and values"
    if isinstance(raw, list):
        return "a list"
    return _clipped(repr(raw))


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
