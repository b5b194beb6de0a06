"""Where to cut an optimised model into segments, so that a program has points at which it can yield.

A cut costs 7 to 20 microseconds, more where large values cross, and the device's own loop empties the caches. So
cuts are few: about one per millisecond of measured time, and about a dozen at most. More would not help, as the
longest segment of a network is often a single convolution. They are placed where little data crosses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openhtp.ops import Work
from openhtp.program.program import Program

MAX_SEGMENTS = 13
# Rough rates of one CPU core, only used to decide how many segments there are and where. What counts is their
# ratio, chosen so that the segments of convolutional networks come out alike; the sum is high by about a factor
# of three, so that a segment of this many estimated seconds takes a millisecond or so.
_INTEGER_MACS_PER_SECOND = 3e11
_FLOAT_MACS_PER_SECOND = 4e10
_VECTOR_OPS_PER_SECOND = 1e9
_BYTES_PER_SECOND = 1e10
_SEGMENT_SECONDS = 2.0e-3
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


def program_seconds(program: Program) -> list[float]:
    """Estimates for all nodes."""
    return [
        node_seconds(node.work, integer=node.call.outputs[0].dtype.bits == 8) if node.call.outputs else 0.0
        for node in program.nodes
    ]


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


def cut(
    nodes: Sequence[Any],
    outputs: Sequence[str],
    seconds: Sequence[float],
    count: int,
    nbytes: Callable[[str], int],
) -> list[Segment]:
    """Cut nodes (in running order) into about ``count`` segments of similar estimated time.

    ``seconds`` has one estimate per node and ``nbytes`` tells the size of a value; near each ideal place the cut
    goes where the fewest bytes cross.
    """
    crossing = _crossing_bytes(nodes, nbytes)
    done, total = [0.0], sum(seconds)
    for each in seconds:
        done.append(done[-1] + each)
    places = [0]
    for index in range(1, count):
        ideal = total * index / count
        slack = 0.25 * total / count
        near = [place for place in range(places[-1] + 1, len(nodes)) if abs(done[place] - ideal) <= slack]
        if near:
            places.append(min(near, key=lambda place: (crossing[place], abs(done[place] - ideal))))
    places.append(len(nodes))
    parts = [tuple(nodes[begin:end]) for begin, end in itertools.pairwise(places)]
    return _with_borders(parts, outputs)


def _crossing_bytes(nodes: Sequence[Any], nbytes: Callable[[str], int]) -> list[int]:
    """Bytes of values made before each place and read at or after it."""
    made = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    last_use: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in node.input:
            if name in made:
                last_use[name] = place
    crossing = [0] * (len(nodes) + 1)
    for name, last in last_use.items():
        for place in range(made[name] + 1, last + 1):
            crossing[place] += nbytes(name)
    return crossing


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
