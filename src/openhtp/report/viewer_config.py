"""What the viewer is told beside its options: readers by name, and the switches of its configuration file."""

from __future__ import annotations

import difflib
import enum
import json
import os
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

from openhtp.core.checks import shown
from openhtp.core.errors import BadProfile
from openhtp.core.files import read_file
from openhtp.core.units import MIB
from openhtp.report.optrace import TraceOptions


class Reader(enum.Enum):
    """How a log is read; the value is what the vendor's library for it has in its name."""

    DEFAULT = ""
    HTP = "QnnHtpProfilingReader"
    CHROMETRACE = "QnnChrometraceProfilingReader"
    JSON = "QnnJsonProfilingReader"
    OPTRACE = "QnnHtpOptraceProfilingReader"

    @classmethod
    def parse(cls, given: str) -> Reader:
        """By its short name, or by the name or path of the vendor's library."""
        word = PurePath(given.replace("\\", "/")).name.removeprefix("lib").removesuffix(".so").removesuffix(".dll")
        for reader in cls:
            if word.lower() in (reader.name.lower(), reader.value.lower()):
                return reader
        names = ", ".join(reader.name.lower() for reader in cls)
        libraries = ", ".join(reader.value for reader in cls if reader.value)
        raise BadProfile(f"reader {shown(given)} is unknown; expected {names}, or a library: {libraries}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The switches of the configuration file, by the vendor's names, with its defaults."""

    enable_input_output_flow_events: bool = False
    enable_sequencer_flow_events: bool = False
    htp_json: bool = True
    runtrace: bool = True
    memory_info: bool = True
    traceback: bool = True
    qhas_schema: bool = False
    qhas_json: bool = False
    gzip: bool = False

    @property
    def trace(self) -> TraceOptions:
        """What of it concerns the trace."""
        return TraceOptions(
            input_output_flows=self.enable_input_output_flow_events,
            sequencer_flows=self.enable_sequencer_flow_events,
            runtrace=self.runtrace,
            memory=self.memory_info,
            traceback=self.traceback,
        )


def read_features(path: str | os.PathLike[str]) -> Features:
    """The switches in a file: ``{"features": {"qhas_json": true}}``. Raises BadProfile with the offending key."""
    data = read_file(path, most=MIB, what="the viewer's configuration", error=BadProfile)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise BadProfile(f"{path}: no JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise BadProfile(f'{path}: {shown(found)}; expected an object {{"features": {{...}}}}')
    _refuse_unknown(path, "", found, ["features"])
    switches = found.get("features", {})
    if not isinstance(switches, dict):
        raise BadProfile(f"{path}: /features is {shown(switches)}; expected an object of switches")
    names = [field.name for field in fields(Features)]
    _refuse_unknown(path, "/features", switches, names)
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise BadProfile(f"{path}: /features/{name} is {shown(value)}; expected true or false")
    return Features(**switches)


def _refuse_unknown(path: object, where: str, found: dict[str, Any], names: list[str]) -> None:
    for key in found:
        if key not in names:
            everything = [*names, *(field.name for field in fields(Features))]
            near = difflib.get_close_matches(key[:100], everything, 1)
            place = "within features" if near and near[0] not in names else "there"
            hint = f"; did you mean {near[0]!r} ({place})?" if near else ""
            raise BadProfile(f"{path}: {where}/{key[:100]} is unknown; expected {', '.join(names)}{hint}")
