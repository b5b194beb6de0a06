"""From a float model to a bundle: AR graphs of one set of weights, in parts, ready for a device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from openhtp.compiler.driver import CompileOptions, portable_program
from openhtp.core.checks import items_of, shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.core.hmx_layout import BLOCK, CONTEXT_MULTIPLE, MOST_NEW_TOKENS, round_up, sizes_problem
from openhtp.core.machine import one_blas_thread
from openhtp.core.tensor import TensorSpec
from openhtp.cost.llm import MOST_CAREFUL, WIDE_BY_DEFAULT
from openhtp.llm.adapter import Adapter, AdapterPlan, plan_for
from openhtp.llm.balancing import balanced
from openhtp.llm.bundle import About, Bundle, EmbeddingEncoding, graph_name
from openhtp.llm.config import LlamaConfig
from openhtp.llm.graphs import PartPlan, part_graph, stored_table
from openhtp.llm.model import Llama, Thin
from openhtp.llm.quantizing import (
    INPUTS,
    Levels,
    Precision,
    Ranges,
    Seen,
    calibrate,
    calibration_windows,
    precision_named,
)
from openhtp.options import GRAPH
from openhtp.program.binary import BinaryInfo, write_binary
from openhtp.program.sections import pack_section

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
# The graphs of a part, and what is updateable in each of them.
_Ends = tuple[list[str], tuple[TensorSpec, ...]]

_PATTERNS = ("A", "B", "C")
_MOST_AR = 4096
# Bits of weights that are stored two in a byte.
_NARROW = 4
# Tokens that calibration sees at a time.
_WINDOW = 1024
# Tokens of a cache that nobody gave a size: models for 128 times as many would need it for each of them.
_LONGEST_BY_DEFAULT = 4096
# Weights of the largest matrix up to which products are quicker on one thread than on several.
_MOST_ON_ONE_THREAD = 1 << 20


def export(
    model: Llama,
    *,
    context: int | Sequence[int] | None = None,
    ar: Sequence[int] = (128, 32, 1),
    parts: int = 1,
    precision: str = "w8a16",
    wide: Sequence[str] | str = "auto",
    native_kv: bool | None = None,
    native_out: bool = False,
    concat_kv: bool = False,
    embedding_input: bool = False,
    masked_softmax: str | None = None,
    calibration: Sequence[int] | None = None,
    rounding: str | None = None,
    adapters: Sequence[Adapter] = (),
    progress: Progress | None = None,
) -> Bundle:
    """Quantize a model and write its AR graphs.

    Args:
        model: what ``load`` returns, or a ``Llama`` of random weights.
        context: tokens that the cache holds, up to 4096 unless given; several, and the cache may grow.
        ar: how many tokens the graphs take at a time; all share one set of weights.
        parts: how many graphs a pass is split into; fewer yields, or shorter blocking.
        precision: ``w8a16``, ``w8a8`` or ``w4a16``.
        wide: weights of 12 bits, as two matrices: ``("output", "down")``; ``"auto"``: four in small models.
        native_kv: keep the cache in the matrix unit's layout: the default where it fits without ``concat_kv``.
        native_out: also give new keys and values in it, where ``ar`` is a multiple of 32.
        concat_kv: graphs as AI Hub exports them for Genie: Concat puts new tokens behind a shorter, flat cache.
        embedding_input: graphs take rows of the embedding, which Genie looks up or an app gives, not tokens.
        masked_softmax: ``"A"``, ``"B"`` or ``"C"`` (the default with 8-bit activations); ``"none"`` adds the mask.
        calibration: token numbers of a text to find ranges with; what the model writes itself unless given.
        rounding: of weights: ``"nearest"``, or ``"compensated"`` (the default up to 100 million weights; slow).
        adapters: LoRA adapters (``load_adapter``) that the bundle can be run with, one at a time, or without any.
        progress: called with the present work and how far it is.
    """
    chosen = precision_named(precision)
    lengths, steps = _checked_contexts(_own_context(model.config) if context is None else context), _checked_ar(ar)
    native = _checked_native(native_kv, concat_kv, model.config)
    for length in lengths:
        _check_sizes(model, length, steps, native=native, native_out=native_out)
    _check_adapters(adapters, model)
    compensates = _compensates(rounding, model)
    about = About(
        model=model.config,
        contexts=list(lengths),
        ar=list(steps),
        parts=_borders(model.config.layers, _checked_parts(parts, model)),
        precision=chosen.name,
        wide=_checked_wide(wide, chosen, compensates=compensates),
        native_kv=native,
        native_out=native_out,
        masked_softmax=_pattern(masked_softmax, chosen),
        concat_kv=bool(concat_kv),
        adapters=[adapter.name for adapter in adapters],
    )
    with _fitting_threads(model):
        how = {"compensates": compensates, "embedded": bool(embedding_input)}
        return _quantized(model, about, adapters, calibration, progress, **how)


def _fitting_threads(model: Llama) -> contextlib.AbstractContextManager[None]:
    """As many threads for products as the model's matrices are worth."""
    largest = max(weight.size for weight in model.weights.values())
    return one_blas_thread() if largest <= _MOST_ON_ONE_THREAD else contextlib.nullcontext()


def _quantized(
    model: Llama,
    about: About,
    adapters: Sequence[Adapter],
    calibration: Sequence[int] | None,
    progress: Progress | None,
    *,
    compensates: bool,
    embedded: bool,
) -> Bundle:
    """Make the bundle that was described: ranges are found, then the graphs are written."""
    report = functools.partial(_tell, progress, "writing a text to calibrate with")
    windows = calibration_windows(model, calibration, min(about.contexts[-1], _WINDOW), report)
    room = plan_for(adapters) if adapters else None
    _tell(progress, "making keys and values even", 0.0)
    runs, wide = _runs(room, adapters, model), precision_named(about.precision).activation.bits == 16
    careful = compensates and wide
    # Other axes make the steps of these two smaller, which are small enough if both of them are wide.
    rebased = careful and not embedded and not {"output", "down"} <= set(about.wide)
    model, adapters, key_ranges = balanced(
        model,
        adapters,
        runs,
        windows,
        context=about.contexts[-1],
        wide=wide,
        rebased=rebased,
        mixes=careful,
    )
    room = plan_for(adapters) if adapters else None
    report = functools.partial(_tell, progress, "calibrating")
    seen = calibrate(model, windows, _runs(room, adapters, model), moments=compensates, progress=report)
    seen = dataclasses.replace(seen, ranges={**seen.ranges, **key_ranges})
    precision, table = precision_named(about.precision), None
    if embedded:
        about, table = _with_table(model, about, seen, precision)
    binaries, ends = _binaries(model, about, seen, room, progress)
    sections = {} if room is None else _sections(room, adapters, model, precision, ends)
    return Bundle(about, binaries, model.tokenizer, sections, table)


def _with_table(model: Llama, about: About, seen: Seen, precision: Precision) -> tuple[About, bytes]:
    """The embedding as its rows come into the graphs, and the description of a bundle that has it."""
    dtype = precision.activation
    stored, quant = stored_table(model, _completed(model, seen.ranges), dtype)
    encoding = EmbeddingEncoding(dtype=f"ufixed{dtype.bits}", scale=quant.scale, offset=quant.offset)
    return msgspec.structs.replace(about, embedding=encoding), stored.tobytes()


def _runs(room: AdapterPlan | None, adapters: Sequence[Adapter], model: Llama) -> list[Mapping[str, Thin]]:
    """The ways in which the model may run with adapters; none if it has no room for any."""
    return [] if room is None else room.runs(adapters, model.config)


def _sections(
    room: AdapterPlan, adapters: Sequence[Adapter], model: Llama, precision: Precision, ends: Sequence[_Ends]
) -> dict[str, list[bytes]]:
    """For each adapter a binary section for every part."""
    bits = precision.activation.bits
    stored = {adapter.name: room.stored(adapter, model.config, bits) for adapter in adapters}
    return {
        name: [pack_section(graphs[0], specs, data, others=graphs[1:]) for graphs, specs in ends]
        for name, data in stored.items()
    }


def _borders(layers: int, parts: int) -> list[list[int]]:
    """First layer of each part, and the one behind its last."""
    ends = [round(number * layers / parts) for number in range(parts + 1)]
    return [list(pair) for pair in itertools.pairwise(ends)]


def _binaries(
    model: Llama, about: About, seen: Seen, room: AdapterPlan | None, progress: Progress | None
) -> tuple[list[bytes], list[_Ends]]:
    """One binary for each part, with its graphs for every context and number of tokens.

    Also the graphs of each, and what is updateable in them.
    """
    chosen, count = precision_named(about.precision), len(about.parts)
    chosen = dataclasses.replace(chosen, wide=frozenset(about.wide))
    ranges, levels = _completed(model, seen.ranges), Levels(model, seen.moments, seen.tokens)
    options = CompileOptions(
        graph=GRAPH.read({"weights_packing": chosen.weight_bits == _NARROW or bool(chosen.wide)})
    )
    binaries, ends = [], []
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
                concat=about.concat_kv,
                embedded=about.embedding is not None,
            )
            for length in about.contexts
            for tokens in about.ar
        ]
        _tell(progress, "rounding weights, writing graphs", (number - 1) / count)
        graphs = [part_graph(model, plan, chosen, ranges, levels, room) for plan in plans]
        programs = [portable_program(graph, options) for graph in graphs]
        binaries.append(write_binary(programs, BinaryInfo(weight_sharing=True), compact=True))
        ends.append(([program.name for program in programs], programs[0].updateable_statics))
        _tell(progress, "rounding weights, writing graphs", number / count)
    return binaries, ends


def _check_adapters(adapters: Sequence[Adapter], model: Llama) -> None:
    shapes = Llama.shapes(model.config)
    names: set[str] = set()
    for adapter in adapters:
        if not isinstance(adapter, Adapter):
            raise InvalidArgument(f"adapters has {shown(adapter)}; expected what load_adapter returns")
        if adapter.name in names:
            raise InvalidArgument(f"two adapters are named {adapter.name!r}; give another name to load_adapter")
        names.add(adapter.name)
        for name, thin in adapter.matrices.items():
            if shapes.get(name) != (len(thin.up), thin.down.shape[-1]):
                raise InvalidArgument(
                    f"adapter {adapter.name!r} is another model's: its {name!r} is"
                    f" [{len(thin.up)}, {thin.down.shape[-1]}]; expected {list(shapes.get(name, ()))}"
                )


def _tell(progress: Progress | None, what: str, done: float) -> None:
    if progress is not None:
        progress(what, done)


def _checked_native(native: bool | None, concat: bool, config: LlamaConfig) -> bool:
    """Native unless told otherwise, heads have another size, or Concat puts new tokens behind the cache."""
    if native and concat:
        raise InvalidArgument("native_kv and concat_kv; a native cache takes new tokens by ScatterElements only")
    fits = sizes_problem(CONTEXT_MULTIPLE, config.head_dim) is None
    return fits and not concat if native is None else native


def _own_context(config: LlamaConfig) -> int:
    """The tokens that a model was made for, within reason, and in the multiples that any cache can have."""
    most = min(config.context, _LONGEST_BY_DEFAULT, config.window or config.context)
    return most - most % CONTEXT_MULTIPLE or most


def _checked_ar(ar: object) -> tuple[int, ...]:
    numbers = [whole_number(item) for item in items_of(ar, 64) or ()]
    if not numbers or any(number is None or not 1 <= number <= _MOST_AR for number in numbers):
        raise InvalidArgument(f"ar is {shown(ar)}; expected numbers of tokens, such as (128, 32, 1)")
    return tuple(sorted({number for number in numbers if number is not None}, reverse=True))


def _checked_contexts(context: object) -> tuple[int, ...]:
    single = whole_number(context)
    numbers = [single] if single is not None else [whole_number(item) for item in items_of(context, 16) or ()]
    if not numbers or any(number is None or number < 1 for number in numbers):
        raise InvalidArgument(f"context is {shown(context)}; expected a number of tokens, or some")
    return tuple(sorted({number for number in numbers if number is not None}))


def _check_sizes(model: Llama, length: int, ar: Sequence[int], *, native: bool, native_out: bool) -> None:
    window = model.config.window
    if window is not None and length > window:
        raise InvalidArgument(
            f"context is {length}; the model has layers that see {window} tokens only, and graphs show all layers"
            f" the same tokens: export it with a context of up to {window}"
        )
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


def _checked_wide(wide: object, precision: Precision, *, compensates: bool) -> list[str]:
    """The kinds of weights that are wide; by default those that gain most, where weights are rounded with care."""
    if isinstance(wide, str) and wide == "auto":
        exact = precision.weight_bits != _NARROW and precision.activation.bits == 16
        return sorted(WIDE_BY_DEFAULT) if exact and compensates else []
    kinds = items_of(wide, len(INPUTS))
    if kinds is None or not set(kinds) <= set(INPUTS):
        raise InvalidArgument(f"wide is {shown(wide)}; expected auto, none or some of {', '.join(INPUTS)}")
    return sorted({str(kind) for kind in kinds})


def _checked_parts(parts: object, model: Llama) -> int:
    count = whole_number(parts)
    if count is None or not 1 <= count <= model.config.layers:
        raise InvalidArgument(f"parts is {shown(parts)}; expected 1 to {model.config.layers}, a layer each")
    return count


def _compensates(rounding: object, model: Llama) -> bool:
    if rounding is None:
        return sum(weight.size for weight in model.weights.values()) <= MOST_CAREFUL
    if rounding not in ("nearest", "compensated"):
        raise InvalidArgument(f"rounding is {shown(rounding)}; expected nearest, compensated or None")
    return rounding == "compensated"


def _pattern(pattern: str | None, precision: Precision) -> str:
    if pattern is None:
        return "C" if precision.activation.bits == 8 else ""
    word = pattern.upper() if isinstance(pattern, str) else pattern
    if word == "NONE":
        return ""
    if word not in _PATTERNS:
        raise InvalidArgument(f"masked_softmax is {shown(pattern)}; expected A, B, C, none or None")
    if word == "A":
        log.warning(
            "masked softmax A keeps what is 0 in the mask, and Genie writes 65535 there: Genie's text would be"
            " rubbish, without an error. Take B or C for Genie"
        )
    return word


def _completed(model: Llama, ranges: Ranges) -> Ranges:
    table = model.table
    return {**ranges, "embed_table": (float(np.min(table)), float(np.max(table)))}
