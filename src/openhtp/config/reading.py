"""Checks a parsed file against the table of keys. What is wrong is named by its place: ``/devices/0/core_id``."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, NoReturn

from openhtp.config.keys import Key, Section
from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.options import Refused

_MOST_ITEMS = 65536

# A string, which is left as it is, or a comment, as the vendor's documents have in their examples. Those without
# an end are matched as well, so that nothing is looked at twice, however many of them there are.
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

Object = dict[str, Any]


def parse_json(text: str, source: str) -> Object:
    """A JSON object, in which comments are allowed and keys must not come twice."""
    blanked = _COMMENT.sub(_blank, text)
    try:
        found = json.loads(blanked, object_pairs_hook=_object, parse_constant=_no_constant)
    except _Doubled as error:
        refuse(source, "", f"the key {shown(str(error))} comes twice in one object")
    except json.JSONDecodeError as error:
        refuse(source, "", f"line {error.lineno}, column {error.colno}: {error.msg}; expected JSON")
    except (ValueError, RecursionError) as error:
        refuse(source, "", f"expected JSON: {str(error)[:200] or 'it is nested too deeply'}")
    if not isinstance(found, dict):
        refuse(source, "", f"is {shown(found)}; expected an object")
    return found


def check_section(given: object, section: Section, source: str, place: str = "") -> Object:
    """The section's values, read by their kinds. Unknown keys and wrong types are refused."""
    if not isinstance(given, dict):
        refuse(source, place, f"is {shown(given)}; expected an object")
    keys = {key.name: key for key in section.keys}
    inner = {each.name: each for each in section.sections}
    found: Object = {}
    for name, value in given.items():
        where = f"{place}/{_escaped(str(name))}"
        if name in keys:
            found[name] = _read(keys[name], value, source, where)
        elif name in inner:
            found[name] = _inner(value, inner[name], source, where)
        else:
            _unknown(name, [*keys, *inner], source, where)
    return found


def _inner(given: object, section: Section, source: str, where: str) -> Any:
    if section.is_list:
        if not isinstance(given, list) or len(given) > _MOST_ITEMS:
            refuse(source, where, f"is {shown(given)}; expected a list of objects")
        return [check_section(item, section, source, f"{where}/{place}") for place, item in enumerate(given)]
    if isinstance(given, list) and len(given) == 1:
        return check_section(given[0], section, source, f"{where}/0")
    return check_section(given, section, source, where)


def _read(key: Key, value: object, source: str, where: str) -> Any:
    try:
        read = key.kind.read(value)
        row = key.row
        if row is not None and row.kind.python_type == key.kind.python_type == "int" and read:
            row.kind.read(read)  # the option's own bounds, where they are narrower
    except Refused as expected:
        refuse(source, where, f"is {shown(value)}; expected {expected}")
    return read


def _unknown(name: object, known: list[str], source: str, where: str) -> NoReturn:
    near = difflib.get_close_matches(str(name)[:100], known, 2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"expected some of {', '.join(known)}"
    refuse(source, where, f"is not known; {hint}")


def refuse(source: str, place: str, problem: str) -> NoReturn:
    """Raise, naming the file and the place in it."""
    where = f"{source}: {place} " if place else f"{source}: "
    raise InvalidArgument(where + problem, st.QNN_COMMON_ERROR_INVALID_ARGUMENT)


def _escaped(name: str) -> str:
    """A name as JSON pointers have it."""
    short = name if len(name) <= 100 else f"{name[:100]}..."
    return short.replace("~", "~0").replace("/", "~1")


def _blank(match: re.Match[str]) -> str:
    """A comment as blanks, so that lines and columns stay what they are."""
    text = match.group()
    unended = text.startswith("/*") and not text.endswith("*/", 2)
    return text if text.startswith('"') or unended else re.sub(r"[^\n]", " ", text)


class _Doubled(Exception):
    """A key that comes twice."""


def _object(pairs: list[tuple[str, Any]]) -> Object:
    found: Object = {}
    for name, value in pairs:
        if name in found:
            raise _Doubled(name)
        found[name] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
