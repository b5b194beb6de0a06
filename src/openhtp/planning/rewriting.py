"""A scenario's file with other priorities, queue depths and policy; all else, comments too, stays as it was."""

from __future__ import annotations

import json
from typing import Any

import yaml

from openhtp.planning.reading import BadScenario
from openhtp.planning.scenario import Scenario
from openhtp.sched.policy import Fair

_Edit = tuple[int, int, str]


def rewritten(text: str, before: Scenario, after: Scenario) -> str:
    """The text of ``before`` changed so that it says what ``after`` does. Raises BadScenario if it cannot be."""
    top = yaml.compose(text, Loader=yaml.SafeLoader)
    wanted = yaml.safe_load(text)
    edits: list[_Edit] = []
    if before.policy != after.policy:
        policy = after.policy
        said = (
            {"name": policy.name, "window": after.in_unit(policy.window_ns)}
            if isinstance(policy, Fair)
            else policy.name
        )
        wanted["policy"] = said
        edits.append(_set(text, top, "policy", said, beside=None))
    clients = next(value for key, value in top.value if key.value == "clients")
    for number, (old, new) in enumerate(zip(before.clients, after.clients, strict=True)):
        changes: dict[str, Any] = {}
        if old.priority != new.priority:
            changes["priority"] = new.priority.name.lower()
        if old.depth != new.depth:
            changes["depth"] = new.depth
        for key, value in changes.items():
            wanted["clients"][number][key] = value
            edits.append(_set(text, clients.value[number], key, value, beside="name"))
    for start, end, words in sorted(edits, key=lambda edit: edit[0], reverse=True):
        text = text[:start] + words + text[end:]
    try:
        written = yaml.safe_load(text)
    except yaml.YAMLError:
        written = None
    if written != wanted:
        raise BadScenario(f"{before.name}: its file is written in a way that cannot be changed; do it by hand")
    return text


def _set(text: str, mapping: Any, key: str, value: Any, *, beside: str | None) -> _Edit:
    """Change a key's value, or add the key: on a line after ``beside``, or before all others."""
    first = mapping.value[0][0]
    quoted = first.style == '"'  # as in JSON
    words = json.dumps(value) if quoted else _plain(value)
    for name, held in mapping.value:
        if name.value == key:
            start = held.start_mark.index
            # What stands in lines of its own ends where the next thing begins.
            return start, start + len(text[start : held.end_mark.index].rstrip()), words
    entry = f"{json.dumps(key) if quoted else key}: {words}"
    if mapping.flow_style:
        end = mapping.value[-1][1].end_mark.index
        return end, end, f", {entry}"
    indent = " " * first.start_mark.column
    held = next((value for name, value in mapping.value if name.value == beside), None)
    if held is None:
        return first.start_mark.index, first.start_mark.index, f"{entry}\n{indent}"
    line_end = text.find("\n", held.end_mark.index)
    end = len(text) if line_end < 0 else line_end
    return end, end, f"\n{indent}{entry}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return str(value)
