"""Which steps of a program are computed as one segment, and which nodes of the optimised model belong to it.

A program may yield after every step, and inside a long one between the tiles that the compiler made of it. On this
machine a cut costs some 15 microseconds where the device's loop comes round at it, mostly because computing has
displaced the code of the cut from the caches, and one or none where segments follow each other in C (decision
038). So steps are joined to segments of at most 3.2 % of the whole or 0.45 ms, whichever is longer. A convolution,
a product or a sequence that takes about as long, or longer, is computed in strips (``strips.py``).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.tensor import TensorKind
from openhtp.engine.strips import CHANNEL_BLOCK, COLUMN_BLOCK
from openhtp.ops import Work, op_of
from openhtp.program.htp_program import HtpNode, HtpProgram, Step

MAX_SEGMENTS = 256
# Rates of one CPU core with VNNI, measured on convolutional networks; only used to decide where to cut, so what
# counts is their ratio.
_INTEGER_MACS_PER_SECOND = 2.6e11
_FLOAT_MACS_PER_SECOND = 5.7e10
_VECTOR_OPS_PER_SECOND = 8.5e9
# Pooling: comparing or adding what lies side by side.
_WINDOW_OPS_PER_SECOND = 6e10
_BYTES_PER_SECOND = 3e10
_CACHED_BYTES = 8 << 20
# Weights are read once, from memory that is farther away; 8-bit products are fast, and wait for it the longer.
_WEIGHT_BYTES_PER_SECOND = 1.5e10
_INTEGER_WEIGHT_BYTES_PER_SECOND = 8e9
# An 8-bit convolution that gathers more bytes at once takes longer than in pieces.
_PUT_TOGETHER_BYTES = 8 << 20
# The pixels under a window are gathered before they are multiplied: seconds per piece of memory, and per byte.
_PIECES_PER_SECOND = 1e9
# No segment may take longer than the first, less the way there and back of an urgent graph or an abort, which is a
# notable part of a short program; a segment shorter than the third is not worth its cut.
_LONGEST_SHARE = 0.032
_WAY_SECONDS = 1.1e-4
_SEGMENT_SECONDS = 4.5e-4
# A strip of rows is shorter: its time differs most from machine to machine.
_STRIP_SHARE = 0.7
# Blocks of channels that a part of a float convolution has at the least. The runtime computes up to four at a time
# from what it has just read: one by itself takes 0.65 to 1.35 times as long as two together; four to six, in parts
# of two or three, take 0.99 to 1.13 times as long as in one piece. In a program that is not short, a convolution
# that would keep an urgent graph waiting for much longer than a segment may is cut into single ones all the same.
_LEAST_BLOCKS = 2
_MUCH_TOO_LONG = 1.5
# The cost of a cut, without that of the bytes that cross it.
_CUT_SECONDS = 1.5e-5
# Where each filter has one channel, matrix kernels do not help.
_DEPTHWISE_MACS_PER_SECOND = 1.5e10
# Sums of 8-bit products become 8 bits again, those of a block at once; channels beyond whole blocks take longer.
_REQUANTIZED_PER_SECOND = 2.5e9
_BLOCK_CHANNELS = 16
# By kind of op, factors to the time that follows from its work, in 8 bits and in floats: there is no integer
# kernel for it, or it moves single elements. Fitted to 950 segments of 24 networks that are not ours and five of
# ours.
_SLOWER = {
    "add": (1.5, 1.3),
    "affine": (2.4, 1.0),
    "batchnorm": (1.5, 2.3),
    "concat": (2.2, 1.5),
    "divide": (0.65, 0.55),
    "fully_connected": (1.4, 1.1),
    "matmul": (1.8, 1.2),
    "pool": (1.8, 1.9),
    "reduce": (12.0, 2.5),
    "resize": (4.6, 3.0),
    "transpose": (5.0, 1.2),
}
_AS_SAID = (1.0, 1.0)
# A convolution that makes more pixels than it reads: it has no integer kernel, and adds results up in memory.
_UPSAMPLING = (4.0, 2.1)
# The states of a sequence are a row each, too few to be multiplied fast.
_SEQUENCE = (4.4, 4.4)
# To begin a node; in 8 bits most are several of the runtime's.
_BEGIN_SECONDS = (1e-5, 4e-6)
# A convolution of a picture first gathers the few channels of its pixels.
_PICTURE_CHANNELS = 4
_PICTURE = (3.0, 1.3)
# A depthwise convolution in 8 bits looks up where each pixel under its window lies.
_LOOKED_UP_PER_SECOND = 4e8
# In 8 bits, the factors of channels are applied pixel by pixel, each time by a call of its own.
_SCALED_PIXELS_PER_SECOND = 3e7


@dataclass(frozen=True, slots=True)
class ReadPattern:
    """The data that an op reads for one result: channels at a time, and pieces of memory to gather.

    Also the bytes of its weights and the number of its sums; pooling has neither, nor channels to add up.
    """

    depth: int = 0
    pieces: int = 0
    weight_bytes: int = 0
    sums: int = 0


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a program is cut: after which steps, and inside which steps after how many rows or channels.

    The inputs of the cut steps in ``apart`` are put in order by a segment of its own before them.
    """

    after: tuple[int, ...] = ()
    ends: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()

    @property
    def segments(self) -> int:
        """How many segments that makes."""
        return 1 + len(self.after) + sum(map(len, self.ends.values())) + len(self.apart)

    def segments_from(self, step: int) -> int:
        """How many segments begin with this step, if any does."""
        return 1 + len(self.ends.get(step, ())) + (step in self.apart)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of nodes, with the values it takes from before and gives to later or to the client."""

    nodes: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def node_seconds(work: Work, *, integer: bool, window: ReadPattern | None = None) -> float:
    """About how long a node takes on this machine."""
    rate = _INTEGER_MACS_PER_SECOND if integer else _FLOAT_MACS_PER_SECOND
    vector_rate, gathered, weights = _VECTOR_OPS_PER_SECOND, 0.0, 0
    if window is not None:
        weights = window.weight_bytes
        if integer:
            gathered = window.pieces / _PIECES_PER_SECOND + window.pieces * window.depth / _BYTES_PER_SECOND
            gathered += window.sums / _REQUANTIZED_PER_SECOND
        if window.depth == 0:
            vector_rate = _WINDOW_OPS_PER_SECOND
        elif window.depth == 1:
            rate = _DEPTHWISE_MACS_PER_SECOND
    nbytes = work.bytes_read + work.bytes_written - weights
    # Data that no cache holds takes twice as long.
    moved = (nbytes + max(0, nbytes - _CACHED_BYTES)) / _BYTES_PER_SECOND
    # Added up: the kernels multiply first and requantize what they have got afterwards.
    computed = work.macs / rate + work.vector_ops / vector_rate
    weight_rate = _INTEGER_WEIGHT_BYTES_PER_SECOND if integer else _WEIGHT_BYTES_PER_SECOND
    return computed + moved + weights / weight_rate + gathered


def step_seconds(program: HtpProgram) -> list[float]:
    """Estimates for all steps."""
    return [
        sum(_seconds(program, node) for kernel in program.kernels_of(step) for node in kernel.nodes)
        for step in program.steps
    ]


def _seconds(program: HtpProgram, node: HtpNode) -> float:
    op, result = op_of(node), program.tensors[node.outputs[0]]
    integer, window = result.dtype.bits == 8, _window(program, node)
    slower = _SLOWER.get(op.kind or "", _AS_SAID)
    if op.kind == "conv" and _adds_pixels(program, node):
        slower = _UPSAMPLING
    elif op.name == "Lstm":
        slower = _SEQUENCE
    elif op.kind == "conv" and window is not None and window.pieces and window.depth <= _PICTURE_CHANNELS:
        slower = _PICTURE
    seconds = slower[0 if integer else 1] * node_seconds(node.work, integer=integer, window=window)
    if integer and window is not None and window.depth == 1:
        taps = math.prod(program.tensors[node.inputs[1] or ""].shape[:-2])
        seconds += taps * math.prod(result.shape[:-1]) / _LOOKED_UP_PER_SECOND
    if integer and op.kind == "batchnorm":
        seconds += math.prod(result.shape[:-1]) / _SCALED_PIXELS_PER_SECOND
    return seconds + _BEGIN_SECONDS[0 if integer else 1]


def _adds_pixels(program: HtpProgram, node: HtpNode) -> bool:
    source, result = (
        program.tensors[name].shape for name in (node.inputs[0], node.outputs[0]) if name is not None
    )
    return math.prod(result[:-1]) > math.prod(source[:-1])


def _window(program: HtpProgram, node: HtpNode) -> ReadPattern | None:
    op = op_of(node)
    if op.weights is None:
        looks_around = any(axis.reach > 1 for axis in op.tile(program.source.resolved(node)))
        return ReadPattern() if looks_around else None
    if node.inputs[1] is None:
        return None
    weights = program.tensors[node.inputs[1]]
    *sizes, depth, _ = weights.shape
    taps = math.prod(sizes)
    result = program.tensors[node.outputs[0]].shape
    pieces = 0 if taps == 1 or depth == 1 else taps * math.prod(result[:-1])
    channels = result[-1]
    if channels % _BLOCK_CHANNELS:
        channels += min(channels, _BLOCK_CHANNELS)
    return ReadPattern(depth, pieces, weights.nbytes, math.prod(result[:-1]) * channels)


def crossing_bytes(program: HtpProgram) -> list[int]:
    """For the end of every step, bytes of the values that are made before and read later.

    What the client reads or writes is in its own memory and counts for nothing.
    """
    change = [0] * len(program.kernels)
    for buffer in program.buffers:
        kind = program.tensors[buffer.tensor].kind
        if not kind.is_input and not kind.is_output:
            change[buffer.first] += buffer.nbytes
            change[buffer.last] -= buffer.nbytes
    after = list(itertools.accumulate(change))
    return [after[step.end - 1] for step in program.steps]


def longest_seconds(seconds: float) -> float:
    """How long a segment of work of this length may be."""
    return max(seconds * _LONGEST_SHARE - _WAY_SECONDS, _SEGMENT_SECONDS)


def cuts_of(program: HtpProgram) -> Cuts:
    """Where a program is cut. The cuts depend on the program only, so that others can compute them, too.

    Dynamic dimensions count as large as they may become.
    """
    seconds = step_seconds(program)
    longest = longest_seconds(sum(seconds))
    ends = {}
    for number, (step, time) in enumerate(zip(program.steps, seconds, strict=True)):
        node = _cut_node(program, step)
        by_channels = op_of(node).name == "Conv2d" and program.tensors[node.outputs[0]].dtype.is_float
        in_rows = op_of(node).kind in _CONVOLUTIONS and not by_channels
        limit = longest * (_STRIP_SHARE if in_rows else 1.0)
        in_cache = _pieces_in_cache(program, step)
        if (time > limit or in_cache > 1) and (possible := _possible_ends(program, step)):
            first = _first_seconds(program, step) / time
            pieces = max(-(-time // limit), in_cache)
            if by_channels:
                pieces = min(pieces, (len(possible) + 1) // _least_blocks(time, longest))
            if pieces > 1:
                ends[number] = even_ends(possible, pieces, first)
    apart = frozenset(step for step in ends if _is_apart(program, step, ends))
    return Cuts(tuple(choose_cuts(seconds, crossing_bytes(program), longest, ends)), ends, apart)


def _least_blocks(seconds: float, longest: float) -> int:
    """How many blocks of channels each part has at the least of a float convolution that takes so long."""
    return 1 if longest > _SEGMENT_SECONDS and seconds > _MUCH_TOO_LONG * longest else _LEAST_BLOCKS


def _first_seconds(program: HtpProgram, step: Step) -> float:
    """How much longer the first piece takes: pieces of a sequence have the same weights, cached after it."""
    node = _cut_node(program, step)
    if op_of(node).name != "Lstm":
        return 0.0
    inputs = (program.tensors[name] for name in node.inputs if name is not None)
    return sum(spec.nbytes for spec in inputs if spec.kind is TensorKind.STATIC) / _BYTES_PER_SECOND


def _is_apart(program: HtpProgram, step: int, ends: Collection[int]) -> bool:
    """Whether the inputs of a cut step must be put in order first, and no other segment can do that."""
    node = _cut_node(program, program.steps[step])
    if step == 0:
        return program.tensors[node.outputs[0]].dtype.is_float or _is_float_inside(program, node)
    before = _cut_node(program, program.steps[step - 1])
    return step - 1 in ends and any(_is_float_inside(program, each) for each in (before, node))


def _is_float_inside(program: HtpProgram, node: HtpNode) -> bool:
    """Whether an 8-bit convolution is computed in floats."""
    return node.op == "TransposeConv2d" and program.tensors[node.outputs[0]].dtype.bits == 8


def _pieces_in_cache(program: HtpProgram, step: Step) -> int:
    """The number of pieces of a convolution whose gathered data stays in the cache."""
    node = _cut_node(program, step)
    window = _window(program, node)
    if window is None or program.tensors[node.outputs[0]].dtype.bits != 8:
        return 1
    return -(-window.pieces * window.depth // _PUT_TOGETHER_BYTES)


def _cut_node(program: HtpProgram, step: Step) -> HtpNode:
    return program.kernels[step.end - 1].nodes[0]


def _possible_ends(program: HtpProgram, step: Step) -> Sequence[int]:
    """Where a step may be left: after rows where the runtime computes channel-last, after channels in floats.

    Products with constant weights, after some columns; sequences, after each step in time.
    """
    if program.source.is_dynamic:
        return ()
    node = _cut_node(program, step)
    op = op_of(node)
    tensors = [program.tensors[name] for name in (*node.inputs[:2], *node.outputs[:1]) if name is not None]
    source, result = tensors[0], tensors[-1]
    if op.name == "Lstm":
        return _possible_times(program, node)
    if op.kind in _PRODUCTS:
        constant = len(tensors) > 2 and tensors[1].kind is TensorKind.STATIC and tensors[1].rank == 2
        return range(COLUMN_BLOCK, result.shape[-1], COLUMN_BLOCK) if constant else ()
    if op.weights is None or not source.shape[0] == result.shape[0] == 1:
        return ()
    if op.name == "TransposeConv2d":
        whole = tensors[1].shape[2] == source.shape[-1] and node.params.get("group", 1) == 1
        return range(CHANNEL_BLOCK, result.shape[-1], CHANNEL_BLOCK) if whole else ()
    if all(spec.dtype.is_fixed_point and spec.dtype.bits == 8 for spec in tensors):
        return step.rows
    if (
        op.name != "Conv2d"
        or not all(spec.dtype.is_float for spec in tensors)
        or tensors[1].shape[2] != source.shape[-1]
    ):
        return ()  # of a convolution in groups, all filters of a group belong together
    return range(CHANNEL_BLOCK, result.shape[-1], CHANNEL_BLOCK)


_PRODUCTS = {"matmul", "fully_connected"}
_CONVOLUTIONS = {"conv", "depthwise"}


def _possible_times(program: HtpProgram, node: HtpNode) -> Sequence[int]:
    """The steps of a sequence after which it may be left."""
    shape = program.tensors[node.inputs[0] or ""].shape
    time_major = program.source.resolved(node).params["time_major"]
    return range(1, shape[0 if time_major else 1]) if len(shape) == 3 else ()


def even_ends(ends: Sequence[int], pieces: float, first: float = 0.0) -> tuple[int, ...]:
    """The rows, among those at which a step may be left, that cut it into about ``pieces`` pieces of equal time.

    ``first`` is the part of the step's time that the first piece takes whatever its length.
    """
    tiles = len(ends) + 1
    count = min(int(pieces), tiles)
    rows = (tiles * (part / count - first) / (1 - first) for part in range(1, count))
    return tuple(ends[max(round(row), number) - 1] for number, row in enumerate(rows, 1))


def used_nodes(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """The nodes that an output depends on: a segment without such nodes has no results, and cannot run."""
    wanted, used = set(outputs), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            used.append(node)
    return used[::-1]


def choose_cuts(
    seconds: Sequence[float], crossing: Sequence[int], longest: float, alone: Collection[int] = ()
) -> list[int]:
    """After how many steps to cut, so that no segment takes longer than ``longest``, at the least cost.

    Both lists have one entry for each step; a cut costs more, the more bytes cross. A step that is longer is a
    segment of its own, and so is each in ``alone``.
    """
    done = [0.0, *itertools.accumulate(seconds)]
    cost = [0.0, *(_CUT_SECONDS + nbytes / _BYTES_PER_SECOND for nbytes in crossing)]
    best, before = [0.0] + [math.inf] * len(seconds), [0] * (len(seconds) + 1)
    for end in range(1, len(seconds) + 1):
        for begin in reversed(range(end)):
            if begin < end - 1 and (done[end] - done[begin] > longest or begin in alone or end - 1 in alone):
                break
            if best[begin] + cost[begin] < best[end]:
                best[end], before[end] = best[begin] + cost[begin], begin
    cuts = []
    last = before[-1]
    while last:
        cuts.append(last)
        last = before[last]
    return cuts[::-1]


def cut(
    nodes: Sequence[Any],
    outputs: Sequence[str],
    step_of: Callable[[Any], int | None],
    cuts: Sequence[int],
    run_of: Callable[[Any], str | None] = lambda node: None,
) -> list[Segment]:
    """Deal the nodes of a model out to segments, each with the steps between two cuts.

    ``step_of`` tells which step a node was made from. Where the runtime made one node of two steps it belongs to
    the later one; a node that it made up itself goes with what it reads or, reading nothing, with what reads it.
    Nodes of a run of their own, which ``run_of`` names, are a segment.
    """
    steps = _own_steps(nodes, step_of, run_of)
    numbers: dict[int, int] = {}
    segment_of: dict[str, int] = {}
    for index, node in enumerate(nodes):
        known = [segment_of[name] for name in node.input if name in segment_of]
        if (step := steps[index]) is not None:
            known.append(bisect.bisect_right(cuts, step))
        if known:
            numbers[index] = max(known)
            segment_of.update((name, numbers[index]) for name in node.output if name)
    needed: dict[str, int] = {}
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        if index not in numbers:
            numbers[index] = min((needed[name] for name in node.output if name in needed), default=len(cuts))
        for name in node.input:
            needed[name] = min(needed.get(name, len(cuts)), numbers[index])
    parts: list[list[Any]] = [[] for _ in range(len(cuts) + 1)]
    for index, node in enumerate(nodes):
        parts[numbers[index]].append(node)
    return _with_borders([tuple(part) for part in _runs_apart(parts, run_of)], outputs)


def _own_steps(
    nodes: Sequence[Any], step_of: Callable[[Any], int | None], run_of: Callable[[Any], str | None]
) -> list[int | None]:
    """The step of each node; what a run reads is no later than the run.

    Of what two steps compute alike the runtime makes one node, and names it after either.
    """
    steps: list[int | None] = [None] * len(nodes)
    wanted: dict[str, int] = {}
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        step = step_of(node)
        if step is None:
            continue
        steps[index] = step = min([step, *(wanted[name] for name in node.output if name in wanted)])
        if run_of(node) is not None:
            wanted |= {name: min(wanted.get(name, step), step) for name in node.input}
    return steps


def _runs_apart(parts: Sequence[Sequence[Any]], run_of: Callable[[Any], str | None]) -> list[list[Any]]:
    """The parts, and runs as parts of their own.

    Other nodes join the part before or after a run: a cut for them alone is not worth it.
    """
    groups: list[list[Any]] = []
    plain: list[Any] | None = None  # the last group that is no run
    since: set[str] = set()  # made after that
    later: list[Any] = []  # what is to go to the next such group
    for part in parts:
        has_run = any(run_of(node) is not None for node in part)
        met = False
        for run, grouped in itertools.groupby(part, run_of):
            group = list(grouped)
            reads = {name for node in group for name in node.input}
            if run is not None:
                if later and reads.intersection(name for node in later for name in node.output):
                    groups.append(later)
                    later = []
                groups.append(group)
                met = True
            elif has_run and met:
                later += group
            elif has_run and plain is not None and not reads & since:
                plain += group
                continue
            else:
                plain, later, since = [*later, *group], [], set()
                groups.append(plain)
                continue
            since.update(name for node in group for name in node.output)
    return [*groups, later] if later else groups


def _with_borders(parts: Sequence[tuple[Any, ...]], outputs: Sequence[str]) -> list[Segment]:
    segments = []
    for index, part in enumerate(parts):
        inside = {name for node in part for name in node.output if name}
        read = dict.fromkeys(name for node in part for name in node.input if name)
        later = {name for other in parts[index + 1 :] for node in other for name in node.input}
        segments.append(
            Segment(
                nodes=part,
                inputs=tuple(name for name in read if name not in inside),
                outputs=tuple(
                    name for node in part for name in node.output if name and (name in later or name in outputs)
                ),
            )
        )
    return segments


def share_memory(segments: Sequence[Segment], nbytes: Mapping[str, int]) -> tuple[dict[str, int], list[int]]:
    """Which slot each value between segments gets, and the size of each slot.

    Values that are not alive at the same time share a slot: memory that was just read is still in the cache.
    """
    last_read = {name: number for number, segment in enumerate(segments) for name in segment.inputs}
    slot_of: dict[str, int] = {}
    sizes: list[int] = []
    free: list[int] = []
    for number, segment in enumerate(segments):
        for name in segment.outputs:
            if name not in nbytes:
                continue
            fitting = [slot for slot in free if sizes[slot] >= nbytes[name]]
            slot = min(fitting, key=lambda slot: sizes[slot]) if fitting else free[-1] if free else len(sizes)
            if slot == len(sizes):
                sizes.append(0)
            else:
                free.remove(slot)
            sizes[slot] = max(sizes[slot], nbytes[name])
            slot_of[name] = slot
        # Freed only now: a segment must not write where it still reads.
        free += [slot for name, slot in slot_of.items() if last_read.get(name) == number]
    return slot_of, sizes
