"""Writes the scenario format as a JSON schema, so that editors complete keys and mark mistakes while one types.

Made from the tables that the reader checks by (``openhtp/planning/keys.py``); ``make docs`` writes it to
``scenario.schema.json``, which is part of the package. A schema cannot say everything: the reader says whether a
client exists, fits the device or ends. ``--check`` only says whether the file is up to date.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from openhtp.core.enumerations import Priority
from openhtp.core.units import TIME_UNITS
from openhtp.core.validating import MAX_TEXT
from openhtp.cost.llm import PRESETS
from openhtp.hw.catalog import catalog
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.hw.soc import PLATFORMS
from openhtp.planning import keys
from openhtp.planning.keys import DIM, FROZEN, MAX_CLIENTS, RANGES, TIME, NumberRange
from openhtp.planning.scenario import UNITS
from openhtp.planning.schema import PATH
from openhtp.planning.voting import CORNERS, HMX_CORNERS

_Schema = dict[str, Any]
_WITH_UNIT = rf"^\s*[0-9][0-9.eE+-]*(\s*/\s*[0-9][0-9.]*)?\s*({'|'.join(TIME_UNITS)})?\s*$"
_WIDTH = 115
# The reader takes a number as a name too: what YAML makes of `name: 7`.
_NAME: _Schema = {"type": ["string", "number"], "minLength": 1, "maxLength": MAX_TEXT}

_WORDS = {
    "name": "What it is called.",
    "unit": "The unit of all times in this file; us unless given.",
    "device": "The chip: a SoC by name, or its sizes.",
    "clients": "The graphs and applications that share the device.",
    "events": "When which client asks for a run.",
    "policy": "Who runs first; strict, the chip's way, unless given.",
    "duration": "Sources stop here; what was asked for until then is finished.",
    "soc": "A SoC by name, marketing name or model number.",
    "hvx": "HVX threads.",
    "hmx": "HMX units.",
    "vtcm_mb": "VTCM in MiB.",
    "vtcm_bytes": "VTCM in bytes, instead of vtcm_mb.",
    "cores": "Cores of the NPU, each with these sizes.",
    "dma_gbs": "How fast VTCM is saved and restored.",
    "eviction": "From the request to yield to the release; modelled unless given.",
    "sharing": "Whether several clients may hold the device at once (v73 and later).",
    "windowing": "Whether clients of different process domains may share VTCM (some chips from v79 on).",
    "parallel_graphs": "Whether two graphs of equal priority may run side by side.",
    "platform": "With windows all priorities have equal standing.",
    "perf_profile": "Votes on clocks, which models' times follow; the highest wins. A client's rise and fall.",
    "votes": "Votes on clocks that always stand, instead of a perf_profile: corners by name.",
    "kind": "A graph takes 1 HMX and, unless given, all HVX and VTCM; an app takes 1 HVX unless given.",
    "priority": "How urgent it is; normal unless given.",
    "page_mb": "Size of the VTCM page, where it is not the whole VTCM.",
    "core": "The core it runs on, from 0.",
    "pd": "Its process domain; 1 unless given.",
    "deadline": "From the request; a missed one is counted.",
    "depth": "Its queue: what does not fit waits outside, in order.",
    "tensors": "Raw ones gain nothing from a queue: executions are planned one at a time.",
    "profiling": "Above basic, a queue gains nothing: executions are planned one at a time.",
    "steps": "Yield points of one run.",
    "timeout": "From the request; ends the run.",
    "run": "How long one run takes.",
    "size_mb": "What the graph takes when it is loaded, where graphs are switched.",
    "load": "How long loading it takes, where graphs are switched; from size_mb and dma_gbs unless given.",
    "switching": "Contexts whose graphs are loaded when they run, and unloaded for others.",
    "graphs": "Clients that are the graphs of such a context.",
    "retained": "Those that stay loaded while there is room, the most important first.",
    "room_mb": "Room for all of them together; 3840 unless given, what a process domain has.",
    "model": "Instead of run: an ONNX file beside the scenario, or one like zoo:resnet50; its time is modelled.",
    "precision": "What the model is timed as.",
    "dims": "Sizes that the model's file leaves open, by name.",
    "freeze": "Inputs of the model that are constants, by name.",
    "llm": "A language model: each request is a prompt, read in chunks, and tokens, written one by one. Modelled.",
    "preset": "A known model by name.",
    "layers": "Layers of the model.",
    "hidden": "Width of the model.",
    "heads": "Attention heads.",
    "kv_heads": "Heads of the KV cache.",
    "head_dim": "Elements of a head.",
    "ffn": "Width of the feed-forward part.",
    "vocab": "Tokens that there are.",
    "context": "Tokens of the KV cache; 4096 unless given.",
    "prompt": "Tokens that are read; 128 unless given.",
    "generate": "Tokens that are written; 64 unless given.",
    "chunk": "Tokens of a pass over the prompt, 128 unless given; auto: what the deadlines of others allow.",
    "parts": "Pieces that a pass is split into; 1 unless given or chosen by chunk: auto.",
    "bus": "The bus to memory.",
    "client": "Whose run it is.",
    "at": "At this time, or these times.",
    "every": "Periodically.",
    "burst": "Several at once.",
    "poisson": "At random with this mean gap.",
    "closed": "Always so many under way, each followed by think time.",
    "after": "When a run of that client ends.",
    "from": "The first time.",
    "until": "No requests from this time on.",
    "count": "So many requests and no more.",
    "seed": "Makes random times repeatable.",
    "think": "Between the end of a run and the next request, with closed.",
    "delay": "Between the end of the other's run and the request, with after.",
    "window": "Head start of one priority level under fair.",
}


def schema() -> _Schema:
    """The schema as a value that can be written as JSON."""
    policy = _mapping(keys.POLICY, required=("name",), name={"enum": list(keys.POLICIES)})
    top = _mapping(
        keys.TOP,
        required=("device", "clients", "events"),
        unit={"enum": list(UNITS)},
        device=_mapping(keys.DEVICE, anyOf=[{"required": [key]} for key in ("soc", "vtcm_mb", "vtcm_bytes")]),
        clients={
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CLIENTS,
            "items": _mapping(keys.CLIENT, required=("name",), llm=_llm(), votes=_votes()),
        },
        events={"type": "array", "items": _mapping(keys.EVENT, required=("client",), anyOf=_one_pattern())},
        switching={"type": "array", "items": _mapping(keys.SWITCHING, required=("graphs",))},
        policy={"anyOf": [{"enum": list(keys.POLICIES)}, policy]},
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "OpenHTP scenario",
        "description": "Clients that share one NPU, for `openhtp plan` and `openhtp run-scenario`.",
        **top,
    }


def _votes() -> _Schema:
    known = {"core": CORNERS, "bus": CORNERS, "hmx": HMX_CORNERS}
    corners: dict[str, Any] = {
        clock: {"description": f"Voltage corner of the {clock}'s clock.", "enum": list(names)}
        for clock, names in known.items()
    }
    return _mapping(keys.VOTES, **corners, minProperties=1)


def _llm() -> _Schema:
    return _mapping(
        keys.LLM,
        preset={"enum": list(PRESETS)},
        precision={"enum": list(keys.LLM_PRECISIONS)},
        chunk={"anyOf": [{"const": "auto"}, _number(RANGES["chunk"])]},
    )


def _mapping(known: Iterable[str], *, required: tuple[str, ...] = (), **special: Any) -> _Schema:
    """A mapping with these keys and no others; a keyword that is a key says how that one is described."""
    known = tuple(known)
    properties = {key: {"description": _WORDS[key], **special.get(key, _value(key))} for key in known}
    rest = {key: value for key, value in special.items() if key not in known}
    schema = {"type": "object", "additionalProperties": False, "properties": properties, **rest}
    return {**schema, "required": list(required)} if required else schema


def _value(key: str) -> _Schema:
    if key == "at":
        return {"anyOf": [_number(RANGES[key]), {"type": "array", "items": _number(RANGES[key])}]}
    if key in RANGES:
        return _number(RANGES[key])
    return _OTHERS.get(key, _NAME)


def _number(bounds: NumberRange) -> _Schema:
    """Bounds of times are left to the reader, being in nanoseconds whatever the file's unit is."""
    schema: _Schema = {"type": "integer" if bounds.whole else "number"}
    if bounds.unit == TIME:
        number = {**schema, ("exclusiveMinimum" if bounds.lowest else "minimum"): 0}
        return {"anyOf": [number, {"type": "string", "pattern": _WITH_UNIT}]}
    return {**schema, "minimum": bounds.lowest, "maximum": bounds.highest}


def _one_pattern() -> list[_Schema]:
    """One word says when; only a burst may also be placed and repeated."""
    return [
        {
            "required": [word],
            "not": {
                "anyOf": [
                    {"required": [other]}
                    for other in keys.PATTERNS
                    if other != word and not (word == "burst" and other in ("at", "every"))
                ]
            },
        }
        for word in keys.PATTERNS
    ]


_FLAG: _Schema = {"type": "boolean"}
_LEVELS = [level.name.lower() for level in Priority]
_OTHERS: dict[str, _Schema] = {
    "perf_profile": {"enum": list(PERF_PROFILES)},
    "soc": {**_NAME, "examples": list(catalog())},
    "graphs": {"type": "array", "minItems": 2, "items": _NAME},
    "retained": {"type": "array", "items": _NAME},
    "sharing": _FLAG,
    "windowing": _FLAG,
    "parallel_graphs": _FLAG,
    "platform": {"enum": list(PLATFORMS)},
    "kind": {"enum": list(keys.KINDS)},
    "tensors": {"enum": list(keys.TENSORS)},
    "profiling": {"enum": list(keys.PROFILING)},
    "precision": {"enum": list(keys.PRECISIONS)},
    # The reader takes any case and hyphens too; an editor had better offer one spelling.
    "priority": {
        "anyOf": [
            {"enum": [*_LEVELS, "medium", *(f"QNN_PRIORITY_{level.upper()}" for level in _LEVELS)]},
            {"type": "integer", "minimum": 0, "maximum": int(max(Priority))},
        ]
    },
    "dims": {"type": "object", "additionalProperties": _number(DIM)},
    "freeze": {
        "type": "object",
        "additionalProperties": {
            "anyOf": [_number(FROZEN), {"type": "array", "items": _number(FROZEN)}, {"type": "boolean"}]
        },
    },
}


def text() -> str:
    """The file's text."""
    return _compact(schema()) + "\n"


def _compact(value: Any, indent: int = 0, before: int = 0) -> str:
    """JSON with one line for each part that fits into one; ``before`` characters stand in front of it."""
    flat = json.dumps(value)
    if indent + before + len(flat) <= _WIDTH or not isinstance(value, dict | list):
        return flat
    if isinstance(value, list) and all(isinstance(item, str) and " " not in item for item in value):
        margin = " " * (indent + 2)
        words = textwrap.fill(flat[1:-1], _WIDTH, initial_indent=margin, subsequent_indent=margin)
        return f"[\n{words}\n{' ' * indent}]"
    names = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    values = value.values() if isinstance(value, dict) else value
    lines = [f"{name}{_compact(item, indent + 2, len(name))}" for name, item in zip(names, values, strict=True)]
    body = ",\n".join(" " * (indent + 2) + line for line in lines)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{body}\n{' ' * indent}{closing}"


def main() -> int:
    """Write the file, or compare it."""
    if "--check" in sys.argv:
        fresh = PATH.exists() and PATH.read_text() == text()
        print("up to date" if fresh else f"out of date: {PATH.name}; run make docs")
        return not fresh
    PATH.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
