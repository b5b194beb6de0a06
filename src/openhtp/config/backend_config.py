"""A config, as the code that makes devices, contexts and graphs asks for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, overload

from openhtp.config.keys import GENERAL, HTP, Section
from openhtp.config.reading import JsonDict, check_section, load_json, parse_json, refuse
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.core.telling import warn_once
from openhtp.core.units import MIB
from openhtp.core.validating import PointerPlace
from openhtp.hw.perf_profiles import DEFAULT_PERF_PROFILE, find_perf_profile
from openhtp.options import CONTEXT, GRAPH, ContextOrigin, Table

log = logging.getLogger(__name__)

# A config is a page or two.
_MOST_BYTES = 16 * MIB

_TIMES = {
    "rpc_polling_us": "rpc_polling_time",
    "rpc_control_latency_us": "rpc_control_latency",
    "adaptive_polling_us": "adaptive_polling_time",
    "hmx_timeout_us": "hmx_timeout_us",
}


class CoreVoter(Protocol):
    """A power config, as far as perf profiles go."""

    def set_perf_profile(
        self,
        name: str,
        *,
        rpc_polling_us: int | None = None,
        rpc_control_latency_us: int | None = None,
        adaptive_polling_us: int | None = None,
        hmx_timeout_us: int | None = None,
    ) -> None:
        """Vote as a perf profile says."""


class Voter(CoreVoter, Protocol):
    """A device, as far as votes go; a perf profile of its own is for the first core."""

    def create_power_config(self, core: int = 0) -> CoreVoter:
        """An id under which to vote for a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Votes for one core. Times that are None are the profile's."""

    core_id: int = 0
    perf_profile: str = DEFAULT_PERF_PROFILE
    rpc_polling_us: int | None = None
    rpc_control_latency_us: int | None = None
    adaptive_polling_us: int | None = None
    hmx_timeout_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """What a config file says, checked. ``source`` is where it came from; the rest is by section and key."""

    source: str
    htp: Mapping[str, Any]
    general: Mapping[str, Any]

    @property
    def cores(self) -> tuple[CoreConfig, ...]:
        """Votes, core by core. A file of the backend without any votes as the documents have it by default."""
        configs = []
        for device in self.htp.get("devices", ()):
            for core in device.get("cores", ()):
                times = {name: core.get(key) for name, key in _TIMES.items()}
                profile = core.get("perf_profile", DEFAULT_PERF_PROFILE)
                configs.append(CoreConfig(core_id=core.get("core_id", 0), perf_profile=profile, **times))
        if not configs and (self.htp or "backend_extensions" in self.general):
            configs.append(CoreConfig())
        return tuple(configs)

    @property
    def perf_profile(self) -> str | None:
        """The perf profile of the first core, if the config votes."""
        return self.cores[0].perf_profile if self.cores else None

    @property
    def unmodelled(self) -> tuple[str, ...]:
        """Keys that were given for a core and change no modelled time."""
        devices = _section(HTP, "devices")
        cores = [core for device in self.htp.get("devices", ()) for core in device.get("cores", ())]
        keys = [key.name for key in _section(devices, "cores").keys if key.unmodelled]
        return tuple(name for name in keys if any(core.get(name) for core in cores))

    @property
    def profiling_level(self) -> str | None:
        """What ``--profiling_level=backend`` stands for."""
        level: str | None = self._device("profiling_level")
        return level

    @property
    def max_events(self) -> int | None:
        """Events that a profile keeps; None for all, which 0 means, too."""
        return self.general.get("profile_configs", {}).get("num_max_events") or None

    @property
    def mem_type(self) -> str | None:
        """``shared_buffer``, if inputs and outputs are to lie in shared memory."""
        value: str | None = self.htp.get("memory", {}).get("mem_type")
        return value

    @property
    def spill_fill_group_bytes(self) -> int | None:
        """One spill-fill buffer of so many bytes for all contexts; None without a group."""
        context = self.htp.get("context", {})
        value: int | None = context.get("max_spill_fill_buffer_for_group") if "group_id" in context else None
        return value

    def device_options(self) -> dict[str, Any]:
        """Options for ``Backend.create_device``. A model number comes before an architecture."""
        chips = [soc for key in ("soc_model", "soc_id", "dsp_arch") if (soc := self._device(key)) is not None]
        options = {"soc": chips[0]} if chips else {}
        return options | {
            key: value for key in ("device_id", "pd_session") if (value := self._device(key)) is not None
        }

    def context_options(self, origin: ContextOrigin | None = None) -> dict[str, Any]:
        """Options for ``Device.create_context`` and its like, by their names, if the config sets them.

        With ``origin``, only options of contexts of that origin.
        """
        options: dict[str, Any] = {}
        sections = [section for section in (*GENERAL.sections, *HTP.sections) if section.name in _OF_CONTEXTS]
        for section in sections:
            entries = self.general.get(section.name) or self.htp.get(section.name) or {}
            _add_options(options, section, entries, CONTEXT)
        return {
            name: value
            for name, value in options.items()
            if origin is None or not (origins := CONTEXT.option(name).origins) or origin in origins
        }

    def graph_options(self, graph: str) -> dict[str, Any]:
        """Options for ``Context.create_graph``, from all entries that name this graph; later entries win.

        A config that has options for graphs of other names only is most likely a mistake, and said to the log.
        """
        options: dict[str, Any] = {}
        names = self.graph_names
        if names and graph not in names:
            log.warning(
                "%s has options for graphs %s; this one is called %r, so they are not for it",
                self.source,
                ", ".join(map(repr, names)),
                graph,
            )
        cores = self._device("core_id")
        if cores:
            options["core"] = cores[0]
        graphs, configs = _section(HTP, "graphs"), _section(GENERAL, "graph_configs")
        for entry in self.htp.get("graphs", ()):
            if graph in entry.get("graph_names", ()):
                _add_options(options, graphs, entry, GRAPH)
        for entry in self.general.get("graph_configs", ()):
            if entry["graph_name"] == graph:
                _add_options(options, configs, entry, GRAPH)
        return options

    @property
    def graph_names(self) -> tuple[str, ...]:
        """Every graph that is named, once."""
        names = [name for entry in self.htp.get("graphs", ()) for name in entry.get("graph_names", ())]
        names += [entry["graph_name"] for entry in self.general.get("graph_configs", ())]
        return tuple(dict.fromkeys(names))

    def vote(self, device: Voter) -> None:
        """Vote as the config says, core by core; the last entry of a core holds."""
        for core in {core.core_id: core for core in self.cores}.values():
            times = {time: getattr(core, time) for time in _TIMES}
            if core.core_id == 0:
                device.set_perf_profile(core.perf_profile, **times)
            else:
                device.create_power_config(core.core_id).set_perf_profile(core.perf_profile, **times)

    def with_perf_profile(self, name: str) -> BackendConfig:
        """This config with another perf profile, for every core that it has."""
        find_perf_profile(name)
        devices = [dict(device) for device in self.htp.get("devices", ())] or [{}]
        for device in devices:
            device["cores"] = [{**core, "perf_profile": name} for core in device.get("cores", ())]
        if not any(device["cores"] for device in devices):
            devices[0]["cores"] = [{"perf_profile": name}]
        return replace(self, htp={**self.htp, "devices": devices})

    def _device(self, key: str) -> Any:
        return next((entry[key] for entry in self.htp.get("devices", ()) if entry.get(key) is not None), None)


Source = str | os.PathLike[str] | Mapping[str, Any] | BackendConfig
"""Where a config may come from: a file, its content, or one that was read."""

_ZERO_FOR_ALL = ("vtcm_mb", "vtcm_size")
_OF_CONTEXTS = ("context_configs", "context", "groupContext")


@overload
def as_config(source: Source) -> BackendConfig: ...
@overload
def as_config(source: None) -> None: ...
def as_config(source: Source | None) -> BackendConfig | None:
    """A config from whatever a caller gave; None stays None."""
    if source is None or isinstance(source, BackendConfig):
        return source
    if isinstance(source, Mapping):
        return parse_config(source)
    if isinstance(source, (str, os.PathLike)):
        return read_config(source)
    raise InvalidArgument(f"the backend config is {shown(source)}; expected a path, or a mapping")


def read_config(path: str | os.PathLike[str]) -> BackendConfig:
    """Read a config file: the backend extensions config, or the file that names it (``backend_extensions``).

    Raises:
        InvalidArgument: unknown keys or wrong types; the message has the place (``/graphs/0/vtcm_mb``).
    """
    return _config_from(_load(path), str(path), Path(path).parent)


def parse_config(settings: Mapping[str, Any] | str, source: str = "config") -> BackendConfig:
    """Read a config that is given as an object or as text; paths in it count from the working directory."""
    content = parse_json(settings, PointerPlace(source)) if isinstance(settings, str) else dict(settings)
    return _config_from(content, source, Path())


def _config_from(content: JsonDict, source: str, folder: Path) -> BackendConfig:
    general = {section.name for section in GENERAL.sections}
    if not general & content.keys():
        return _verified_config(source, check_section(content, HTP, PointerPlace(source)), {})
    general_values = check_section(content, GENERAL, PointerPlace(source))
    for number, entry in enumerate(general_values.get("graph_configs", ())):
        if "graph_name" not in entry:
            refuse(source, f"/graph_configs/{number}", "has no graph_name; each entry needs one")
    named = general_values.get("backend_extensions", {}).get("config_file_path")
    if named is None:
        return _verified_config(source, {}, general_values)
    inner = Path(named) if os.path.exists(named) else folder / named
    if not os.path.exists(inner):  # unlike Path.exists, it takes a name that no file can have for none
        refuse(source, "/backend_extensions/config_file_path", f"is {shown(named)}, which is no file")
    values = check_section(_load(inner), HTP, PointerPlace(str(inner)))
    return _verified_config(str(inner), values, general_values)


def _verified_config(source: str, htp: JsonDict, general: JsonDict) -> BackendConfig:
    """Check what no key can tell alone."""
    context = htp.get("context", {})
    if "max_spill_fill_buffer_for_group" in context and "group_id" not in context:
        refuse(source, "/context/max_spill_fill_buffer_for_group", 'is given without "group_id": 0')
    _tell_of_idle_keys(source, HTP, htp)
    return BackendConfig(source=source, htp=htp, general=general)


def _tell_of_idle_keys(source: str, section: Section, values: Mapping[str, Any]) -> None:
    """Say once of each key that was given and has no effect."""
    for key in section.keys:
        value = values.get(key.name)
        if key.is_idle and value and str(value) != key.default:
            words = f"{source}: {key.name} is {shown(value)}, which has no effect here. {key.about}"
            warn_once(log, ("config", key.name), words)
    for inner in section.sections:
        content = values.get(inner.name, ())
        for entry in content if inner.is_list else (content,):
            if entry:
                _tell_of_idle_keys(source, inner, entry)


def _load(path: str | os.PathLike[str]) -> JsonDict:
    return load_json(path, what="a config file", most=_MOST_BYTES)


def _section(parent: Section, name: str) -> Section:
    return next(section for section in parent.sections if section.name == name)


def _add_options(options: dict[str, Any], section: Section, entries: Mapping[str, Any], table: Table) -> None:
    """Add an object's options by their names; what is 0 for "all there is" is left to the device.

    Of several wishes for one thing, in the same unit or another, the last of the file holds.
    """
    keys = {key.name: key for key in section.keys}
    for name, value in entries.items():
        key = keys[name]
        row = key.row
        if row is None or key.option is None or not key.option.startswith(f"{table.owner}."):
            continue
        same = row.same_as or row.name
        for other in table.rows:
            if same in (other.name, other.same_as):
                options.pop(other.name, None)
        if not (value == 0 and name in _ZERO_FOR_ALL):
            options[row.name] = bool(value) if row.kind.python_type == "bool" else value
