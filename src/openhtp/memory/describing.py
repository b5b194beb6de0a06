"""Contexts in words, for plans of what is not built yet: ``llm=1.5GB,io=60MB``, or a mapping from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openhtp.core.checks import real_number, shown
from openhtp.core.errors import InvalidArgument
from openhtp.core.units import GIB, KIB, MIB
from openhtp.memory.needs import ContextNeeds, GraphNeeds
from openhtp.memory.planning import ContextPlan

_UNITS = {"": 1, "b": 1, "kb": KIB, "kib": KIB, "mb": MIB, "mib": MIB, "gb": GIB, "gib": GIB}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_MOST = 1 << 44
_GRAPH_KEYS = ("name", "size", "spill_fill", "backup", "io")
_CONTEXT_KEYS = (
    *(*_GRAPH_KEYS, "graphs", "shared", "group", "concurrent"),
    *("io_memory_estimation", "switching", "retained"),
)


def size_in_bytes(given: object, what: str) -> int:
    """``1.5GB``, or a number of bytes. Units are powers of 1024, as in the documents."""
    number = real_number(given)
    if isinstance(given, str):
        found = _SIZE.fullmatch(given)
        unit = _UNITS.get(found[2].lower()) if found else None
        number = float(found[1]) * unit if found and unit else None
    if number is None or not 0 <= number <= _MOST:
        raise InvalidArgument(f"{what} is {shown(given)}; expected a size like 1.5GB, 250MB or 4096")
    return round(number)


def context_from_words(text: str) -> ContextPlan:
    """``name=size``, and then, with commas, ``io=size``, ``spill_fill=size`` and ``backup=size``."""
    name, _, rest = text.partition("=")
    size, *more = rest.split(",")
    fields: dict[str, Any] = {"name": name.strip(), "size": size}
    for item in more:
        key, _, value = item.partition("=")
        fields[key.strip()] = value
    unknown = [key for key in fields if key not in _GRAPH_KEYS]
    if not fields["name"] or not size.strip() or unknown:
        raise InvalidArgument(
            f"context {shown(text)}; expected name=size, and io=, spill_fill= or backup=size after commas, as in"
            " llm=1.5GB,io=60MB"
        )
    return context_from_mapping(fields)


def context_from_mapping(given: object) -> ContextPlan:
    """A context as a file has it: a size, or the sizes of its graphs, and how it is loaded."""
    fields = _checked(given, _CONTEXT_KEYS, "a context")
    name = str(fields["name"])
    listed = fields.get("graphs")
    graphs: tuple[GraphNeeds, ...]
    if listed is None:
        graphs = (_graph({key: value for key, value in fields.items() if key in _GRAPH_KEYS}),)
    elif isinstance(listed, list) and listed:
        beside = [key for key in _GRAPH_KEYS[1:] if key in fields]
        if beside:
            raise InvalidArgument(f"context {name!r} has {beside[0]} beside its graphs; give it to each of them")
        graphs = tuple(map(_graph, listed))
    else:
        raise InvalidArgument(f"context {name!r} has graphs {shown(listed)}; expected a list of them")
    needs = ContextNeeds(graphs=graphs, shared_bytes=size_in_bytes(fields.get("shared", 0), f"shared of {name!r}"))
    retained = fields.get("retained", [])
    names = [graph.name for graph in graphs]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"context {name!r} has two graphs of one name among {', '.join(names)}")
    if not isinstance(retained, list) or any(graph not in names for graph in retained):
        raise InvalidArgument(f"context {name!r} retains {shown(retained)}; expected a list of {', '.join(names)}")
    group = fields.get("group")
    return ContextPlan(
        name=name,
        needs=needs,
        io_estimation=_flag(fields, "io_memory_estimation"),
        switching=_flag(fields, "switching") or bool(retained),
        retained=tuple(retained),
        group=None if group is None else str(group),
        concurrent=_flag(fields, "concurrent"),
    )


def _flag(fields: dict[str, Any], key: str) -> bool:
    given = fields.get(key, False)
    if not isinstance(given, bool):
        raise InvalidArgument(f"{key} of {fields['name']!r} is {shown(given)}; expected true or false")
    return given


def contexts_from_document(document: object) -> list[ContextPlan]:
    """All contexts of a file: ``contexts:`` and a list of them."""
    listed = document.get("contexts") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise InvalidArgument(
            "a file of contexts begins with `contexts:` and a list of them, each with name and size"
        )
    return [context_from_mapping(item) for item in listed]


def _graph(given: object) -> GraphNeeds:
    fields = _checked(given, _GRAPH_KEYS, "a graph")
    name = str(fields["name"])
    return GraphNeeds(
        name=name,
        own_bytes=size_in_bytes(fields.get("size"), f"size of {name!r}"),
        spill_fill_bytes=size_in_bytes(fields.get("spill_fill", 0), f"spill_fill of {name!r}"),
        backup_bytes=size_in_bytes(fields.get("backup", 0), f"backup of {name!r}"),
        io_bytes=size_in_bytes(fields.get("io", 0), f"io of {name!r}"),
    )


def _checked(given: object, known: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not given.get("name"):
        raise InvalidArgument(f"{what} is {shown(given)}; expected a mapping with a name")
    for key in given:
        if key not in known:
            raise InvalidArgument(f"{what} {given['name']!r} has {shown(key)}; expected one of {', '.join(known)}")
    return dict(given)
