"""``model:`` in a scenario: how long a run of it takes, and where it can yield."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from openhtp.core.errors import QnnError
from openhtp.core.units import US
from openhtp.hw.soc import SocSpec
from openhtp.plan import keys
from openhtp.plan.ranges import DIM, FROZEN
from openhtp.plan.reading import Fields, Value
from openhtp.plan.scenario import DEFAULT_STEPS, ModelChoice

if TYPE_CHECKING:
    from openhtp.program.qnn_program import QnnProgram

ModelTime = Callable[[Path, SocSpec], int]
"""How long one run of a model file takes on a SoC, in nanoseconds."""


_Kind = TypeVar("_Kind")


def read_choice(fields: Fields, default: ModelChoice | None = None) -> ModelChoice | None:
    """The model that a mapping of the scenario names, or None; what it leaves out is as in ``default``."""
    given = [key for key in keys.MODEL if key in fields]
    if not given:
        return default
    if "model" not in fields and default is None:
        fields[given[0]].fail(f"{given[0]!r} says something about a 'model': give one here")
    name = fields["model"].text() if "model" in fields or default is None else default.name
    same = default if default is not None and default.name == name else None
    base = same or ModelChoice(name=name, precision=default.precision if default is not None else None)
    return ModelChoice(
        name=name,
        precision=fields["precision"].choice(*keys.PRECISIONS) if "precision" in fields else base.precision,
        dims=_pairs(fields["dims"], lambda value: value.integer(DIM)) if "dims" in fields else base.dims,
        freeze=_pairs(fields["freeze"], _frozen) if "freeze" in fields else base.freeze,
    )


def _pairs(value: Value, read: Callable[[Value], _Kind]) -> tuple[tuple[str, _Kind], ...]:
    if not isinstance(value.raw, dict):
        value.fail("expected names and values")
    return tuple((name, read(item)) for name, item in value.raw.items())


def _frozen(value: Value) -> float | tuple[float, ...]:
    if isinstance(value.raw, list):
        return tuple(item.number(FROZEN) for item in value.items())
    return value.raw if isinstance(value.raw, bool) else value.number(FROZEN)


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One run of a model: its time and its yield points."""

    run_ns: int
    steps: int = DEFAULT_STEPS


class Models:
    """Times the models of one scenario, by the cost model or by what the caller gave instead of it."""

    def __init__(self, folder: Path, soc: SocSpec | None, model_time: ModelTime | None) -> None:
        self._folder = folder
        self.soc = soc
        self._model_time = model_time
        self._programs: dict[ModelChoice, QnnProgram] = {}
        self._runs: dict[ModelChoice, ModelRun] = {}
        self.notes: list[str] = []

    def run(self, choice: ModelChoice, at: Value) -> ModelRun:
        """The run of a model; a complaint names the place in the scenario."""
        if self.soc is None:
            at.fail("a 'model' takes its time on a SoC: give 'soc' in 'device', or 'run' instead of 'model'")
        if choice not in self._runs:
            try:
                self._runs[choice] = self._timed(choice, self.soc)
            except (QnnError, OSError) as error:
                message = error.message if isinstance(error, QnnError) else str(error)
                at.fail(f"model {choice.name!r}: {message}")
        return self._runs[choice]

    def _timed(self, choice: ModelChoice, soc: SocSpec) -> ModelRun:
        model, precision = choice.name, choice.precision
        if self._model_time is not None:
            return ModelRun(self._model_time(self._folder / model, soc))
        # Brings in onnx, which a scenario without models does not need.
        from openhtp.estimation import ZOO, compiled, estimate

        same = replace(choice, precision=None)
        if same not in self._programs:
            source = model if model.startswith(ZOO) else self._folder / model
            self._programs[same] = compiled(source, dict(choice.dims), dict(choice.freeze))
        found = estimate(self._programs[same], soc, precision=precision)
        self.notes.append(
            f"{model} ({found.precision}) takes {found.total_us:,.0f} us on {soc.name}: modelled, likely between"
            f" {found.low_us:,.0f} and {found.high_us:,.0f} us"
        )
        self.notes += [f"{model}: {note}" for note in found.notes]
        return ModelRun(max(1, round(found.total_us * US)), found.steps)
