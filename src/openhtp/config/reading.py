"""Checks a parsed file against the table of keys. Errors name the place: ``/devices/0/core_id``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from openhtp.config.keys import Key, Section
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.files import read_file
from openhtp.core.units import MIB
from openhtp.core.validating import PointerPlace, did_you_mean
from openhtp.core.value_kinds import MAX_ITEMS

# A string, which is left as it is, or a comment, as the vendor's documents have in their examples. Those without
# an end are matched as well, so that nothing is looked at twice, however many of them there are.
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

JsonDict = dict[str, Any]


def load_json(
    path: str | os.PathLike[str], *, what: str, most: int = MIB, error: type[QnnError] = InvalidArgument
) -> JsonDict:
    """The JSON object in a file of at most ``most`` bytes; ``what`` says in errors what the file should be."""
    place = PointerPlace(str(path), error=error)
    data = read_file(path, most=most, what=what, error=error)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise place.error(f"byte {problem.start} is no UTF-8; expected JSON") from None
    return parse_json(text, place)


def parse_json(text: str, place: PointerPlace) -> JsonDict:
    """A JSON object, in which comments are allowed and keys must not come twice."""
    blanked = _COMMENT.sub(_blank, text)
    try:
        content = json.loads(blanked, object_pairs_hook=_object, parse_constant=_no_constant)
    except _Doubled as error:
        raise place.error(f"the key {shown(str(error))} comes twice in one object") from None
    except json.JSONDecodeError as error:
        raise place.error(f"line {error.lineno}, column {error.colno}: {error.msg}; expected JSON") from None
    except (ValueError, RecursionError) as error:
        raise place.error(f"expected JSON: {str(error)[:200] or 'it is nested too deeply'}") from None
    if not isinstance(content, dict):
        raise place.unexpected(content, "an object")
    return content


def check_section(content: object, section: Section, place: PointerPlace) -> JsonDict:
    """The section's values, read by their kinds. Unknown keys and wrong types are refused."""
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
            raise where.error(f"is not known; {_hint(str(name), keys, inner)}")
    return checked


def _hint(name: str, keys: Iterable[str], inner: Mapping[str, Section]) -> str:
    """What an unknown key may have been meant to be: a key of this section, or of one inside it."""
    known = [*keys, *inner]
    near = did_you_mean(name, known, most=2)
    homes = [home for home, section in inner.items() if name in {key.name for key in section.keys}]
    elsewhere = f"; {name} is a key of {homes[0]}" if homes else ""
    return near or f"expected some of {', '.join(known)}{elsewhere}"


def _inner_values(content: object, section: Section, place: PointerPlace) -> Any:
    if section.is_list:
        if not isinstance(content, list) or len(content) > MAX_ITEMS:
            raise place.unexpected(content, "a list of objects")
        return [check_section(item, section, place.inside(number)) for number, item in enumerate(content)]
    if isinstance(content, list) and len(content) == 1:
        return check_section(content[0], section, place.inside(0))
    return check_section(content, section, place)


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
