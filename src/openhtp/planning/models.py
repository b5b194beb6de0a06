"""``model:`` in a scenario: how long a run of it takes, and where it can yield."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from openhtp.core.errors import QnnError
from openhtp.core.units import US
from openhtp.core.validating import WrittenFields, WrittenValue
from openhtp.hw.clocks import Clocks
from openhtp.hw.soc import SocSpec
from openhtp.planning import keys
from openhtp.planning.keys import DIM, FROZEN
from openhtp.planning.scenario import DEFAULT_STEPS, ModelChoice
from openhtp.planning.voting import Ballot

if TYPE_CHECKING:
    from openhtp.program.qnn_program import QnnProgram
import math

from openhtp.core.units import MS
from openhtp.cost.llm import PRESETS, LlmEstimate, LlmShape, estimate_llm
from openhtp.planning.keys import RANGES, ranged
from openhtp.planning.scenario import ClientSpec, Conversation

ModelTime = Callable[[Path, SocSpec], int]
"""How long one run of a model file takes on a SoC, in nanoseconds."""


_Kind = TypeVar("_Kind")


def read_choice(fields: WrittenFields, default: ModelChoice | None = None) -> ModelChoice | None:
    """The model that a mapping of the scenario names, or None; ``default`` fills in missing keys."""
    model_keys = [key for key in keys.MODEL if key in fields]
    if not model_keys:
        return default
    if "model" not in fields and default is None:
        fields[model_keys[0]].fail(f"{model_keys[0]!r} says something about a 'model': give one here")
    name = fields["model"].text() if "model" in fields or default is None else default.name
    same = default if default is not None and default.name == name else None
    base = same or ModelChoice(name=name, precision=default.precision if default is not None else None)
    return ModelChoice(
        name=name,
        precision=fields["precision"].choice(*keys.PRECISIONS) if "precision" in fields else base.precision,
        dims=_pairs(fields["dims"], lambda value: value.read(DIM)) if "dims" in fields else base.dims,
        freeze=_pairs(fields["freeze"], _frozen) if "freeze" in fields else base.freeze,
    )


def _pairs(value: WrittenValue, read: Callable[[WrittenValue], _Kind]) -> tuple[tuple[str, _Kind], ...]:
    if not isinstance(value.raw, dict):
        value.fail("expected names and values")
    return tuple((name, read(item)) for name, item in value.raw.items())


def _frozen(value: WrittenValue) -> float | tuple[float, ...]:
    if isinstance(value.raw, list):
        return tuple(item.read(FROZEN) for item in value.items())
    return value.raw if isinstance(value.raw, bool) else value.read(FROZEN)


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One run of a model: its time, its yield points, and its times at other clocks, if it has any."""

    run_ns: int
    steps: int = DEFAULT_STEPS
    times: tuple[tuple[Clocks, int], ...] = ()


_Timed = tuple[ModelChoice, str, Ballot]
"""A model, by where it lies, the name of a SoC, and who votes on its clocks."""


class ModelCache:
    """Programs of models, and their runs with notes; shared by any number of scenarios.

    ``sources`` has the files that are not on this machine, by the paths where they would be.
    """

    def __init__(self, sources: Mapping[str, bytes] | None = None) -> None:
        self.sources = sources or {}
        self.programs: dict[ModelChoice, QnnProgram] = {}
        self.runs: dict[_Timed, tuple[ModelRun, tuple[str, ...]]] = {}


class Models:
    """Times the models of one scenario, by the cost model or by the caller's function."""

    def __init__(
        self,
        folder: Path,
        soc: SocSpec | None,
        model_time: ModelTime | None,
        cache: ModelCache | None = None,
        voting: Sequence[Ballot] = (),
    ) -> None:
        """``voting`` has the ballot for each core."""
        self._folder = folder
        self.soc = soc
        self._model_time = model_time
        self._voting = voting
        self._cache = cache or ModelCache()
        self._notes: dict[_Timed, tuple[str, ...]] = {}

    @property
    def notes(self) -> list[str]:
        """Notes about the times, model by model."""
        return [note for notes in self._notes.values() for note in notes]

    def run(self, choice: ModelChoice, at: WrittenValue, core: int) -> ModelRun:
        """The run of a model on a core; errors name the place in the scenario."""
        if self.soc is None:
            at.fail("a 'model' takes its time on a SoC: give 'soc' in 'device', or 'run' instead of 'model'")
        ballot = self._voting[core] if core < len(self._voting) else Ballot()
        key = (self._placed(choice), self.soc.name, ballot)
        runs = self._cache.runs
        if key not in runs:
            try:
                runs[key] = self._timed(choice, self.soc, ballot)
            except (QnnError, OSError) as error:
                at.fail(f"model {choice.name!r}: {_in_a_scenario(error)}")
        run, self._notes[key] = runs[key]
        return run

    def _placed(self, choice: ModelChoice) -> ModelChoice:
        """A choice that means the same in scenarios of any folder."""
        return replace(choice, name=model_place(choice.name, self._folder))

    def _timed(self, choice: ModelChoice, soc: SocSpec, ballot: Ballot) -> tuple[ModelRun, tuple[str, ...]]:
        model = choice.name
        if self._model_time is not None:
            return ModelRun(self._model_time(self._folder / model, soc)), ()
        # Brings in onnx, which a scenario without models does not need.
        from openhtp.compiler.driver import program_for
        from openhtp.cost import NumberFormat, estimate
        from openhtp.estimation import compiled

        placed = replace(self._placed(choice), precision=None)
        programs = self._cache.programs
        if placed not in programs:
            source = self._cache.sources.get(placed.name, placed.name)
            programs[placed] = compiled(source, dict(choice.dims), dict(choice.freeze))
        program = program_for(programs[placed], soc)
        precision = None if choice.precision is None else NumberFormat.parse(choice.precision)
        possible = ballot.possible
        best, *others = [estimate(program, precision, clocks) for clocks in possible]
        modelled = (
            f"{model} ({best.precision}) takes {best.total_us:,.0f} us on {soc.name}{ballot.words}: modelled,"
            f" likely between {best.low_us:,.0f} and {best.high_us:,.0f} us"
        )
        if others:
            modelled += f"; up to {others[-1].total_us:,.0f} us when votes are low"
        notes = (modelled, *(f"{model}: {note}" for note in best.notes))
        times = [max(1, round(each.total_us * US)) for each in (best, *others)]
        by_clocks = tuple(zip(possible, times, strict=True)) if others else ()
        return ModelRun(times[0], best.steps, by_clocks), notes


def _in_a_scenario(error: QnnError | OSError) -> str:
    """The problem of a model, with the key that would help instead of an argument or an option of a command."""
    if not isinstance(error, QnnError):
        return str(error)
    sizes = error.where.get("open sizes")
    if sizes is None:
        return error.message
    from openhtp.frontend.fixing import OpenSizes  # brings in onnx

    assert isinstance(sizes, OpenSizes)
    wanted = ", ".join(f"{name}: {size}" for name, size in sizes.example.items())
    return f"{sizes.problem}. Give the sizes that you need beside 'model', like dims: {{{wanted}}}"


def model_place(model: str, folder: Path) -> str:
    """Where a model that a file in ``folder`` names is found: a path, or a name of the zoo."""
    from openhtp.estimation import ZOO  # brings in onnx

    return model if model.startswith(ZOO) else str(folder / model)


# ``llm:`` in a scenario: a conversation is a prompt in chunks, then token after token, each a run of its own.


# The choices of ``chunk: auto``: tokens of a prefill pass, and parts that a pass is split into.
CHUNKS = (128, 64, 32)
PARTS = (1, 2, 3, 4, 6, 8)


def read_talk(value: WrittenValue, soc: str | None, slack_ns: int | None) -> tuple[Conversation, str]:
    """A conversation, and a note about its times.

    ``slack_ns`` is the longest run that others can wait for; None if they need not wait.
    """
    if soc is None:
        value.fail("an 'llm' takes its time on a SoC: give 'soc' in 'device'")
    fields = value.fields(keys.LLM)
    prompt, generate = ranged(fields, "prompt", 128), ranged(fields, "generate", 64)
    model, context = _model(value, fields), ranged(fields, "context", 4096)
    precision = fields["precision"].choice(*keys.LLM_PRECISIONS) if "precision" in fields else "w4a16"
    try:
        llm = estimate_llm(model, soc, precision=precision, context=context, prompt=prompt)
    except QnnError as error:
        value.fail(error.message)
    chunk, parts = _chosen(fields, llm, slack_ns)
    talk = Conversation(
        prompt_runs=math.ceil(prompt / chunk) * parts,
        prompt_ns=max(1, round(llm.pass_of(chunk) / parts * MS)),
        token_runs=(generate - 1) * parts,
        token_ns=max(1, round(llm.decode_ms / parts * MS)),
        tokens=generate,
    )
    pieces = "in one piece" if parts == 1 else f"in {parts} parts"
    words = (
        f"{llm.model} ({llm.precision}): {chunk} tokens {pieces} take {llm.pass_of(chunk):,.1f} ms, one"
        f" takes {llm.decode_ms:,.1f} ms on {llm.soc}: modelled; models that had no part in the fit are off by"
        f" {llm.ttft_error:.0%} and {llm.decode_error:.0%} (median)"
    )
    return talk, words


def slack_of(llm: ClientSpec, others: list[tuple[ClientSpec, int | None]], *, flat: bool) -> int | None:
    """How long others can wait for a run of the language model. Clients that may interrupt it need not wait.

    That is their deadline less their own run, and less one run of every other client that may be ahead then.
    """
    known = [(other, run) for other, run in others if other is not llm and run is not None]
    waiting = [
        other.deadline_ns - sum(time for each, time in known if flat or each.priority <= other.priority)
        for other, _ in known
        if other.deadline_ns is not None and (flat or other.priority <= llm.priority)
    ]
    return max(1, min(waiting)) if waiting else None


def _model(value: WrittenValue, fields: WrittenFields) -> str | LlmShape:
    sizes = [key for key in keys.LLM_SHAPE if key in fields]
    if "preset" in fields:
        if sizes:
            fields[sizes[0]].fail("give a 'preset' or sizes of your own, not both")
        return fields["preset"].choice(*PRESETS)
    missing = [key for key in keys.LLM_SHAPE if key not in fields]
    if missing:
        value.fail(f"give a 'preset', or all of {', '.join(keys.LLM_SHAPE)}: {missing[0]!r} is missing")
    return LlmShape(**{key: fields[key].read(RANGES[key]) for key in keys.LLM_SHAPE})


def _chosen(fields: WrittenFields, llm: LlmEstimate, slack_ns: int | None) -> tuple[int, int]:
    """Tokens and parts of a pass: the most tokens in the fewest parts that others can wait for."""
    chunk, parts = fields.get("chunk"), fields.get("parts")
    chunks = CHUNKS if chunk is None or chunk.raw == "auto" else (chunk.read(RANGES["chunk"]),)
    wanted = (
        PARTS if parts is None and chunk is not None and chunk.raw == "auto" else (ranged(fields, "parts", 1),)
    )
    choices = [(tokens, pieces) for tokens in chunks for pieces in wanted]
    if slack_ns is None or chunk is None or chunk.raw != "auto":
        return choices[0]

    def longest(choice: tuple[int, int]) -> float:
        return max(llm.pass_of(choice[0]), llm.decode_ms) / choice[1] * MS

    fitting = [choice for choice in choices if longest(choice) <= slack_ns]
    return fitting[0] if fitting else min(choices, key=longest)
