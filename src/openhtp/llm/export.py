"""From a float Llama to a bundle: AR graphs of one set of weights, in parts, ready for a device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from openhtp.compiler.driver import portable_program
from openhtp.core.checks import items_of, shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.core.hmx_layout import BLOCK, MOST_NEW_TOKENS, round_up, sizes_problem
from openhtp.llm.bundle import About, Bundle, graph_name, sizes_of
from openhtp.llm.graphs import PartPlan, part_graph
from openhtp.llm.model import Llama
from openhtp.llm.quantizing import Precision, Ranges, calibrate, precision_named
from openhtp.program.binary import BinaryInfo, write_binary

Progress = Callable[[str, float], None]

_PATTERNS = ("A", "B", "C")
_MOST_AR = 4096
# Tokens that calibration sees at a time.
_WINDOW = 1024


def export(
    model: Llama,
    *,
    context: int | Sequence[int] | None = None,
    ar: Sequence[int] = (128, 32, 1),
    parts: int = 1,
    precision: str = "w8a16",
    native_kv: bool = True,
    native_out: bool = False,
    masked_softmax: str | None = None,
    calibration: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Quantize a model and write its AR graphs.

    Args:
        model: what ``load`` returns, or a ``Llama`` of random weights.
        context: tokens that the cache holds, the model's own unless given; several, and the cache may grow.
        ar: how many tokens the graphs take at a time; all share one set of weights.
        parts: how many graphs a pass is split into; fewer yields, or shorter blocking.
        precision: ``w8a16``, ``w8a8`` or ``w4a16``.
        native_kv: keep the cache in the layout of the matrix unit.
        native_out: also give new keys and values in it, where ``ar`` is a multiple of 32.
        masked_softmax: the pattern ``"A"``, ``"B"`` or ``"C"`` of masked attention; ``"none"`` adds the mask. With
            8-bit activations C unless given, otherwise none.
        calibration: token numbers of a text to find ranges with; what the model writes itself unless given.
        progress: told what is being done and how far it is.
    """
    chosen = precision_named(precision)
    lengths = _checked_contexts(model.config.context if context is None else context)
    steps = _checked_ar(ar)
    for length in lengths:
        _check_sizes(model, length, steps, native=native_kv, native_out=native_out)
    count = whole_number(parts)
    if count is None or not 1 <= count <= model.config.layers:
        raise InvalidArgument(f"parts is {shown(parts)}; expected 1 to {model.config.layers}, a layer each")
    pattern = _pattern(masked_softmax, chosen)
    about = About(
        model=sizes_of(model.config),
        contexts=list(lengths),
        ar=list(steps),
        parts=_borders(model.config.layers, count),
        precision=chosen.name,
        native_kv=native_kv,
        native_out=native_out,
        masked_softmax=pattern,
    )
    seen = calibrate(
        model,
        calibration,
        window=min(lengths[-1], _WINDOW),
        progress=lambda done: _tell(progress, "calibrating", done),
    )
    return Bundle(about, _binaries(model, about, _completed(model, seen), progress), model.tokenizer)


def _borders(layers: int, parts: int) -> list[list[int]]:
    """First layer of each part, and the one behind its last."""
    ends = [round(number * layers / parts) for number in range(parts + 1)]
    return [list(pair) for pair in itertools.pairwise(ends)]


def _binaries(model: Llama, about: About, ranges: Ranges, progress: Progress | None) -> list[bytes]:
    """One binary for each part, with its graphs for every context and number of tokens."""
    chosen, count = precision_named(about.precision), len(about.parts)
    binaries = []
    for number, (begin, end) in enumerate(about.parts, 1):
        plans = [
            PartPlan(
                name=graph_name(tokens, length, number, count),
                number=number,
                parts=count,
                begin=begin,
                end=end,
                ar=tokens,
                context=length,
                native=about.native_kv,
                native_out=about.native_out and tokens % BLOCK == 0,
                pattern=about.masked_softmax,
            )
            for length in about.contexts
            for tokens in about.ar
        ]
        programs = [portable_program(part_graph(model, plan, chosen, ranges)) for plan in plans]
        binaries.append(write_binary(programs, BinaryInfo()))
        _tell(progress, "writing graphs", number / count)
    return binaries


def _tell(progress: Progress | None, what: str, done: float) -> None:
    if progress is not None:
        progress(what, done)


def _checked_ar(given: object) -> tuple[int, ...]:
    numbers = [whole_number(item) for item in items_of(given, 64) or ()]
    if not numbers or any(number is None or not 1 <= number <= _MOST_AR for number in numbers):
        raise InvalidArgument(f"ar is {shown(given)}; expected numbers of tokens, such as (128, 32, 1)")
    return tuple(sorted({number for number in numbers if number is not None}, reverse=True))


def _checked_contexts(given: object) -> tuple[int, ...]:
    single = whole_number(given)
    numbers = [single] if single is not None else [whole_number(item) for item in items_of(given, 16) or ()]
    if not numbers or any(number is None or number < 1 for number in numbers):
        raise InvalidArgument(f"context is {shown(given)}; expected a number of tokens, or some")
    return tuple(sorted({number for number in numbers if number is not None}))


def _check_sizes(model: Llama, length: int, ar: Sequence[int], *, native: bool, native_out: bool) -> None:
    if native:
        problem = sizes_problem(length, model.config.head_dim)
        if problem is not None:
            raise InvalidArgument(f"no native KV cache: {problem}")
        if ar[0] > MOST_NEW_TOKENS:
            raise InvalidArgument(
                f"AR-{ar[0]} is more than the {MOST_NEW_TOKENS} tokens that a native cache takes in one pass;"
                f" export AR-{MOST_NEW_TOKENS} or less"
            )
    if native_out and not native:
        raise InvalidArgument("native_out without native_kv; expected both, or neither")
    if round_up(ar[0]) > length:
        raise InvalidArgument(f"AR-{ar[0]} does not fit a context of {length} tokens")


def _pattern(given: str | None, precision: Precision) -> str:
    if given is None:
        return "C" if precision.activation.bits == 8 else ""
    word = given.upper() if isinstance(given, str) else given
    if word == "NONE":
        return ""
    if word not in _PATTERNS:
        raise InvalidArgument(f"masked_softmax is {shown(given)}; expected A, B, C, none or None")
    return word


def _completed(model: Llama, ranges: Ranges) -> Ranges:
    table = model.weights["embed"]
    return {**ranges, "embed_table": (float(np.min(table)), float(np.max(table)))}
