"""Checks a parsed file against the table of keys. Errors name the place: ``/devices/0/core_id``."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from openhtp.config.keys import Key, Section
from openhtp.core.checks import shown
from openhtp.core.validating import PointerPlace, did_you_mean
from openhtp.core.value_kinds import MAX_ITEMS

# A string, which is left as it is, or a comment, as the vendor's documents have in their examples. Those without
# an end are matched as well, so that nothing is looked at twice, however many of them there are.
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

JsonDict = dict[str, Any]


def parse_json(text: str, source: str) -> JsonDict:
    """A JSON object, in which comments are allowed and keys must not come twice."""
    blanked = _COMMENT.sub(_blank, text)
    try:
        content = json.loads(blanked, object_pairs_hook=_object, parse_constant=_no_constant)
    except _Doubled as error:
        refuse(source, "", f"the key {shown(str(error))} comes twice in one object")
    except json.JSONDecodeError as error:
        refuse(source, "", f"line {error.lineno}, column {error.colno}: {error.msg}; expected JSON")
    except (ValueError, RecursionError) as error:
        refuse(source, "", f"expected JSON: {str(error)[:200] or 'it is nested too deeply'}")
    if not isinstance(content, dict):
        refuse(source, "", f"is {shown(content)}; expected an object")
    return content


def check_section(content: object, section: Section, source: str) -> JsonDict:
    """The section's values, read by their kinds. Unknown keys and wrong types are refused."""
    return _section_values(content, section, PointerPlace(source))


def _section_values(content: object, section: Section, place: PointerPlace) -> JsonDict:
    if not isinstance(content, dict):
        raise place.unexpected(content, "an object")
    keys = {key.name: key for key in section.keys}
    inner = {each.name: each for each in section.sections}
    checked: JsonDict = {}
    for name, value in content.items():
        where = place.inside(str(name))
        if name in keys:
            checked[name] = _key_value(keys[name], value, where)
        elif name in inner:
            checked[name] = _inner_values(value, inner[name], where)
        else:
            known = [*keys, *inner]
            hint = did_you_mean(str(name), known, most=2) or f"expected some of {', '.join(known)}"
            raise where.error(f"is not known; {hint}")
    return checked


def _inner_values(content: object, section: Section, place: PointerPlace) -> Any:
    if section.is_list:
        if not isinstance(content, list) or len(content) > MAX_ITEMS:
            raise place.unexpected(content, "a list of objects")
        return [_section_values(item, section, place.inside(number)) for number, item in enumerate(content)]
    if isinstance(content, list) and len(content) == 1:
        return _section_values(content[0], section, place.inside(0))
    return _section_values(content, section, place)


def _key_value(key: Key, value: object, place: PointerPlace) -> Any:
    read = place.read(value, key.kind)
    row = key.row
    if row is not None and row.kind.python_type == key.kind.python_type == "int" and read:
        place.read(read, row.kind)  # the option's own bounds, where they are narrower
    return read


def refuse(source: str, pointer: str, problem: str) -> NoReturn:
    """Raise, naming the file and the place in it."""
    raise PointerPlace(source, pointer).error(problem)


def _blank(match: re.Match[str]) -> str:
    """A comment as blanks, so that lines and columns stay what they are."""
    text = match.group()
    unended = text.startswith("/*") and not text.endswith("*/", 2)
    return text if text.startswith('"') or unended else re.sub(r"[^\n]", " ", text)


class _Doubled(Exception):
    """A key that comes twice."""


def _object(pairs: list[tuple[str, Any]]) -> JsonDict:
    pairs_seen: JsonDict = {}
    for name, value in pairs:
        if name in pairs_seen:
            raise _Doubled(name)
        pairs_seen[name] = value
    return pairs_seen


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
