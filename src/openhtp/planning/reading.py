"""The text of a scenario: read into written values, so that every complaint can name its place, and rewritten.

JSON is read by the same parser, being a subset of YAML. Files are bounded in size, depth and number of values, and
aliases are refused: a scenario of a few lines must not be able to fill the memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from openhtp.core import status as st
from openhtp.core.errors import FormatError
from openhtp.core.files import read_file as read_bytes
from openhtp.core.validating import (
    MAX_DEPTH,
    MAX_VALUES,
    KeyPlace,
    WrittenValue,
    clipped,
    in_words,
    verify_size,
    written,
)
from openhtp.planning.scenario import Scenario
from openhtp.sched.policy import Fair

MAX_BYTES = 2 * 1024 * 1024

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadScenario(FormatError):
    """A scenario cannot be used; the message names the file, the line and what was expected."""

    default_status = st.QNN_COMMON_ERROR_INVALID_ARGUMENT


def read_file(path: Path, what: str = "a scenario") -> WrittenValue:
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


def read_text(text: str, source: str = "scenario") -> WrittenValue:
    """Read a scenario from a string; ``source`` names it in messages."""
    if len(text) > MAX_BYTES:
        raise BadScenario(f"{source}: {len(text)} bytes are too many for a scenario; the limit is {MAX_BYTES}")
    try:
        _verify_bounds(text, source)
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            raise BadScenario(f"{source}: the file is empty")
        return _to_value(node, KeyPlace(source, line=node.start_mark.line + 1, error=BadScenario), _Loader(""))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadScenario(f"{source}{line}: neither YAML nor JSON: {problem}") from error
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise BadScenario(f"{source}: neither YAML nor JSON: {error}") from error


def read_mapping(mapping: Mapping[str, Any], source: str = "scenario") -> WrittenValue:
    """Read a scenario from a mapping. Its values have no lines, so messages name the keys that lead to them."""
    return written(mapping, KeyPlace(source, error=BadScenario))


def _verify_bounds(text: str, source: str) -> None:
    """Walk the file's tokens once, without building anything, and refuse what would not be small."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        mark: Any = event.start_mark  # its stubs disagree from release to release on whether an event has one
        line = mark.line + 1
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


def _to_value(node: yaml.Node, place: KeyPlace, loader: yaml.SafeLoader) -> WrittenValue:
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, WrittenValue] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            value = _to_value(value_node, place.inside(key, key_node.start_mark.line + 1), loader)
            if key in fields:
                value.fail(f"key {key!r} is given twice")
            fields[key] = value
        return WrittenValue(fields, place)
    if isinstance(node, yaml.SequenceNode):
        items = [
            _to_value(item, place.inside(number, item.start_mark.line + 1), loader)
            for number, item in enumerate(node.value)
        ]
        return WrittenValue(items, place)
    try:
        scalar = loader.construct_object(node)
    except yaml.YAMLError:
        raise
    except Exception as error:  # a tag, number or date that is none, about which the loader raises what it will
        raise place.error(f"{in_words(node.value)} cannot be read: {clipped(str(error))}") from None
    verify_size(scalar, place)
    return WrittenValue(scalar, place)


_Edit = tuple[int, int, str]


def rewritten(text: str, before: Scenario, after: Scenario) -> str:
    """The text of ``before``, changed to say what ``after`` says. Raises BadScenario if that is not possible."""
    top: Any = yaml.compose(text, Loader=yaml.SafeLoader)  # a mapping: the text has been read as a scenario before
    wanted = yaml.safe_load(text)
    edits: list[_Edit] = []
    if before.policy != after.policy:
        policy = after.policy
        policy_words = (
            {"name": policy.name, "window": after.in_unit(policy.window_ns)}
            if isinstance(policy, Fair)
            else policy.name
        )
        wanted["policy"] = policy_words
        edits.append(_edit_of(text, top, "policy", policy_words, beside=None))
    clients = next(value for key, value in top.value if key.value == "clients")
    for number, (old, new) in enumerate(zip(before.clients, after.clients, strict=True)):
        changes: dict[str, Any] = {}
        if old.priority != new.priority:
            changes["priority"] = new.priority.name.lower()
        if old.depth != new.depth:
            changes["depth"] = new.depth
        for key, value in changes.items():
            wanted["clients"][number][key] = value
            edits.append(_edit_of(text, clients.value[number], key, value, beside="name"))
    for start, end, words in sorted(edits, key=lambda edit: edit[0], reverse=True):
        text = text[:start] + words + text[end:]
    try:
        written = yaml.safe_load(text)
    except yaml.YAMLError:
        written = None
    if written != wanted:
        raise BadScenario(f"{before.name}: its file is written in a way that cannot be changed; do it by hand")
    return text


def _edit_of(text: str, mapping: Any, key: str, value: Any, *, beside: str | None) -> _Edit:
    """Change a key's value, or add the key: on a line after ``beside``, or before all others."""
    first = mapping.value[0][0]
    quoted = first.style == '"'  # as in JSON
    words = json.dumps(value) if quoted else _in_yaml(value)
    for name, node in mapping.value:
        if name.value == key:
            start = node.start_mark.index
            # A value on lines of its own ends where the next key begins.
            return start, start + len(text[start : node.end_mark.index].rstrip()), words
    entry = f"{json.dumps(key) if quoted else key}: {words}"
    if mapping.flow_style:
        end = mapping.value[-1][1].end_mark.index
        return end, end, f", {entry}"
    indent = " " * first.start_mark.column
    node = next((value for name, value in mapping.value if name.value == beside), None)
    if node is None:
        return first.start_mark.index, first.start_mark.index, f"{entry}\n{indent}"
    line_end = text.find("\n", node.end_mark.index)
    end = len(text) if line_end < 0 else line_end
    return end, end, f"\n{indent}{entry}"


def _in_yaml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return str(value)
