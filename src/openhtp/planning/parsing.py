"""From the values of a file to a ``Scenario``, with every check that can be made before anything runs.

One check counts the requests that a scenario will make: a slip in the unit can ask for years.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from openhtp.core.enumerations import Priority
from openhtp.core.errors import QnnError
from openhtp.core.limits import DEFAULT_QUEUE_DEPTH
from openhtp.core.units import MIB, bytes_in_words, duration_ns
from openhtp.core.validating import KeyPlace, WrittenFields, WrittenValue
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import DEFAULT_STREAM_GBS, PLATFORMS, SocSpec
from openhtp.planning import keys
from openhtp.planning.keys import MAX_CLIENTS, MAX_REQUESTS, RANGES, NumberRange, ranged
from openhtp.planning.models import ModelCache, ModelRun, Models, ModelTime, read_choice, read_talk, slack_of
from openhtp.planning.reading import BadScenario, read_file, read_mapping, read_text
from openhtp.planning.scenario import DEFAULT_STEPS, UNITS, ClientSpec, Pattern, RequestSource, Scenario
from openhtp.planning.switching import read_switching
from openhtp.planning.voting import ballots, read_profile, read_votes
from openhtp.sched.events import ClientKind
from openhtp.sched.policy import STRICT, Policy, policy_named
from openhtp.sched.resources import DeviceResources, resources_of


def load_scenario(path: str | Path, *, model_time: ModelTime | None = None) -> Scenario:
    """Read and check a scenario file."""
    path = Path(path)
    return scenario_from(read_file(path), path.stem, path.parent, model_time=model_time)


def chips_for(path: str | Path) -> Callable[[str], Scenario]:
    """A function that reads the same file with another ``soc``; models are compiled once for all of them."""
    path, cache = Path(path), ModelCache()

    def on_chip(soc: str) -> Scenario:
        top = read_file(path).fields(keys.TOP)
        value = top.replaced("device", top["device"].fields(keys.DEVICE).replaced("soc", soc).raw)
        return scenario_from(value, path.stem, path.parent, cache=cache)

    return on_chip


def parse_scenario(
    content: str | Mapping[str, Any], source: str = "scenario", *, model_time: ModelTime | None = None
) -> Scenario:
    """Check a scenario given as text or as a mapping; ``source`` names it in messages."""
    value = read_text(content, source) if isinstance(content, str) else read_mapping(content, source)
    return scenario_from(value, source, Path(), model_time=model_time)


def scenario_from(
    value: WrittenValue,
    name: str,
    folder: Path,
    *,
    model_time: ModelTime | None = None,
    cache: ModelCache | None = None,
) -> Scenario:
    """The scenario of values that were read. Models lie relative to ``folder``; ``cache`` keeps them."""
    top = value.fields(keys.TOP)
    unit = top["unit"].choice(*UNITS) if "unit" in top else "us"
    times = _Times(UNITS[unit])
    device, soc, eviction, dma_gbs = _device(top["device"], times)
    clients_value = top["clients"]
    if not clients_value.items():
        clients_value.fail("a scenario needs at least one client")
    if len(clients_value.items()) > MAX_CLIENTS:
        clients_value.fail(f"{len(clients_value.items())} clients; at most {MAX_CLIENTS} are planned")
    voting = ballots(top["device"], clients_value.items(), soc, device.cores)
    models = Models(folder, soc, model_time, cache, voting)
    parsed = [_client(item, times, device, models) for item in clients_value.items()]
    parsed, warnings = _with_talks(clients_value.items(), parsed, device, soc)
    clients = tuple(client for client, _ in parsed)
    _verify_names(clients_value.items(), clients)
    duration = times.get(top, "duration")
    reader = _Sources(clients, [run for _, run in parsed], times, duration, models)
    placed = [(item, source) for item in top["events"].items() for source in reader.read(item)]
    scenario = Scenario(
        name=top["name"].text() if "name" in top else name,
        device=device,
        clients=clients,
        sources=tuple(source for _, source in placed),
        policy=_policy(top.get("policy"), times),
        unit=unit,
        eviction_ns=eviction,
        dma_gbs=dma_gbs,
        duration_ns=duration,
        soc=soc.name if soc else None,
        switching=read_switching(top.get("switching"), clients),
        perf_profile=read_profile(top["device"].fields(keys.DEVICE)),
        notes=(*_notes(soc, eviction), *models.notes, *warnings, *_queued_in_vain(clients, placed)),
    )
    verify_amount(scenario, top["events"], [item for item, _ in placed])
    return scenario


_Parsed = list[tuple[ClientSpec, ModelRun | None]]


def _with_talks(
    items: list[WrittenValue], parsed: _Parsed, device: DeviceResources, soc: SocSpec | None
) -> tuple[_Parsed, list[str]]:
    """Language models last: how they are cut may depend on how long the others can wait."""
    with_talks, warnings = list(parsed), []
    for number, item in enumerate(items):
        value = item.fields(keys.CLIENT).get("llm")
        if value is None:
            continue
        client = parsed[number][0]
        others = [(other, None if run is None else run.run_ns) for other, run in parsed]
        slack = slack_of(client, others, flat=device.flat_priorities)
        talk, words = read_talk(value, None if soc is None else soc.name, slack)
        with_talks[number] = replace(client, talk=talk), ModelRun(talk.total_ns)
        warnings.append(f"{client.name}: {words}")
    return with_talks, warnings


class _Times:
    """Reads times, given in the scenario's unit, as nanoseconds."""

    def __init__(self, unit_ns: int) -> None:
        self._unit_ns = unit_ns

    def ns(self, value: WrittenValue, key: str) -> int:
        bounds = RANGES[key]
        time_ns, written_time = self._read(value, bounds)
        if bounds.lowest and not time_ns:
            value.fail("0 must be above 0")
        if time_ns > bounds.highest:
            value.fail(f"{written_time} is more than a year")
        if round(time_ns) < bounds.lowest:
            value.fail(f"{written_time} is less than a nanosecond")
        return round(time_ns)

    def _read(self, value: WrittenValue, bounds: NumberRange) -> tuple[float, str]:
        """Nanoseconds of ``5``, ``5ms`` or ``1/30s``, and how to say it."""
        if isinstance(value.raw, str):
            time_ns = duration_ns(value.raw, self._unit_ns)
            if time_ns is None:
                raise value.place.unexpected(value.raw, "a number, or one with a unit: 5ms, 1/30s")
            return time_ns, value.raw
        number: float = value.read(bounds.without_limits())
        return number * self._unit_ns, f"{number:g}"

    def get(self, fields: WrittenFields, key: str) -> int | None:
        value = fields.get(key)
        return None if value is None else self.ns(value, key)


def _notes(soc: SocSpec | None, eviction: int | None) -> tuple[str, ...]:
    notes = []
    if soc is not None and soc.estimated:
        notes.append(f"{soc.name}: estimated, as no public source says: {', '.join(soc.estimated)}")
    if eviction is None:
        notes.append("evictions are modelled: rest of the step, VTCM saved at the DMA's rate, wake-up")
    return tuple(notes)


def _queued_in_vain(
    clients: tuple[ClientSpec, ...], placed: list[tuple[WrittenValue, RequestSource]]
) -> list[str]:
    names = {clients[source.client]: None for _, source in placed if source.pattern is Pattern.CLOSED}
    return [
        f"{client.name}: a queue gains nothing, as {client.no_gain}; its executions are planned one at a time"
        for client in names
        if client.no_gain
    ]


def _device(value: WrittenValue, times: _Times) -> tuple[DeviceResources, SocSpec | None, int | None, float]:
    fields = value.fields(keys.DEVICE)
    soc = None
    if "soc" in fields:
        try:
            soc = find_soc(fields["soc"].text())
        except QnnError as error:
            fields["soc"].fail(error.message)
    elif not ("vtcm_mb" in fields or "vtcm_bytes" in fields):
        value.fail("give 'soc', or the device's own 'hvx', 'hmx' and 'vtcm_mb'")
    numbers = {key: fields[key].read(RANGES[key]) for key in ("hmx", "hvx", "cores") if key in fields}
    vtcm = _vtcm(fields)
    if vtcm is not None:
        numbers["vtcm_bytes"] = vtcm
    switches = {key: fields[key].flag() for key in ("sharing", "windowing", "parallel_graphs") if key in fields}
    if switches.get("windowing") and soc is not None and not soc.may_have_vtcm_windowing:
        fields["windowing"].fail(f"{soc.name} is {soc.arch_name}; VTCM windowing comes with v79")
    windows = "platform" in fields and fields["platform"].choice(*PLATFORMS) == "windows"
    device = resources_of(soc, **numbers, **switches, flat_priorities=windows)
    dma_gbs = ranged(fields, "dma_gbs") or (soc.dma_gbs if soc else DEFAULT_STREAM_GBS)
    return device, soc, times.get(fields, "eviction"), dma_gbs


def _vtcm(fields: WrittenFields) -> int | None:
    if "vtcm_bytes" in fields:
        if "vtcm_mb" in fields:
            fields["vtcm_bytes"].fail("give 'vtcm_mb' or 'vtcm_bytes', not both")
        return int(fields["vtcm_bytes"].read(RANGES["vtcm_bytes"]))
    return _megabytes(fields, "vtcm_mb")


def _megabytes(fields: WrittenFields, key: str) -> int | None:
    number = ranged(fields, key)
    return None if number is None else round(number * MIB)


def _client(
    value: WrittenValue, times: _Times, device: DeviceResources, models: Models
) -> tuple[ClientSpec, ModelRun | None]:
    """Return the client, and its runs if they are given here."""
    fields = value.fields(keys.CLIENT)
    if "run" in fields and "model" in fields:
        fields["run"].fail("give 'run' or 'model', not both")
    if "llm" in fields and ("run" in fields or "model" in fields):
        fields["llm"].fail("give 'llm' or how long a run takes, not both")
    model = read_choice(fields)
    core = ranged(fields, "core", 0)
    timed = models.run(model, fields["model"], core) if model is not None else None
    kind = ClientKind(fields["kind"].choice(*keys.KINDS)) if "kind" in fields else ClientKind.GRAPH
    graph = kind is ClientKind.GRAPH
    vtcm = _vtcm(fields)
    client = ClientSpec(
        name=fields["name"].text(),
        kind=kind,
        priority=_priority(fields.get("priority")),
        pd=ranged(fields, "pd", 1),
        core=core,
        hmx=ranged(fields, "hmx", int(graph)),
        hvx=ranged(fields, "hvx", device.hvx if graph else 1),
        vtcm_bytes=vtcm if vtcm is not None else (device.vtcm_bytes if graph else 0),
        page_bytes=_megabytes(fields, "page_mb"),
        deadline_ns=times.get(fields, "deadline"),
        depth=ranged(fields, "depth", DEFAULT_QUEUE_DEPTH),
        steps=ranged(fields, "steps", timed.steps if timed else DEFAULT_STEPS),
        timeout_ns=times.get(fields, "timeout"),
        model=model,
        size_bytes=_megabytes(fields, "size_mb") or 0,
        load_ns=times.get(fields, "load"),
        perf_profile=read_profile(fields),
        votes=read_votes(fields, models.soc),
        no_gain=_no_gain(fields),
    )
    _verify_fits(value, fields, client, device, models.soc)
    run = times.get(fields, "run")
    return client, ModelRun(run) if timed is None and run is not None else timed


def _no_gain(fields: WrittenFields) -> str:
    """Why the client's executions are as if each waited for the one before it, however many are queued."""
    if "tensors" in fields and fields["tensors"].choice(*keys.TENSORS) == "raw":
        return "its tensors do not lie in registered memory"
    level = fields["profiling"].choice(*keys.PROFILING) if "profiling" in fields else "off"
    return "" if level in keys.PROFILING[:2] else f"profiling at level {level} is above basic"


def _priority(value: WrittenValue | None) -> Priority:
    if value is None:
        return Priority.NORMAL
    raw = value.raw
    try:
        return Priority.parse(raw if isinstance(raw, int) else value.text())
    except QnnError as error:
        value.fail(error.message)


def _verify_fits(
    value: WrittenValue, fields: WrittenFields, client: ClientSpec, device: DeviceResources, soc: SocSpec | None
) -> None:
    """Refuse a client that is larger than the device: it could never run."""
    page = client.page_bytes or 0
    for key, asked, has, words in (
        ("hmx", client.hmx, device.hmx, str),
        ("hvx", client.hvx, device.hvx, str),
        ("vtcm_mb", client.vtcm_bytes, device.vtcm_bytes, bytes_in_words),
        ("page_mb", page, device.vtcm_bytes, bytes_in_words),
        ("core", client.core, device.cores - 1, str),
    ):
        if asked > has:
            at = fields.get(key) or value
            most = "cores go up to" if key == "core" else "the device has"
            at.fail(f"client {client.name!r} asks for {key} {words(asked)}, {most} {words(has)}")
    if soc is not None and client.vtcm_bytes % soc.vtcm_granule_bytes:
        granule = bytes_in_words(soc.vtcm_granule_bytes)
        at = fields.get("vtcm_mb") or fields["vtcm_bytes"]
        at.fail(f"VTCM on {soc.name} ({soc.arch_name}) is given out in multiples of {granule}")


def _verify_names(items: list[WrittenValue], clients: tuple[ClientSpec, ...]) -> None:
    seen: dict[str, KeyPlace] = {}
    for item, client in zip(items, clients, strict=True):
        if client.name in seen:
            item.fail(f"client {client.name!r} was defined {seen[client.name]}")
        seen[client.name] = item.place


def _policy(value: WrittenValue | None, times: _Times) -> Policy:
    if value is None:
        return STRICT
    if isinstance(value.raw, str):
        return policy_named(value.choice(*keys.POLICIES))
    fields = value.fields(keys.POLICY)
    name = fields["name"].choice(*keys.POLICIES)
    if "window" in fields and name != "fair":
        fields["window"].fail("only the fair policy has a window")
    return policy_named(name, window_ns=times.get(fields, "window"))


class _Sources:
    """Reads the entries of ``events``."""

    def __init__(
        self,
        clients: tuple[ClientSpec, ...],
        runs: list[ModelRun | None],
        times: _Times,
        duration: int | None,
        models: Models,
    ) -> None:
        self._clients = clients
        self._numbers = {client.name: number for number, client in enumerate(clients)}
        self._runs = runs
        self._times = times
        self._duration = duration
        self._models = models

    def read(self, value: WrittenValue) -> list[RequestSource]:
        """One entry; several sources if ``at`` is a list."""
        fields = value.fields(keys.EVENT)
        client = self._number(fields["client"])
        pattern = self._pattern(value, fields)
        run = self._run(value, fields, client)
        base = RequestSource(
            client=client,
            pattern=pattern,
            run_ns=run.run_ns,
            times=run.times,
            start_ns=self._times.get(fields, "from") or 0,
            until_ns=self._times.get(fields, "until"),
            count=ranged(fields, "count"),
            seed=ranged(fields, "seed", 0),
        )
        if pattern is Pattern.AT:
            at = fields["at"]
            moments = at.items() if isinstance(at.raw, list) else [at]
            return [replace(base, start_ns=self._times.ns(moment, "at"), count=1) for moment in moments]
        if pattern is Pattern.AFTER:
            gap = self._times.get(fields, "delay") or 0
            return [replace(base, after=self._number(fields["after"]), gap_ns=gap)]
        return [self._repeated(value, fields, base)]

    def _repeated(self, value: WrittenValue, fields: WrittenFields, base: RequestSource) -> RequestSource:
        if base.pattern is Pattern.BURST:
            gap = self._times.get(fields, "every")
            start = self._times.get(fields, "at") or base.start_ns
            burst = ranged(fields, "burst", 1)
            base = replace(base, start_ns=start, gap_ns=gap or 0, burst=burst)
            if gap is None:
                return replace(base, count=1)
        elif base.pattern is Pattern.CLOSED:
            in_flight = ranged(fields, "closed", 1)
            client = self._clients[base.client]
            if in_flight > client.depth:
                fields["closed"].fail(f"{in_flight} in flight do not fit into a queue of depth {client.depth}")
            if client.no_gain:
                in_flight = 1
            gap = self._times.get(fields, "think") or 0
            base = replace(base, gap_ns=gap, in_flight=in_flight)
        else:
            base = replace(base, gap_ns=self._times.ns(fields[base.pattern.value], base.pattern.value))
        if base.count is None and base.until_ns is None and self._duration is None:
            value.fail("this source never ends: give 'count', 'until', or the scenario's 'duration'")
        return base

    def _pattern(self, value: WrittenValue, fields: WrittenFields) -> Pattern:
        words = [word for word in keys.PATTERNS if word in fields]
        if "burst" in words:  # a burst may be placed (at) and repeated (every)
            words = [word for word in words if word not in ("at", "every")]
        if len(words) != 1:
            patterns = " and ".join(map(repr, words)) if words else "none"
            value.fail(f"give one of 'at', 'every', 'burst', 'poisson', 'closed', 'after'; found {patterns}")
        if words[0] == "every" and "at" in fields:
            value.fail("give 'from' for the first time of 'every'")
        return Pattern(words[0])

    def _number(self, value: WrittenValue) -> int:
        name = value.text()
        if name not in self._numbers:
            value.choice(*self._numbers)
        return self._numbers[name]

    def _run(self, value: WrittenValue, fields: WrittenFields, client: int) -> ModelRun:
        run = self._times.get(fields, "run")
        if self._clients[client].talk is not None and (
            run is not None or any(key in fields for key in keys.MODEL)
        ):
            value.fail("this client is a language model: its runs are said there")
        if run is not None and any(key in fields for key in keys.MODEL):
            value.fail("give 'run' or 'model', not both")
        if run is not None:
            return ModelRun(run)
        model = read_choice(fields, self._clients[client].model)
        if model is not None:
            return self._models.run(model, fields.get("model") or value, self._clients[client].core)
        default = self._runs[client]
        if default is None:
            value.fail("how long does it run? Give 'run' here or at the client, or a 'model'")
        return default


__all__ = ["BadScenario", "load_scenario", "parse_scenario"]


_SHOWN = 20


def verify_amount(scenario: Scenario, events: WrittenValue, places: list[WrittenValue]) -> None:
    """Refuse ``after`` chains that lead back to themselves, and more requests than are planned.

    ``places`` says where each source stands in the file.
    """
    try:
        amounts = expected_requests(scenario)
    except graphlib.CycleError as error:
        # The sorter begins the ring with the client that comes first; "after" reads the other way.
        ring = [scenario.clients[number].name for number in reversed(error.args[1])]
        shown = ring if len(ring) <= _SHOWN else [*ring[: _SHOWN - 1], "...", ring[-1]]
        events.fail(f"a cycle: {' after '.join(shown)}")
    total = 0
    for at, amount in zip(places, amounts, strict=True):
        total += amount
        if total > MAX_REQUESTS:
            at.fail(f"about {total:.2g} requests up to here; more than {MAX_REQUESTS:.2g} are not planned")


def expected_requests(scenario: Scenario) -> list[int]:
    """An upper estimate for each source; above the limit of a plan, only that it is above.

    Followers multiply: a client that follows twice a client that follows twice makes four requests.

    Raises:
        graphlib.CycleError: a client follows itself.
    """
    of_client: dict[int, list[int]] = {}
    follows: dict[int, set[int]] = {}
    for number, source in enumerate(scenario.sources):
        of_client.setdefault(source.client, []).append(number)
        if source.after is not None:
            follows.setdefault(source.client, set()).add(source.after)
    amounts = [0] * len(scenario.sources)
    of_clients: dict[int, int] = {}
    for client in dict.fromkeys((*graphlib.TopologicalSorter(follows).static_order(), *of_client)):
        for number in of_client.get(client, ()):
            amounts[number] = _requests(scenario, scenario.sources[number], of_clients)
        of_clients[client] = sum(amounts[number] for number in of_client.get(client, ()))
    return amounts


def _requests(scenario: Scenario, source: RequestSource, of_clients: dict[int, int]) -> int:
    talk = scenario.clients[source.client].talk
    runs = 1 if talk is None else talk.runs
    counts = [MAX_REQUESTS + 1]
    if source.count is not None:
        counts.append(source.count)
    if source.after is not None:
        return min(*counts, of_clients[source.after]) * runs
    gap = _shortest_gap(source, scenario.clients[source.client])
    if gap:
        ends = [end for end in (source.until_ns, scenario.duration_ns) if end is not None]
        counts += [max(0, end - source.start_ns) // gap + 1 for end in ends]
    return min(counts) * source.burst * runs


def _shortest_gap(source: RequestSource, client: ClientSpec) -> int:
    if source.pattern is not Pattern.CLOSED:
        return source.gap_ns
    run = source.run_ns if client.timeout_ns is None else min(source.run_ns, client.timeout_ns)
    return max(1, (source.gap_ns + run) // source.in_flight)
