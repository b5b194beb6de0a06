"""The profile viewer: logs, a schematic and switches in; text and files out. Nothing is written here."""

from __future__ import annotations

import csv
import difflib
import enum
import gzip
import io
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any

import msgspec

from openhtp.config.keys import Key, Section
from openhtp.config.reading import check_section, load_json
from openhtp.core.checks import shown
from openhtp.core.errors import BadProfile
from openhtp.core.foreign_text import printable, to_json
from openhtp.core.validating import PointerPlace
from openhtp.core.value_kinds import Flag
from openhtp.records.profile import Message, ProfileLogContent
from openhtp.records.schematic import FIRST_NODE, QnnOp, Schematic
from openhtp.report.linting import CRITICAL_PATH, lint_to_chrome
from openhtp.report.listing import COLUMNS, EXECUTED, aggregated, csv_rows, log_to_json, log_to_text
from openhtp.report.netron import schematic_to_netron
from openhtp.report.optrace import TraceOptions, optrace_to_chrome, runs_to_runtrace
from openhtp.report.profile_log import (
    check_schematic,
    preparation_digest,
    read_log,
    read_schematic,
    schematic_digest,
)
from openhtp.report.qhas import qhas_schema, qhas_to_html, schematic_to_qhas


class LogReader(enum.Enum):
    """How a log is read; the value is what the vendor's library for it has in its name."""

    DEFAULT = ""
    HTP = "QnnHtpProfilingReader"
    CHROMETRACE = "QnnChrometraceProfilingReader"
    JSON = "QnnJsonProfilingReader"
    OPTRACE = "QnnHtpOptraceProfilingReader"

    @classmethod
    def parse(cls, name: str) -> LogReader:
        """By its short name, or by the name or path of the vendor's library."""
        word = PurePath(name.replace("\\", "/")).name.removeprefix("lib").removesuffix(".so").removesuffix(".dll")
        for reader in cls:
            if word.lower() in (reader.name.lower(), reader.value.lower()):
                return reader
        names = ", ".join(reader.name.lower() for reader in cls)
        libraries = ", ".join(reader.value for reader in cls if reader.value)
        raise BadProfile(f"reader {shown(name)} is unknown; expected {names}, or a library: {libraries}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFeatures(TraceOptions):
    """The switches of the configuration file, by the vendor's names, with its defaults."""

    htp_json: bool = True
    qhas_schema: bool = False
    qhas_json: bool = False
    gzip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRequest:
    """The request to the viewer. ``output`` is where the first file goes; the others stand beside it."""

    logs: tuple[Path, ...]
    reader: LogReader = LogReader.DEFAULT
    output: Path | None = None
    schematic: Path | None = None
    zoom: tuple[str, str] | None = None
    features: ReaderFeatures = field(default_factory=ReaderFeatures)
    gzip: bool = False
    standardized: bool = False
    extract: bool = False


@dataclass(slots=True)
class ViewedLog:
    """The text to show, and the files to write, by path."""

    text: str = ""
    files: dict[Path, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def view(request: ViewRequest) -> ViewedLog:
    """Read everything and make everything; raises BadProfile before anything was written."""
    result = ViewedLog()
    log = _joined([read_log(_log_at(path, result)) for path in request.logs])
    where = ", ".join(map(str, request.logs))
    optrace = request.reader is LogReader.OPTRACE
    for option, value in (("--schematic", request.schematic), ("--zoom_start and --zoom_end", request.zoom)):
        if value is not None and not optrace:
            raise BadProfile(f"{option} only with the optrace reader; the reader is {request.reader.name.lower()}")
    if optrace:
        _view_optrace(request, log, result)
    elif request.reader is LogReader.CHROMETRACE:
        _view_linting(request, log, where, result)
    else:
        _view_listing(request, log, where, result)
    if request.extract:
        _extract(request, log, result)
    return result


def _log_at(path: Path, result: ViewedLog) -> Path:
    """The log; tools number theirs from 0, except those with op traces."""
    stem = path.stem.removesuffix("_0") if path.stem.endswith("_0") else f"{path.stem}_0"
    other = path.with_name(f"{stem}{path.suffix}")
    if path.exists() or not other.exists():
        return path
    result.notes.append(f"there is no {path}: this is {other.name} beside it")
    return other


def _joined(logs: Sequence[ProfileLogContent]) -> ProfileLogContent:
    """Several logs as one; they must be of one chip, or averages would mean nothing."""
    socs = sorted({log.soc for log in logs if log.soc})
    if len(socs) > 1:
        raise BadProfile(f"the logs are of {' and '.join(socs)}; compare two chips with openhtp profile-diff")
    messages = tuple(message for log in logs for message in log.messages)
    traces = tuple(trace for log in logs for trace in log.traces)
    return msgspec.structs.replace(logs[0], messages=messages, traces=traces)


def _view_listing(request: ViewRequest, log: ProfileLogContent, where: str, result: ViewedLog) -> None:
    document = log_to_json(log, standardized=request.standardized)
    if request.reader is LogReader.JSON:
        if request.output is None:
            result.text = _json(document).decode()
        else:
            result.files[request.output] = _json(document)
        return
    every = request.reader is LogReader.HTP
    result.text = log_to_text(log, where, every_run=every)
    if any(message.schematic for message in log.messages):
        result.notes.append("the log has an op trace: --reader optrace --schematic <graph>_schematic.bin shows it")
    if request.output is not None:
        result.files[request.output] = _json(document) if every else _csv(log)


def _view_linting(request: ViewRequest, log: ProfileLogContent, where: str, result: ViewedLog) -> None:
    runs = [message for message in log.messages if message.method in EXECUTED]
    average = aggregated([run.events for run in runs], lambda values: sum(values) // len(values))
    critical = next((event for event in average if event.type == CRITICAL_PATH), None)
    if critical is None:
        raise BadProfile(
            f"{where} has no linting data, it was profiled at the level {log.level!r}; profile with the level"
            " linting, or use the optrace reader for an op trace"
        )
    result.text = log_to_text(log, where)
    if request.output is not None:
        trace = lint_to_chrome(critical, runs[0].graph)
        compress = request.gzip or request.features.gzip or request.output.suffix == ".gz"
        _add(result, request.output, _json(trace), compress=compress)


def _view_optrace(request: ViewRequest, log: ProfileLogContent, result: ViewedLog) -> None:
    traced = [message for message in log.messages if message.run is not None and message.schematic]
    if not traced:
        raise BadProfile(
            f"no op trace in the log, it was profiled at the level {log.level!r}: profile the runs with optrace"
        )
    if request.schematic is None:
        graph = traced[0].graph
        raise BadProfile(f"the op trace needs --schematic: the file {graph}_schematic.bin that came with the log")
    whole, own = _traced_as(read_schematic(request.schematic), log, traced, str(request.schematic), result)
    schematic = whole if request.zoom is None else zoomed(whole, *request.zoom)
    qhas = schematic_to_qhas(schematic, [run for run in (m.run for m in own) if run is not None])
    result.text = _summary(qhas)
    if request.output is not None:
        _add_optrace_files(request, schematic, own, qhas, result)


def _traced_as(
    prepared: Schematic, log: ProfileLogContent, traced: Sequence[Message], where: str, result: ViewedLog
) -> tuple[Schematic, list[Message]]:
    """What was prepared, as its runs went, and those runs; of several clocks, those of most runs."""
    digest, preparation = schematic_digest(prepared), preparation_digest(prepared)
    own = [message for message in traced if message.schematic == digest or message.preparation == preparation]
    if not own:
        graphs = ", ".join(sorted({message.graph for message in traced}))
        raise BadProfile(
            f"{where} is of another preparation of {prepared.graph!r}; the log has runs of {graphs} with"
            " schematics of their own"
        )
    counts = Counter(message.schematic for message in own)
    (most, count), *_ = counts.most_common(1)
    if count < len(own):
        left = len(own) - count
        result.notes.append(
            f"{left} of {len(own)} runs had other clocks and are not shown; openhtp profile-diff compares"
        )
    timed = next((trace for trace in log.traces if trace.schematic == most), None)
    if timed is None and most != digest:
        raise BadProfile(
            f"the log has no op trace of its runs of {prepared.graph!r}: profile them again with optrace"
        )
    whole = prepared if timed is None else timed.applied_to(prepared)
    check_schematic(whole, "the op trace of the log")
    return whole, [message for message in own if message.schematic == most]


def _add_optrace_files(
    request: ViewRequest, schematic: Schematic, own: Sequence[Message], qhas: dict[str, Any], result: ViewedLog
) -> None:
    assert request.output is not None
    features = request.features
    runs = [message.run for message in own if message.run is not None]
    shown = max(own, key=lambda message: len(message.run.pauses) if message.run is not None else 0)
    trace = optrace_to_chrome(schematic, shown.run, shown.steps, features)
    compress = request.gzip or features.gzip or request.output.suffix == ".gz"
    _add(result, request.output, _json(trace), compress=compress)
    stem = request.output.with_suffix("") if request.output.suffix == ".gz" else request.output
    stem = stem.with_suffix("") if stem.suffix == ".json" else stem

    def beside(ending: str) -> Path:
        return stem.with_name(stem.name + ending)

    if features.htp_json:
        result.files[beside("_htp.json")] = _json(schematic_to_netron(schematic))
    if features.runtrace:
        result.files[beside("_runtrace.json")] = _json(runs_to_runtrace(schematic, runs))
    result.files[beside("_qnn_htp_analysis_summary.html")] = qhas_to_html(qhas, schematic).encode()
    if features.qhas_json:
        result.files[beside("_qnn_htp_analysis_summary.json")] = _json(qhas)
    if features.qhas_schema:
        result.files[stem.with_name("qhas_schema.json")] = _json(qhas_schema())


def _summary(qhas: dict[str, Any]) -> str:
    """The overall figures of each core, and the nodes that decide the time."""
    lines = []
    for row in qhas["data"]["htp_overall_summary"]["data"]:
        lines.append(f"HTP {row['htp']} of {qhas['source']['soc']} (modelled, but for measured_us)")
        lines += [
            f"   {key}: {value:.1f}" if isinstance(value, float) else f"   {key}: {value}"
            for key, value in row.items()
            if key not in ("htp", "htp_resources")
        ]
        share = f"percent_dominant_path_cycles_htp_{row['htp']}"
        nodes = sorted(qhas["data"]["qnn_op_instances_nodes"]["data"], key=lambda node: -node[share])[:10]
        lines.append("   nodes that have the most say:")
        lines += [f"      {node[share]:5.1f} %  {node['qnn_op']} ({node['qnn_op_type']})" for node in nodes]
    return "\n".join(map(printable, lines)) + "\n"


def _extract(request: ViewRequest, log: ProfileLogContent, result: ViewedLog) -> None:
    """The times of each run, which a log holds beside events: one file for each."""
    folder = (request.output or request.logs[0]).parent
    runs = [message.run for message in log.messages if message.run is not None]
    for number, run in enumerate(runs):
        name = f"{request.logs[0].stem}_object_{number}.msgpack"
        result.files[folder / name] = msgspec.msgpack.encode(run)


def _add(result: ViewedLog, path: Path, data: bytes, *, compress: bool) -> None:
    if not compress:
        result.files[path] = data
        return
    target = path if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    result.files[target] = gzip.compress(data, mtime=0)


def _csv(log: ProfileLogContent) -> bytes:
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    for message in log.messages:
        rows.writerows(csv_rows(message.events, message.stamp_us))
    return text.getvalue().encode()


def _json(document: dict[str, Any]) -> bytes:
    return msgspec.json.format(to_json(document), indent=1)


# The configuration file.

_SWITCHES = tuple(Key(name=field.name, kind=Flag("true or false"), about="") for field in fields(ReaderFeatures))
_CONFIGURATION = Section(
    name="", about="", keys=(), sections=(Section(name="features", about="Switches.", keys=_SWITCHES),)
)


def read_features(path: str | os.PathLike[str]) -> ReaderFeatures:
    """The switches in a file: ``{"features": {"qhas_json": true}}``. Raises BadProfile with the offending key."""
    document = load_json(path, what="the viewer's configuration", error=BadProfile)
    values = check_section(document, _CONFIGURATION, PointerPlace(str(path), error=BadProfile))
    return ReaderFeatures(**values.get("features", {}))


# The part of a graph between two of its nodes.


_LONGEST = 200


def zoomed(schematic: Schematic, start: str, end: str) -> Schematic:
    """The nodes on the ways from one node to another, both included; names are the graph's or the model's.

    Raises:
        BadProfile: a name is no node of the graph, or no way leads from the first to the second.
    """
    first, last = _find(schematic, "zoom_start", start), _find(schematic, "zoom_end", end)
    after, before = _links(schematic)
    between = _reach(first, after) & _reach(last, before)
    if not between:
        raise BadProfile(
            f"zoom_end {end!r} does not depend on zoom_start {start!r} in graph {schematic.graph!r};"
            " give them in the order in which data flows"
        )
    ops = tuple(op for op in schematic.ops if op.owner in between)
    running = [op for op in ops if op.executed]
    begin, finish = min((op.start for op in running), default=0), max((op.end for op in running), default=0)
    return msgspec.structs.replace(
        schematic,
        nodes=tuple(n for n in schematic.nodes if n.number < FIRST_NODE or {n.number, n.into} & between),
        ops=ops,
        regions=tuple(region for region in schematic.regions if region.start < finish and region.end > begin),
    )


def _find(schematic: Schematic, option: str, name: str) -> set[int]:
    """Numbers of the nodes that compute the node of this name: several if it was expanded."""
    nodes = [node for node in schematic.nodes if node.number >= FIRST_NODE]
    for node in nodes:
        if node.name == name:
            return {_home(node)}
    parts = {_home(node) for node in nodes if name in node.framework}
    if parts:
        return parts
    known = dict.fromkeys(each for node in nodes for each in (node.name, *node.framework))
    near = difflib.get_close_matches(name[:_LONGEST], known, 3, 0.4)
    hint = f"; near it: {', '.join(map(repr, near))}" if near else ""
    raise BadProfile(
        f"{option} is {name[:_LONGEST]!r}; graph {schematic.graph!r} has no node of that name among its"
        f" {len(nodes)}{hint}"
    )


def _home(node: QnnOp) -> int:
    return node.number if node.into is None else node.into


def _links(schematic: Schematic) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For each node those that read its results, and those whose results it reads."""
    after: dict[int, set[int]] = defaultdict(set)
    before: dict[int, set[int]] = defaultdict(set)
    owners = {op.id: op.owner for op in schematic.ops}
    for op in schematic.ops:
        for maker in op.inputs:
            if maker in owners:
                after[owners[maker]].add(op.owner)
                before[op.owner].add(owners[maker])
    return after, before


def _reach(begin: set[int], links: dict[int, set[int]]) -> set[int]:
    reached, pending = set(begin), list(begin)
    while pending:
        new = links[pending.pop()] - reached
        reached |= new
        pending += new
    return reached
