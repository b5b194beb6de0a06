"""Remedies for contexts that do not fit: another order, room kept for I/O, shared buffers, graph switching.

Ways are tried from the least change to the most, each in a ledger like the device's. The first that works wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from openhtp.memory.planning import (
    Act,
    ContextPlan,
    Hold,
    LetGo,
    Load,
    MapIo,
    MemoryPlan,
    io_after_each,
    loads_then_io,
    plan_memory,
)

_PAGE = 4096
# Orders of so few contexts are searched exactly; of more, the largest goes first.
_SEARCHED = 12
_STEPS = 20_000
GROUP = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAdvice:
    """A plan that works (or the last that was tried), what to do for it in words, and by what kind of way."""

    plan: MemoryPlan
    way: str
    words: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether anything was found."""
        return self.plan.fits


@dataclass(frozen=True, slots=True)
class _Remedy:
    name: str
    contexts: tuple[ContextPlan, ...]
    acts: tuple[Act, ...]
    words: tuple[str, ...]


def advise(
    contexts: Sequence[ContextPlan], acts: Sequence[Act] | None = None, *, most: int, limit: int
) -> MemoryAdvice:
    """The first way that works; if none does, the contexts as they are, loaded and mapped by ``acts``."""

    def attempt(way: _Remedy) -> MemoryPlan:
        return plan_memory(way.contexts, way.acts, most=most, limit=limit)

    as_given = tuple(contexts)
    plan = plan_memory(as_given, acts, most=most, limit=limit)
    if plan.fits:
        return MemoryAdvice(plan=plan, way="as given", words=("It fits as it is.",))
    for way in _remedies(as_given, plan, most, limit, attempt):
        attempted = attempt(way)
        if attempted.fits:
            return MemoryAdvice(plan=attempted, way=way.name, words=way.words)
    return MemoryAdvice(plan=plan, way="none", words=_hopeless(as_given, most, limit))


def _remedies(
    contexts: tuple[ContextPlan, ...],
    plan: MemoryPlan,
    most: int,
    limit: int,
    attempt: Callable[[_Remedy], MemoryPlan],
) -> Iterator[_Remedy]:
    estimated = tuple(replace(context, io_estimation=True) for context in contexts)
    keep_room = (
        "Give io_memory_estimation=True to every context.",
        "Register the buffers of each context before the next is made.",
    )
    yield _Remedy("I/O estimation", estimated, io_after_each(estimated), keep_room)
    yield from _dummies(contexts, plan, attempt)
    ordered = _packed(estimated, most, limit)
    first: tuple[str, ...] = keep_room
    if ordered != estimated:
        first = (f"Load in this order: {', '.join(context.name for context in ordered)}.", *keep_room)
        yield _Remedy("load order", ordered, io_after_each(ordered), first)
    grouped = tuple(replace(context, group=GROUP) for context in ordered)
    nbytes = max(context.needs.largest_spill_fill for context in contexts)
    share = (
        f"Let all contexts share a spill-fill buffer: register_multi_contexts with max_spill_fill_buffer={nbytes}"
        " for the first, and the first context for the others.",
    )
    if nbytes:
        yield _Remedy("spill-fill group", grouped, io_after_each(grouped), (*first, *share))
    yield from _switched(contexts, loads_then_io, most, limit, ())
    yield from _switched(estimated, io_after_each, most, limit, keep_room)
    if ordered != estimated:
        yield from _switched(ordered, io_after_each, most, limit, first)


def _dummies(
    contexts: tuple[ContextPlan, ...], plan: MemoryPlan, attempt: Callable[[_Remedy], MemoryPlan]
) -> Iterator[_Remedy]:
    """Push one context out of a domain whose buffers do not fit, by holding the room that it would take."""
    crowded = {failure.domain for failure in plan.failures if isinstance(failure.act, MapIo)}
    names = [context.name for context in contexts]
    for index, context in reversed(list(enumerate(contexts))):
        domain = plan.domain_of(context.name)
        before = [name for name in names[:index] if plan.domain_of(name) == domain]
        if domain not in crowded or not before:
            continue
        loads = tuple(Load(name) for name in names)
        so_far = attempt(_Remedy("", contexts, loads[:index], ()))
        left = so_far.domains[domain].left if domain is not None else 0
        # One page less than it needs is left over; the buffer goes once everything is loaded.
        nbytes = (left - context.weights_bytes - context.buffer_bytes) // _PAGE * _PAGE + _PAGE
        hold = Hold(before[-1], min(nbytes, left))
        rest = loads_then_io(contexts)[index:]
        acts = (*loads[:index], hold, *rest[: len(names) - index], LetGo(), *rest[len(names) - index :])
        words = (
            f"Before {context.name} is loaded, register a dummy buffer of {hold.nbytes} bytes in {hold.context}:"
            f" {context.name} then goes to another process domain.",
            "Free the dummy buffer when all contexts are loaded, then register buffers.",
        )
        yield _Remedy("dummy buffer", contexts, acts, words)


def _packed(contexts: tuple[ContextPlan, ...], most: int, limit: int) -> tuple[ContextPlan, ...]:
    """An order in which first fit finds a place for all of them, if there is one; otherwise the largest first."""
    largest_first = sorted(contexts, key=_whole, reverse=True)
    if len(contexts) > _SEARCHED:
        return tuple(largest_first)
    domains: list[list[ContextPlan]] = [[] for _ in range(most)]
    steps = 0

    def place(index: int) -> bool:
        nonlocal steps
        steps += 1
        if index == len(largest_first):
            return True
        if steps > _STEPS:
            return False
        context, seen = largest_first[index], set()
        for domain in domains:
            used = sum(map(_whole, domain))
            if used in seen or used + _whole(context) > limit:
                continue
            seen.add(used)
            domain.append(context)
            if place(index + 1):
                return True
            domain.pop()
        return False

    if not place(0):
        return tuple(largest_first)
    return tuple(context for domain in domains for context in domain)


def _whole(context: ContextPlan) -> int:
    return context.weights_bytes + context.buffer_bytes + context.needs.io_bytes


def _switched(
    contexts: tuple[ContextPlan, ...],
    acts: Callable[[tuple[ContextPlan, ...]], tuple[Act, ...]],
    most: int,
    limit: int,
    words: tuple[str, ...],
) -> Iterator[_Remedy]:
    """Load graphs of one more context after the other only when they run, and retain those that fit."""
    now = list(contexts)
    done: list[str] = []
    for index, context in sorted(enumerate(contexts), key=lambda item: -_whole(item[1])):
        if len(context.needs.graphs) < 2:
            continue
        now[index] = replace(context, switching=True, retained=())
        done.append(context.name)
        switch = f"Switch graphs of {', '.join(done)}: is_persistent_binary=True, memory_limit_hint=1"
        tried = tuple(now)
        plan = plan_memory(tried, acts(tried), most=most, limit=limit)
        if not plan.fits:
            yield _Remedy("graph switching", tried, acts(tried), (*words, f"{switch}."))
            continue
        now[index] = retaining = _retaining(now[index], plan)
        tried = tuple(now)
        order = f", graph_retention_order={list(retaining.retained)}" if retaining.retained else ""
        yield _Remedy("graph switching", tried, acts(tried), (*words, f"{switch}{order}."))


def _retaining(context: ContextPlan, plan: MemoryPlan) -> ContextPlan:
    """The graphs that can stay, in their order, and leave room for the largest of the others."""
    domain = plan.domain_of(context.name)
    assert domain is not None
    graphs = context.needs.graphs
    left = plan.domains[domain].left + context.needs.graph(context.first[0]).loaded_bytes
    retained: list[str] = []
    for graph in graphs:
        others = [other.loaded_bytes for other in graphs if other.name not in (*retained, graph.name)]
        if graph.loaded_bytes + max(others, default=0) <= left:
            retained.append(graph.name)
            left -= graph.loaded_bytes
    return replace(context, retained=tuple(retained))


def _hopeless(contexts: tuple[ContextPlan, ...], most: int, limit: int) -> tuple[str, ...]:
    words = [
        f"{context.name} alone is larger than a process domain: split the model into several binaries."
        for context in contexts
        if _whole(context) > limit
    ]
    if sum(map(_whole, contexts)) > most * limit:
        words.append(
            "All together are larger than all process domains: load fewer at a time, or quantize further."
        )
    return tuple(words) or ("No order was found in which everything fits: split the largest binaries.",)
