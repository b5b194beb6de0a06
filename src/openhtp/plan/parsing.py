"""From the values of a file to a ``Scenario``, with every check that can be made before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from openhtp.core.errors import QnnError
from openhtp.core.limits import DEFAULT_QUEUE_DEPTH, MAX_QUEUE_DEPTH
from openhtp.core.priority import Priority
from openhtp.core.units import MIB, SECOND, bytes_in_words
from openhtp.hw.catalog import find_soc
from openhtp.hw.platforms import PLATFORMS
from openhtp.hw.soc import DEFAULT_STREAM_GBS, SocSpec
from openhtp.plan.models import ModelCache, Models, ModelTime
from openhtp.plan.reading import BadScenario, Fields, Value, read_file, read_text
from openhtp.plan.scenario import DEFAULT_STEPS, UNITS, ClientSpec, Pattern, Scenario, Source
from openhtp.sched.events import ClientKind
from openhtp.sched.policy import STRICT, Policy, policy_named
from openhtp.sched.resources import DeviceResources, resources_of

_TOP = ("name", "unit", "device", "clients", "events", "policy", "duration")
_DEVICE_SIZES = ("soc", "hvx", "hmx", "vtcm_mb", "vtcm_bytes", "cores", "dma_gbs", "eviction")
_DEVICE = (*_DEVICE_SIZES, "sharing", "windowing", "parallel_graphs", "platform")
_MODEL = ("model", "precision")
_PRECISIONS = ("float", "w8a8", "w8a16")
_CLIENT_SIZES = ("hmx", "hvx", "vtcm_mb", "vtcm_bytes", "page_mb", "core", "pd")
_CLIENT = ("name", "kind", "priority", *_CLIENT_SIZES, "deadline", "depth", "steps", "timeout", "run", *_MODEL)
_PATTERNS = tuple(pattern.value for pattern in Pattern)
_EVENT = ("client", "run", *_MODEL, *_PATTERNS, "from", "until", "count", "seed", "think", "delay")
MAX_REQUESTS = 50_000_000
_LONGEST_NS = 366 * 24 * 3600 * SECOND


def load_scenario(path: str | Path, *, model_time: ModelTime | None = None) -> Scenario:
    """Read and check a scenario file."""
    path = Path(path)
    return scenario_from(read_file(path), path.stem, path.parent, model_time=model_time)


def parse_scenario(text: str, source: str = "scenario", *, model_time: ModelTime | None = None) -> Scenario:
    """Read and check a scenario given as text; ``source`` names it in messages."""
    return scenario_from(read_text(text, source), source, Path(), model_time=model_time)


def scenario_from(
    value: Value,
    name: str,
    folder: Path,
    *,
    model_time: ModelTime | None = None,
    cache: ModelCache | None = None,
) -> Scenario:
    """The scenario of values that were read. Models lie relative to ``folder``; ``cache`` keeps them."""
    top = value.fields(_TOP)
    unit = top["unit"].choice(*UNITS) if "unit" in top else "us"
    times = _Times(UNITS[unit])
    device, soc, eviction, dma_gbs = _device(top["device"], times)
    clients_value = top["clients"]
    if not clients_value.items():
        clients_value.fail("a scenario needs at least one client")
    models = Models(folder, soc, model_time, cache)
    parsed = [_client(item, times, device, models) for item in clients_value.items()]
    clients = tuple(client for client, _ in parsed)
    _verify_names(clients_value.items(), clients)
    duration = times.get(top, "duration")
    reader = _Sources(clients, [run for _, run in parsed], times, duration, models)
    sources = tuple(source for item in top["events"].items() for source in reader.read(item))
    _verify_no_cycle(top["events"], sources, clients)
    return Scenario(
        name=top["name"].text() if "name" in top else name,
        device=device,
        clients=clients,
        sources=sources,
        policy=_policy(top.get("policy"), times),
        unit=unit,
        eviction_ns=eviction,
        dma_gbs=dma_gbs,
        duration_ns=duration,
        soc=soc.name if soc else None,
        notes=(*_notes(soc, eviction), *models.notes),
    )


class _Times:
    """Reads times in the scenario's unit as nanoseconds."""

    def __init__(self, unit_ns: int) -> None:
        self._unit_ns = unit_ns

    def ns(self, value: Value, *, above: float | None = None) -> int:
        number = value.number(above=above)
        time_ns = round(number * self._unit_ns)
        if above == 0 and not time_ns:
            value.fail(f"{number} is less than a nanosecond")
        if time_ns > _LONGEST_NS:
            value.fail(f"{number} is more than a year")
        return time_ns

    def get(self, fields: Fields, key: str, *, above: float | None = None) -> int | None:
        value = fields.get(key)
        return None if value is None else self.ns(value, above=above)


def _notes(soc: SocSpec | None, eviction: int | None) -> tuple[str, ...]:
    notes = []
    if soc is not None and soc.estimated:
        notes.append(f"{soc.name}: estimated, as no public source says: {', '.join(soc.estimated)}")
    if eviction is None:
        notes.append("evictions are modelled: rest of the step, VTCM saved at the DMA's rate, wake-up")
    return tuple(notes)


def _device(value: Value, times: _Times) -> tuple[DeviceResources, SocSpec | None, int | None, float]:
    fields = value.fields(_DEVICE)
    soc = None
    if "soc" in fields:
        try:
            soc = find_soc(fields["soc"].text())
        except QnnError as error:
            fields["soc"].fail(error.message)
    elif not ("vtcm_mb" in fields or "vtcm_bytes" in fields):
        value.fail("give 'soc', or the device's own 'hvx', 'hmx' and 'vtcm_mb'")
    numbers = {key: fields[key].integer() for key in ("hmx", "hvx") if key in fields}
    if "cores" in fields:
        numbers["cores"] = fields["cores"].integer(least=1)
    vtcm = _vtcm(fields)
    if vtcm is not None:
        numbers["vtcm_bytes"] = vtcm
    switches = {key: fields[key].flag() for key in ("sharing", "windowing", "parallel_graphs") if key in fields}
    if switches.get("windowing") and soc is not None and not soc.may_have_vtcm_windowing:
        fields["windowing"].fail(f"{soc.name} is {soc.arch_name}; VTCM windowing comes with v79")
    windows = "platform" in fields and fields["platform"].choice(*PLATFORMS) == "windows"
    device = resources_of(soc, **numbers, **switches, flat_priorities=windows)  # type: ignore[arg-type]
    dma_gbs = soc.dma_gbs if soc else DEFAULT_STREAM_GBS
    if "dma_gbs" in fields:
        dma_gbs = fields["dma_gbs"].number(above=0)
    return device, soc, times.get(fields, "eviction"), dma_gbs


def _vtcm(fields: Fields) -> int | None:
    if "vtcm_bytes" in fields:
        if "vtcm_mb" in fields:
            fields["vtcm_bytes"].fail("give 'vtcm_mb' or 'vtcm_bytes', not both")
        return fields["vtcm_bytes"].integer()
    return round(fields["vtcm_mb"].number() * MIB) if "vtcm_mb" in fields else None


def _client(value: Value, times: _Times, device: DeviceResources, models: Models) -> tuple[ClientSpec, int | None]:
    """Return the client, and the duration of its runs if it is given here."""
    fields = value.fields(_CLIENT)
    if "run" in fields and "model" in fields:
        fields["run"].fail("give 'run' or 'model', not both")
    precision = fields["precision"].choice(*_PRECISIONS) if "precision" in fields else None
    if precision is not None and "model" not in fields:
        fields["precision"].fail("'precision' says what a 'model' is quantized to: give one here")
    timed = models.run(fields["model"].text(), precision, fields["model"]) if "model" in fields else None
    kind = ClientKind(fields["kind"].choice("graph", "app")) if "kind" in fields else ClientKind.GRAPH
    graph = kind is ClientKind.GRAPH
    vtcm = _vtcm(fields)
    client = ClientSpec(
        name=fields["name"].text(),
        kind=kind,
        priority=_priority(fields.get("priority")),
        pd=fields["pd"].integer() if "pd" in fields else 1,
        core=fields["core"].integer() if "core" in fields else 0,
        hmx=fields["hmx"].integer() if "hmx" in fields else int(graph),
        hvx=fields["hvx"].integer() if "hvx" in fields else (device.hvx if graph else 1),
        vtcm_bytes=vtcm if vtcm is not None else (device.vtcm_bytes if graph else 0),
        page_bytes=round(fields["page_mb"].number() * MIB) if "page_mb" in fields else None,
        deadline_ns=times.get(fields, "deadline", above=0),
        depth=fields["depth"].integer(least=1) if "depth" in fields else DEFAULT_QUEUE_DEPTH,
        steps=fields["steps"].integer(least=1) if "steps" in fields else timed.steps if timed else DEFAULT_STEPS,
        timeout_ns=times.get(fields, "timeout"),
        model=fields["model"].text() if "model" in fields else None,
        precision=precision,
    )
    if client.depth > MAX_QUEUE_DEPTH:
        fields["depth"].fail(f"a queue depth of {client.depth} is above {MAX_QUEUE_DEPTH}")
    _verify_fits(value, fields, client, device, models.soc)
    return client, timed.run_ns if timed else times.get(fields, "run", above=0)


def _priority(value: Value | None) -> Priority:
    if value is None:
        return Priority.NORMAL
    raw = value.raw
    try:
        return Priority.parse(raw if isinstance(raw, int) else value.text())
    except QnnError as error:
        value.fail(error.message)


def _verify_fits(
    value: Value, fields: Fields, client: ClientSpec, device: DeviceResources, soc: SocSpec | None
) -> None:
    """A client larger than the device could never run."""
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


def _verify_names(items: list[Value], clients: tuple[ClientSpec, ...]) -> None:
    seen: dict[str, int] = {}
    for item, client in zip(items, clients, strict=True):
        if client.name in seen:
            item.fail(f"client {client.name!r} was defined in line {seen[client.name]}")
        seen[client.name] = item.line


def _policy(value: Value | None, times: _Times) -> Policy:
    if value is None:
        return STRICT
    if isinstance(value.raw, str):
        return policy_named(value.choice("strict", "edf", "fair"))
    fields = value.fields(("name", "window"))
    name = fields["name"].choice("strict", "edf", "fair")
    if "window" in fields and name != "fair":
        fields["window"].fail("only the fair policy has a window")
    return policy_named(name, window_ns=times.get(fields, "window"))


class _Sources:
    """Reads the entries of ``events``."""

    def __init__(
        self,
        clients: tuple[ClientSpec, ...],
        runs: list[int | None],
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

    def read(self, value: Value) -> list[Source]:
        """One entry; several sources if ``at`` is a list."""
        fields = value.fields(_EVENT)
        client = self._number(fields["client"])
        pattern = self._pattern(value, fields)
        base = Source(
            client=client,
            pattern=pattern,
            run_ns=self._run(value, fields, client),
            start_ns=self._times.get(fields, "from") or 0,
            until_ns=self._times.get(fields, "until"),
            count=fields["count"].integer(least=1) if "count" in fields else None,
            seed=fields["seed"].integer() if "seed" in fields else 0,
        )
        if pattern is Pattern.AT:
            at = fields["at"]
            moments = at.items() if isinstance(at.raw, list) else [at]
            return [replace(base, start_ns=self._times.ns(moment), count=1) for moment in moments]
        if pattern is Pattern.AFTER:
            gap = self._times.get(fields, "delay") or 0
            return [replace(base, after=self._number(fields["after"]), gap_ns=gap)]
        return [self._repeated(value, fields, base)]

    def _repeated(self, value: Value, fields: Fields, base: Source) -> Source:
        if base.pattern is Pattern.BURST:
            gap = self._times.get(fields, "every", above=0)
            start = self._times.get(fields, "at") or base.start_ns
            burst = fields["burst"].integer(least=1)
            base = replace(base, start_ns=start, gap_ns=gap or 0, burst=burst)
            if gap is None:
                return replace(base, count=1)
        elif base.pattern is Pattern.CLOSED:
            in_flight = fields["closed"].integer(least=1)
            depth = self._clients[base.client].depth
            if in_flight > depth:
                fields["closed"].fail(f"{in_flight} in flight do not fit into a queue of depth {depth}")
            gap = self._times.get(fields, "think") or 0
            base = replace(base, gap_ns=gap, in_flight=in_flight)
        else:
            base = replace(base, gap_ns=self._times.ns(fields[base.pattern.value], above=0))
        if base.count is None and base.until_ns is None and self._duration is None:
            value.fail("this source never ends: give 'count', 'until', or the scenario's 'duration'")
        self._verify_length(value, base)
        return base

    def _verify_length(self, value: Value, source: Source) -> None:
        """A slip in the unit can ask for years of requests; say so instead of running on."""
        ends = [end for end in (source.until_ns, self._duration) if end is not None]
        gap = source.gap_ns + (source.run_ns // source.in_flight if source.pattern is Pattern.CLOSED else 0)
        counts = [(end - source.start_ns) // max(1, gap) for end in ends]
        counts += [] if source.count is None else [source.count]
        requests = min(counts) * source.burst
        if requests > MAX_REQUESTS:
            value.fail(f"about {requests:.2g} requests; more than {MAX_REQUESTS:.2g} are not planned")

    def _pattern(self, value: Value, fields: Fields) -> Pattern:
        words = [word for word in _PATTERNS if word in fields]
        if "burst" in words:  # a burst may be placed (at) and repeated (every)
            words = [word for word in words if word not in ("at", "every")]
        if len(words) != 1:
            found = " and ".join(map(repr, words)) if words else "none"
            value.fail(f"give one of 'at', 'every', 'burst', 'poisson', 'closed', 'after'; found {found}")
        if words[0] == "every" and "at" in fields:
            value.fail("give 'from' for the first time of 'every'")
        return Pattern(words[0])

    def _number(self, value: Value) -> int:
        name = value.text()
        if name not in self._numbers:
            value.choice(*self._numbers)
        return self._numbers[name]

    def _run(self, value: Value, fields: Fields, client: int) -> int:
        run = self._times.get(fields, "run", above=0)
        model = fields.get("model")
        if run is not None and ("model" in fields or "precision" in fields):
            value.fail("give 'run' or 'model', not both")
        if run is not None:
            return run
        spec = self._clients[client]
        precision = fields["precision"].choice(*_PRECISIONS) if "precision" in fields else spec.precision
        name = model.text() if model is not None else spec.model
        if name is not None:
            return self._models.run(name, precision, model or value).run_ns
        if "precision" in fields:
            fields["precision"].fail("'precision' says what a 'model' is quantized to: give one here")
        default = self._runs[client]
        if default is None:
            value.fail("how long does it run? Give 'run' here or at the client, or a 'model'")
        return default


def _verify_no_cycle(events: Value, sources: tuple[Source, ...], clients: tuple[ClientSpec, ...]) -> None:
    """``after`` chains must end: a client that (indirectly) follows itself would never stop."""
    follows: dict[int, set[int]] = {}
    for source in sources:
        if source.after is not None:
            follows.setdefault(source.client, set()).add(source.after)
    done: set[int] = set()

    def visit(number: int, path: tuple[int, ...]) -> None:
        if number in path:
            loop = [*path[path.index(number) :], number]
            events.fail("a cycle: " + " after ".join(clients[step].name for step in loop))
        if number not in done:
            for following in sorted(follows.get(number, ())):
                visit(following, (*path, number))
            done.add(number)

    for start in sorted(follows):
        visit(start, ())


__all__ = ["BadScenario", "load_scenario", "parse_scenario"]
