"""The part of a graph between two of its nodes."""

from __future__ import annotations

import difflib
from collections import defaultdict

import msgspec

from openhtp.core.errors import BadProfile
from openhtp.records.schematic import FIRST_NODE, QnnOp, Schematic

_LONGEST = 200


def zoomed(schematic: Schematic, start: str, end: str) -> Schematic:
    """What lies on the ways from one node to another, both included; names are the graph's or the model's.

    Raises:
        BadProfile: a name is no node of the graph, or no way leads from the first to the second.
    """
    first, last = _find(schematic, "zoom_start", start), _find(schematic, "zoom_end", end)
    after, before = _links(schematic)
    kept = _reach(first, after) & _reach(last, before)
    if not kept:
        raise BadProfile(
            f"zoom_end {end!r} does not depend on zoom_start {start!r} in graph {schematic.graph!r};"
            " give them in the order in which data flows"
        )
    ops = tuple(op for op in schematic.ops if op.owner in kept)
    running = [op for op in ops if op.executed]
    begin, finish = min((op.start for op in running), default=0), max((op.end for op in running), default=0)
    return msgspec.structs.replace(
        schematic,
        nodes=tuple(n for n in schematic.nodes if n.number in kept or n.number < FIRST_NODE or n.into in kept),
        ops=ops,
        regions=tuple(region for region in schematic.regions if region.start < finish and region.end > begin),
    )


def _find(schematic: Schematic, option: str, name: str) -> int:
    """The node that computes what is called so."""
    nodes = [node for node in schematic.nodes if node.number >= FIRST_NODE]
    for node in nodes:
        if node.name == name:
            return _home(node)
    for node in nodes:
        if name in node.framework:
            return _home(node)
    near = difflib.get_close_matches(name[:_LONGEST], [node.name for node in nodes], 3, 0.4)
    hint = f"; near it: {', '.join(map(repr, near))}" if near else ""
    raise BadProfile(
        f"{option} is {name[:_LONGEST]!r}; graph {schematic.graph!r} has no node of that name among its"
        f" {len(nodes)}{hint}"
    )


def _home(node: QnnOp) -> int:
    return node.number if node.into is None else node.into


def _links(schematic: Schematic) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For each node those that read its results, and those whose results it reads."""
    after: dict[int, set[int]] = defaultdict(set)
    before: dict[int, set[int]] = defaultdict(set)
    owners = {op.id: op.owner for op in schematic.ops}
    for op in schematic.ops:
        for maker in op.inputs:
            if maker in owners:
                after[owners[maker]].add(op.owner)
                before[op.owner].add(owners[maker])
    return after, before


def _reach(begin: int, links: dict[int, set[int]]) -> set[int]:
    found, pending = {begin}, [begin]
    while pending:
        new = links[pending.pop()] - found
        found |= new
        pending += new
    return found
