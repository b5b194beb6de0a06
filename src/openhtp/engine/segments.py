"""Which steps of a program are computed as one segment, and which nodes of the optimised model belong to it.

A program may yield after every step. On this machine a cut costs 7 to 20 microseconds, more where large values
cross, and the device's own loop empties the caches. So several steps are joined to a segment, and cuts are few:
about one per millisecond of measured time, and about a dozen at most. More would not help, as the longest segment
of a network is often a single convolution. They are placed at the ends of steps that leave little data behind.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openhtp.ops import Work
from openhtp.program.htp_program import HtpProgram

MAX_SEGMENTS = 13
# Rough rates of one CPU core, only used to decide how many segments there are and where. What counts is their
# ratio, chosen so that the segments of convolutional networks come out alike; the sum is high by about a factor
# of three, so that a segment of this many estimated seconds takes a millisecond or so.
_INTEGER_MACS_PER_SECOND = 3e11
_FLOAT_MACS_PER_SECOND = 4e10
_VECTOR_OPS_PER_SECOND = 1e9
_BYTES_PER_SECOND = 1e10
_SEGMENT_SECONDS = 2.0e-3
# How far from its ideal place a cut may be, in segments: where several places are as good, and where none is.
_NEAR = 0.25
_FARTHEST = 0.5
# Depthwise convolutions do so few products per result that matrix kernels do not help them.
_SHALLOW_DEPTH = 32
_SHALLOW_MACS_PER_SECOND = 4e10


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of nodes, with the values it takes from before and gives to later or to the client."""

    nodes: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def node_seconds(work: Work, *, integer: bool) -> float:
    """About how long a node takes on this machine."""
    rate = _INTEGER_MACS_PER_SECOND if integer else _FLOAT_MACS_PER_SECOND
    if work.macs < _SHALLOW_DEPTH * work.vector_ops:
        rate = _SHALLOW_MACS_PER_SECOND
    moved = (work.bytes_read + work.bytes_written) / _BYTES_PER_SECOND
    # Added up: the kernels multiply first and requantize what they have got afterwards.
    return work.macs / rate + work.vector_ops / _VECTOR_OPS_PER_SECOND + moved


def step_seconds(program: HtpProgram) -> list[float]:
    """Estimates for all steps."""
    return [
        sum(
            node_seconds(node.work, integer=program.tensors[node.outputs[0]].dtype.bits == 8)
            for kernel in program.kernels_of(step)
            for node in kernel.nodes
        )
        for step in program.steps
    ]


def crossing_bytes(program: HtpProgram) -> list[int]:
    """For the end of every step, bytes of what was made before and is read later.

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


def segment_count(seconds: float) -> int:
    """How many segments work of this length is cut into."""
    return max(1, min(MAX_SEGMENTS, round(seconds / _SEGMENT_SECONDS)))


def used_nodes(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """The nodes that an output depends on: a segment of others would have nothing to give, and cannot run."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def choose_cuts(seconds: Sequence[float], crossing: Sequence[int], count: int) -> list[int]:
    """After how many steps to cut, for about ``count`` segments of similar estimated time.

    Both lists have one entry for each step. Near each ideal place the cut goes where the fewest bytes cross; where
    no step ends that near, to the nearest end, if that is less than halfway to another ideal place.
    """
    done = [0.0, *itertools.accumulate(seconds)]
    each = done[-1] / count
    cuts: list[int] = []
    for index in range(1, count):
        left = range(cuts[-1] + 1 if cuts else 1, len(seconds))
        away = {place: abs(done[place] - each * index) for place in left}
        near = [place for place in away if away[place] <= _NEAR * each]
        if near:
            cuts.append(min(near, key=lambda place: (crossing[place - 1], away[place])))
            continue
        nearest = min(away, key=lambda place: away[place], default=0)
        if nearest and away[nearest] <= _FARTHEST * each:
            cuts.append(nearest)
    return cuts


def cut(
    nodes: Sequence[Any], outputs: Sequence[str], step_of: Callable[[Any], int | None], cuts: Sequence[int]
) -> list[Segment]:
    """Deal the nodes of a model out to segments, each with the steps between two cuts.

    ``step_of`` tells which step a node was made from. Where the runtime made one node of two steps it belongs to
    the later one; a node that it made up itself goes with what it reads or, reading nothing, with what reads it.
    """
    numbers: dict[int, int] = {}
    made: dict[str, int] = {}
    for place, node in enumerate(nodes):
        step = step_of(node)
        known = [made[name] for name in node.input if name in made]
        if step is not None:
            known.append(bisect.bisect_right(cuts, step))
        if known:
            numbers[place] = max(known)
            made.update((name, numbers[place]) for name in node.output if name)
    needed: dict[str, int] = {}
    for place in reversed(range(len(nodes))):
        node = nodes[place]
        if place not in numbers:
            numbers[place] = min((needed[name] for name in node.output if name in needed), default=len(cuts))
        for name in node.input:
            needed[name] = min(needed.get(name, len(cuts)), numbers[place])
    parts: list[list[Any]] = [[] for _ in range(len(cuts) + 1)]
    for place, node in enumerate(nodes):
        parts[numbers[place]].append(node)
    return _with_borders([tuple(part) for part in parts if part], outputs)


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
    last_read = {name: place for place, segment in enumerate(segments) for name in segment.inputs}
    slot_of: dict[str, int] = {}
    sizes: list[int] = []
    free: list[int] = []
    for place, segment in enumerate(segments):
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
        free += [slot for name, slot in slot_of.items() if last_read[name] == place]
    return slot_of, sizes
