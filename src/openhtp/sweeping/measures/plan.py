"""A scenario on the virtual clock: deadlines, latencies and load. Every number is modelled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openhtp.core.errors import QnnError
from openhtp.core.units import US
from openhtp.core.validating import WrittenValue
from openhtp.estimation import ZOO
from openhtp.planning.models import ModelCache
from openhtp.planning.parsing import scenario_from
from openhtp.planning.reading import read_file
from openhtp.planning.result import percentile
from openhtp.planning.scenario import ClientSpec, Scenario
from openhtp.planning.simulate import PlanRun, simulate
from openhtp.sweeping.measures import Measure, Measured, values_of
from openhtp.sweeping.study import Objective, Scalar, Study, StudyFiles, Values

_CLIENTS, _DEVICE, _EVENTS = "clients.", "device.", "events."
FAMILIES = (_CLIENTS, _DEVICE, _EVENTS)
AXES = ("scenario", "soc", "policy", "precision", "duration", "seed", "seeds")
CLIENT_NUMBERS = (".requests", ".missed", ".p50_us", ".p99_us", ".max_us")
_AROUND = ("scenario", "seed", "seeds", "stretch")
"""Axes that change nothing inside the file."""
_KEPT = 256
"""Scenarios that a worker keeps; seeds of one share it."""
_LATE = -1.0
"""Margin of a client with a run that was given up, as if the run were late by a whole deadline or more."""


def files_of(study: Study) -> list[str]:
    """The scenarios, and the model files that they and the axes name; refuses axes that lead nowhere."""
    files: dict[str, None] = {}
    for name in map(str, values_of(study, "scenario")):
        files[name] = None
        folder = Path(name).parent
        models = [str(v) for a in study.axes if a.name.endswith(".model") for v in a.values]
        tree = read_file(Path(study.folder, name))
        clients = _listed_values(tree, "clients", "events")
        for axis in study.axes:
            if axis.name not in _AROUND:
                tree = _changed(tree, axis.name, axis.values[0] if axis.values else axis.low)
        models += [
            str(item.raw["model"].raw) for item in clients if isinstance(item.raw, dict) and "model" in item.raw
        ]
        files |= {str(folder / model): None for model in models if not model.startswith(ZOO)}
    return list(files)


def _listed_values(value: WrittenValue, *keys: str) -> list[WrittenValue]:
    """The items of lists of a file, whatever is wrong with it."""
    fields = value.raw if isinstance(value.raw, dict) else {}
    return [
        item for key in keys if key in fields and isinstance(fields[key].raw, list) for item in fields[key].raw
    ]


class Scenarios:
    """Scenarios with what a point changes in them."""

    def __init__(self, study: Study, files: StudyFiles) -> None:
        self._study = study
        self._files = files
        self._read: dict[str, WrittenValue] = {}
        self._made: dict[tuple[Scalar, ...], Scenario] = {}
        shipped = files.shipped or {}
        self._cache = ModelCache({str(Path(study.folder, name)): data for name, data in shipped.items()})

    def at(self, values: Values) -> Scenario:
        """The scenario of a point."""
        key = tuple(value for name, value in values.items() if name not in ("seed", "seeds"))
        if key not in self._made:
            if len(self._made) >= _KEPT:
                self._made.clear()
            self._made[key] = self._make(values)
        seed = values.get("seed")
        return self._made[key] if seed is None else self._made[key].with_seed(int(seed))

    def all_at(self, values: Values) -> list[Scenario]:
        """The scenario of a point with as many arrivals as ``seeds`` says; they are counted together."""
        seeds = values.get("seeds")
        if seeds is None:
            return [self.at(values)]
        first = int(values.get("seed") or 0) * int(seeds)
        return [self.at({**values, "seed": first + number}) for number in range(int(seeds))]

    def _make(self, values: Values) -> Scenario:
        name = str(values["scenario"])
        if name not in self._read:
            self._read[name] = read_file(self._files.path(name))
        tree = self._read[name]
        for axis, value in values.items():
            if axis not in _AROUND:
                tree = _changed(tree, axis, value)
        return scenario_from(tree, Path(name).stem, Path(self._study.folder, name).parent, cache=self._cache)


def _changed(tree: WrittenValue, axis: str, value: Scalar) -> WrittenValue:
    """The values of a file with one of them changed; values that are not on the way to it are shared."""
    if axis == "soc":
        return _with_value(tree, ["device", "soc"], value)
    if axis == "precision":
        for number, client in enumerate(_listed_values(tree, "clients")):
            if isinstance(client.raw, dict) and "model" in client.raw:
                tree = _with_value(tree, ["clients", str(number), "precision"], value)
        return tree
    if axis.startswith(_CLIENTS):
        # Names of clients may have dots.
        name, _, field = axis.removeprefix(_CLIENTS).rpartition(".")
        numbers = [
            str(number)
            for number, client in enumerate(_listed_values(tree, "clients"))
            if _client_name(client) == name
        ]
        if not numbers:
            known = ", ".join(_client_name(client) for client in _listed_values(tree, "clients"))
            tree.fail(f"the axis {axis!r} is of a client {name!r}; the scenario has {known}")
        return _with_value(tree, ["clients", numbers[0], field], value)
    return _with_value(tree, axis.split("."), value)


def _client_name(client: WrittenValue) -> str:
    return str(client.raw["name"].raw) if isinstance(client.raw, dict) and "name" in client.raw else ""


def _with_value(tree: WrittenValue, path: Sequence[str], value: Scalar) -> WrittenValue:
    place = tree.place
    if not path:
        return WrittenValue(value, place)
    first, rest = path[0], path[1:]
    if isinstance(tree.raw, list):
        if not first.isdigit() or int(first) >= len(tree.raw):
            tree.fail(f"there is no item {first!r}; the list has {len(tree.raw)}, counted from 0")
        items = list(tree.raw)
        items[int(first)] = _with_value(items[int(first)], rest, value)
        return WrittenValue(items, place)
    if not isinstance(tree.raw, dict):
        tree.fail(f"there is nothing to set {first!r} in")
    before = tree.raw.get(first) or WrittenValue({} if rest else None, place.inside(first, place.line))
    return WrittenValue({**tree.raw, first: _with_value(before, rest, value)}, place)


class Plans:
    """Measures scenarios by planning them."""

    def __init__(self, study: Study, files: StudyFiles) -> None:
        self._scenarios = Scenarios(study, files)

    def run(self, points: Sequence[Values]) -> list[Measured]:
        """Measure one point after the other."""
        return [self._measured(values) for values in points]

    def _measured(self, values: Values) -> Measured:
        try:
            return self._numbers(values)
        except (QnnError, OSError) as error:
            return error

    def _numbers(self, values: Values) -> dict[str, Scalar]:
        return numbers_of([simulate(scenario) for scenario in self._scenarios.all_at(values)])


def numbers_of(runs: Sequence[PlanRun]) -> dict[str, Scalar]:
    """The numbers of a study from all plans of one scenario. Margins are parts of the deadline, at worst."""
    clients = runs[0].scenario.clients
    numbers = range(len(clients))
    figures = [[run.clients[client] for run in runs] for client in numbers]
    used = [run.utilisation() for run in runs]
    return {
        **deadline_numbers(
            clients,
            [sorted(time for each in figures[client] for time in each.latencies_ns) for client in numbers],
            [sum(each.missed for each in figures[client]) for client in numbers],
            [sum(each.not_done for each in figures[client]) for client in numbers],
        ),
        **{name: round(sum(each[name] for each in used) / len(used), 6) for name in used[0]},
    }


def deadline_numbers(
    clients: Sequence[ClientSpec], latencies: Sequence[list[int]], missed: Sequence[int], not_done: Sequence[int]
) -> dict[str, Scalar]:
    """Deadlines and latencies, of all together and of each client."""
    margins = [
        min(_LATE, _margin(client, times)) if lost else _margin(client, times)
        for client, times, lost in zip(clients, latencies, not_done, strict=True)
        if client.deadline_ns is not None and (times or lost)
    ]
    urgent = [times for client, times in zip(clients, latencies, strict=True) if client.deadline_ns is not None]
    # Each one's 99th percentile; where nobody has a deadline, everybody's counts.
    slowest = max((percentile(times, 99) or 0 for times in urgent or latencies), default=0)
    asked = sum(
        len(times) + lost
        for client, times, lost in zip(clients, latencies, not_done, strict=True)
        if client.deadline_ns is not None
    )
    numbers: dict[str, Scalar] = {
        "margin": round(min(margins), 9) if margins else 1.0,
        "missed": sum(missed),
        "miss_rate": sum(missed) / asked if asked else 0.0,
        "latency_us": slowest / US,
    }
    for client, times, late, lost in zip(clients, latencies, missed, not_done, strict=True):
        numbers[f"{client.name}.requests"] = len(times) + lost
        numbers[f"{client.name}.missed"] = late
        for name, percent in ((".p50_us", 50), (".p99_us", 99), (".max_us", 100)):
            numbers[f"{client.name}{name}"] = (percentile(times, percent) or 0) / US
    return numbers


def _margin(client: ClientSpec, latencies: Sequence[int]) -> float:
    assert client.deadline_ns is not None
    return 1 - max(latencies, default=0) / client.deadline_ns


MEASURE = Measure(
    axes=AXES,
    families=FAMILIES,
    needs=("scenario",),
    numbers=("margin", "missed", "miss_rate", "latency_us", "hmx", "hvx", "vtcm"),
    each=CLIENT_NUMBERS,
    objectives=(Objective("margin", largest=True), Objective("latency_us")),
    files=files_of,
    make=Plans,
    chunk=8,
)
