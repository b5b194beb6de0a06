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
    from openhtp.program.qnn_program import QnnProgram

ModelTime = Callable[[Path, SocSpec], int]
"""How long one run of a model file takes on a SoC, in nanoseconds."""


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
        self._programs: dict[str, QnnProgram] = {}
        self._runs: dict[tuple[str, str | None], ModelRun] = {}
        self.notes: list[str] = []

    def run(self, model: str, precision: str | None, at: Value) -> ModelRun:
        """The run of a model; a complaint names the place in the scenario."""
        if self.soc is None:
            at.fail("a 'model' takes its time on a SoC: give 'soc' in 'device', or 'run' instead of 'model'")
        key = (model, precision)
        if key not in self._runs:
            try:
                self._runs[key] = self._timed(model, precision, self.soc)
            except (QnnError, OSError) as error:
                message = error.message if isinstance(error, QnnError) else str(error)
                at.fail(f"model {model!r}: {message}")
        return self._runs[key]

    def _timed(self, model: str, precision: str | None, soc: SocSpec) -> ModelRun:
        if self._model_time is not None:
            return ModelRun(self._model_time(self._folder / model, soc))
        # Brings in onnx, which a scenario without models does not need.
        from openhtp.estimation import ZOO, compiled, estimate

        if model not in self._programs:
            self._programs[model] = compiled(model if model.startswith(ZOO) else self._folder / model)
        found = estimate(self._programs[model], soc, precision=precision)
        self.notes.append(
            f"{model} ({found.precision}) takes {found.total_us:,.0f} us on {soc.name}: modelled, likely between"
            f" {found.low_us:,.0f} and {found.high_us:,.0f} us"
        )
        self.notes += [f"{model}: {note}" for note in found.notes]
        return ModelRun(max(1, round(found.total_us * US)), found.steps)
