"""The configuration of ``qnn-throughput-net-run``: backends, models, contexts, and threads that use them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.config import Key, Section
from openhtp.config.reading import check_section, parse_json, refuse
from openhtp.core.errors import InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.value_kinds import Numeral
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.options import Choice, Flag, Text, Whole

_MOST_BYTES = 16 << 20
_MOST = 1 << 31
_PATH, _NAME = Text("a path"), Text("a name")
_FORMS = ("NATIVE_ONLY", "FLOAT_ONLY", "FLOAT_AND_NATIVE")
POST_PROCESSORS = ("NONE", "MSE", "MSE_FLOAT32", "MSE_INT8", "MSE_INT16")


def _keys(*rows: tuple[str, Any, str]) -> tuple[Key, ...]:
    return tuple(Key(name=name, kind=kind, about=about) for name, kind, about in rows)


_BACKENDS = _keys(
    ("backendName", _NAME, "Unique. Required."),
    ("backendPath", _PATH, "A libQnnHtp.so; by name alone the emulator. Required."),
    ("profilingLevel", Choice(("OFF", "BASIC", "DETAILED")), "What executions are profiled with."),
    ("backendExtensions", _PATH, "Not needed here."),
    ("perfProfile", Choice(("default", *PERF_PROFILES)), "Votes."),
    ("opPackagePath", Text("path:provider"), "Refused."),
    ("platformOption", Text("key:value"), "No effect."),
)
_MODELS = _keys(
    ("modelName", _NAME, "Unique. Required."),
    ("modelPath", _PATH, "ONNX file, zoo:NAME or context binary. Required."),
    ("loadFromCachedBinary", Flag(), "Whether it is a context binary."),
    ("inputPath", _PATH, "Input lists of the graphs, with commas; random data without."),
    ("inputDataType", Choice(("NATIVE", "FLOAT")), "Types of raw inputs."),
    ("postProcessor", Text("one for each graph"), f"Of {', '.join(POST_PROCESSORS)}, with commas."),
    ("groundTruthPath", _PATH, "Lists of what outputs should be, with commas."),
    ("outputPath", _PATH, "Folder for outputs."),
    ("outputDataType", Choice(_FORMS), "Types of raw outputs."),
    ("saveOutput", Choice(("NONE", "NATIVE_LAST", "NATIVE_ALL")), "Which outputs are written."),
)
_CONTEXTS = _keys(
    ("contextName", _NAME, "Unique. Required."),
    ("priority", Choice(("DEFAULT", "LOW", "NORMAL", "NORMAL_HIGH", "HIGH")), "Priority of its graphs."),
    ("executeAsyncQueueDepth", Whole(1, 300), "Depth of the queue."),
    ("cacheCompatibilityMode", Choice(("permissive", "strict")), "Which binaries do."),
)
_THREADS = _keys(
    ("threadName", _NAME, "Unique. Required."),
    ("backend", _NAME, "Required."),
    ("context", _NAME, "Required."),
    ("model", _NAME, "Required."),
    ("initModelInLoop", Flag(), "Make the model ready anew in each round; not from a binary."),
    ("loadInputDataInLoop", Flag(), "Read the inputs anew in each round."),
    ("useRandomData", Flag(), "Random inputs."),
    ("interval", Whole(0, _MOST, "microseconds"), "Between executions."),
    ("loopUnit", Choice(("count", "second")), "What loop counts."),
    ("loop", Whole(1, _MOST), "Rounds."),
    ("executeAsynchronous", Flag(), "Queue executions."),
    ("backendConfig", _PATH, "The HTP's own config file."),
)
_FILE = Section(
    name="",
    about="",
    keys=(),
    sections=(
        Section(name="backends", about="Libraries.", keys=_BACKENDS, is_list=True),
        Section(name="models", about="Models.", keys=_MODELS, is_list=True),
        Section(name="contexts", about="Settings of contexts.", keys=_CONTEXTS, is_list=True),
        Section(
            name="testCase",
            about="What is run.",
            keys=_keys(
                ("iteration", Numeral(-_MOST, _MOST), "Times; below 0 until interrupted. Required."),
                ("logLevel", Choice(("error", "warn", "info", "debug", "verbose")), "Log."),
            ),
            sections=(Section(name="threads", about="Side by side.", keys=_THREADS, is_list=True),),
        ),
    ),
)
_NAMES = {"backends": "backendName", "models": "modelName", "contexts": "contextName"}
_REQUIRED = {
    "backends": ("backendName", "backendPath"),
    "models": ("modelName", "modelPath"),
    "contexts": ("contextName",),
}

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCase:
    """A checked file: entries by name, and the threads that use them."""

    source: Path
    backends: Mapping[str, Entry]
    models: Mapping[str, Entry]
    contexts: Mapping[str, Entry]
    threads: Sequence[Entry]
    iterations: int | None
    log_level: str | None


def read_test_case(path: Path) -> TestCase:
    """Read a configuration; what is wrong is named by its place."""
    data = read_file(path, most=_MOST_BYTES, what="a configuration of threads", error=InvalidArgument)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(str(path), "", f"byte {error.start} is no UTF-8; expected JSON")
    found = check_section(parse_json(text, str(path)), _FILE, str(path))
    named = {part: _named(path, part, found) for part in _NAMES}
    case = found.get("testCase") or {}
    threads = case.get("threads") or []
    if "iteration" not in case or not threads:
        refuse(str(path), "/testCase", "needs iteration and threads")
    for place, thread in enumerate(threads):
        _check_thread(path, f"/testCase/threads/{place}", thread, named)
    names = [thread["threadName"] for thread in threads]
    if len(set(names)) != len(names):
        refuse(str(path), "/testCase/threads", f"have names that come twice: {', '.join(names)}")
    return TestCase(
        source=path,
        backends=named["backends"],
        models=named["models"],
        contexts=named["contexts"],
        threads=threads,
        iterations=case["iteration"] if case["iteration"] >= 0 else None,
        log_level=case.get("logLevel"),
    )


def _named(path: Path, part: str, found: Entry) -> dict[str, Entry]:
    entries = found.get(part)
    if not entries:
        refuse(str(path), f"/{part}", "is missing; expected a list of at least one")
    named: dict[str, Entry] = {}
    for place, entry in enumerate(entries):
        for key in _REQUIRED[part]:
            if key not in entry:
                refuse(str(path), f"/{part}/{place}", f"has no {key}, which is required")
        name = entry[_NAMES[part]]
        if name in named:
            refuse(str(path), f"/{part}/{place}/{_NAMES[part]}", f"is {name!r}, which comes twice")
        named[name] = entry
    return named


def _check_thread(path: Path, place: str, thread: Entry, named: Mapping[str, Mapping[str, Entry]]) -> None:
    for key in ("threadName", "backend", "context", "model"):
        if key not in thread:
            refuse(str(path), place, f"has no {key}, which is required")
    for part, key in (("backends", "backend"), ("contexts", "context"), ("models", "model")):
        if thread[key] not in named[part]:
            near = difflib.get_close_matches(thread[key], named[part], 1) or list(named[part])
            refuse(
                str(path),
                f"{place}/{key}",
                f"is {thread[key]!r}, which /{part} has not; did you mean {near[0]!r}?",
            )
    if thread.get("initModelInLoop") and named["models"][thread["model"]].get("loadFromCachedBinary"):
        refuse(str(path), f"{place}/initModelInLoop", "does not go with a model from a context binary")
