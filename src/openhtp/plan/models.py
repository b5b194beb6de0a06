"""``model:`` in a scenario: how long a run of it takes, and where it can yield."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openhtp.core.errors import QnnError
from openhtp.core.units import US
from openhtp.hw.soc import SocSpec
from openhtp.plan.reading import Value
from openhtp.plan.scenario import DEFAULT_STEPS

if TYPE_CHECKING:
    from openhtp.program.program import Program

ModelTime = Callable[[Path, SocSpec], int]
"""How long one run of a model file takes on a SoC, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One run of a model: its time and its yield points."""

    run_ns: int
    steps: int = DEFAULT_STEPS


class ModelCache:
    """Compiled models, and their runs with what there is to say about them; kept over any number of scenarios."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.runs: dict[tuple[str, str | None, str], tuple[ModelRun, tuple[str, ...]]] = {}


class Models:
    """Times the models of one scenario, by the cost model or by what the caller gave instead of it."""

    def __init__(
        self, folder: Path, soc: SocSpec | None, model_time: ModelTime | None, cache: ModelCache | None = None
    ) -> None:
        self._folder = folder
        self.soc = soc
        self._model_time = model_time
        self._cache = cache or ModelCache()
        self._notes: dict[tuple[str, str | None, str], tuple[str, ...]] = {}

    @property
    def notes(self) -> list[str]:
        """What there is to say about the times, model by model."""
        return [note for notes in self._notes.values() for note in notes]

    def run(self, model: str, precision: str | None, at: Value) -> ModelRun:
        """The run of a model; a complaint names the place in the scenario."""
        if self.soc is None:
            at.fail("a 'model' takes its time on a SoC: give 'soc' in 'device', or 'run' instead of 'model'")
        key = (model_place(model, self._folder), precision, self.soc.name)
        runs = self._cache.runs
        if key not in runs:
            try:
                runs[key] = self._timed(model, precision, self.soc)
            except (QnnError, OSError) as error:
                message = error.message if isinstance(error, QnnError) else str(error)
                at.fail(f"model {model!r}: {message}")
        run, self._notes[key] = runs[key]
        return run

    def _timed(self, model: str, precision: str | None, soc: SocSpec) -> tuple[ModelRun, tuple[str, ...]]:
        if self._model_time is not None:
            return ModelRun(self._model_time(self._folder / model, soc)), ()
        # Brings in onnx, which a scenario without models does not need.
        from openhtp.cost import Precision, estimate
        from openhtp.estimation import compiled

        place = model_place(model, self._folder)
        programs = self._cache.programs
        if place not in programs:
            programs[place] = compiled(place)
        found = estimate(programs[place], soc, None if precision is None else Precision(precision))
        modelled = (
            f"{model} ({found.precision}) takes {found.total_us:,.0f} us on {soc.name}: modelled, likely between"
            f" {found.low_us:,.0f} and {found.high_us:,.0f} us"
        )
        notes = (modelled, *(f"{model}: {note}" for note in found.notes))
        return ModelRun(max(1, round(found.total_us * US)), found.steps), notes


def model_place(model: str, folder: Path) -> str:
    """Where a model that a file in ``folder`` names is found: a path, or a name of the zoo."""
    from openhtp.estimation import ZOO  # brings in onnx

    return model if model.startswith(ZOO) else str(folder / model)
