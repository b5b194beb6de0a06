"""``llm:`` in a scenario: a conversation is a prompt in chunks, then token after token, each a run of its own."""

from __future__ import annotations

import math

from openhtp.core.errors import QnnError
from openhtp.core.units import MS
from openhtp.core.validating import WrittenFields, WrittenValue
from openhtp.cost.llm import LlmEstimate, estimate_llm
from openhtp.cost.llm_shapes import PRESETS, LlmShape
from openhtp.planning import keys
from openhtp.planning.keys import RANGES, ranged
from openhtp.planning.scenario import ClientSpec, Talk

# What ``chunk: auto`` chooses from: tokens of a prefill pass, and parts that a pass is split into.
CHUNKS = (128, 64, 32)
PARTS = (1, 2, 3, 4, 6, 8)


def read_talk(value: WrittenValue, soc: str | None, slack_ns: int | None) -> tuple[Talk, str]:
    """A conversation and what there is to say about it.

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
    talk = Talk(
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
