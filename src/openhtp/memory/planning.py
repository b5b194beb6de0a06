"""What would happen if these contexts were loaded and their buffers mapped in this order. Nothing is loaded.

Contexts that are not built yet are given in words (``llm=1.5GB,io=60MB``), or as a mapping from a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.checks import real_number, shown
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import GIB, KIB, MIB
from openhtp.memory.ledger import Ledger, MemoryUse, SpillGroup, Tenant
from openhtp.memory.needs import ContextNeeds, GraphNeeds
from openhtp.memory.switching import loaded_first


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """A context that is to be loaded. ``switching`` loads its graphs when they run, ``retained`` those at once.

    ``io_estimation`` makes it go where its I/O fits, too; ``group`` names contexts that share a spill-fill buffer
    and, if they are ``concurrent``, a VTCM backup buffer.
    """

    name: str
    needs: ContextNeeds
    io_estimation: bool = False
    switching: bool = False
    retained: tuple[str, ...] = ()
    group: str | None = None
    concurrent: bool = False

    @property
    def weights_bytes(self) -> int:
        """Data that is held once it is loaded."""
        if not self.switching:
            return self.needs.weights_bytes
        return self.needs.shared_bytes + sum(self.needs.graph(name).own_bytes for name in self.first)

    @property
    def spill_fill_bytes(self) -> int:
        """Spill-fill buffers that are held once it is loaded."""
        if self.group is not None:
            return self.needs.largest_spill_fill
        if not self.switching:
            return self.needs.spill_fill_bytes
        return sum(self.needs.graph(name).spill_fill_bytes for name in self.first)

    @property
    def backup_bytes(self) -> int:
        """VTCM backup buffers that are held once it is loaded."""
        loaded = [self.needs.graph(name).backup_bytes for name in self.first]
        shared = self.group is not None and self.concurrent
        return max(loaded, default=0) if shared else sum(loaded)

    @property
    def buffer_bytes(self) -> int:
        """All buffers that graphs work with and that are held once it is loaded."""
        return self.spill_fill_bytes + self.backup_bytes

    @property
    def first(self) -> tuple[str, ...]:
        """Graphs that are loaded at once."""
        names = [graph.name for graph in self.needs.graphs]
        return loaded_first(names, self.retained) if self.switching else tuple(names)


@dataclass(frozen=True, slots=True)
class Load:
    """Make a context from its binary."""

    context: str


@dataclass(frozen=True, slots=True)
class MapIo:
    """Register the inputs and outputs of a context."""

    context: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Register a dummy buffer in a context, so that what comes next goes elsewhere."""

    context: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Free all dummy buffers."""


Act = Load | MapIo | Hold | LetGo


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOutcome:
    """What came of one act: in which domain, or why not."""

    act: Act
    domain: int | None
    nbytes: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one owner holds in a domain for one use."""

    owner: str
    use: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlan:
    """One domain in the end."""

    number: int
    limit: int
    holdings: tuple[Holding, ...]

    @property
    def used(self) -> int:
        """Bytes that are held."""
        return sum(holding.nbytes for holding in self.holdings)

    @property
    def left(self) -> int:
        """Bytes that are free."""
        return self.limit - self.used


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What happened, act by act, and how full every domain is then."""

    contexts: tuple[ContextPlan, ...]
    outcomes: tuple[ActOutcome, ...]
    domains: tuple[DomainPlan, ...]
    most: int
    limit: int

    @property
    def fits(self) -> bool:
        """Whether everything has a place."""
        return not any(outcome.error for outcome in self.outcomes)

    @property
    def failures(self) -> tuple[ActOutcome, ...]:
        """What has none."""
        return tuple(outcome for outcome in self.outcomes if outcome.error)

    def domain_of(self, name: str) -> int | None:
        """Where a context is."""
        domains = (o.domain for o in self.outcomes if isinstance(o.act, Load) and o.act.context == name)
        return next(domains, None)


def loads_then_io(contexts: Sequence[ContextPlan]) -> tuple[Act, ...]:
    """All contexts, and then all their buffers: what programs usually do."""
    return (*(Load(context.name) for context in contexts), *(MapIo(context.name) for context in contexts))


def io_after_each(contexts: Sequence[ContextPlan]) -> tuple[Act, ...]:
    """The buffers of each context before the next one is loaded."""
    return tuple(act for context in contexts for act in (Load(context.name), MapIo(context.name)))


def plan_memory(
    contexts: Sequence[ContextPlan],
    acts: Sequence[Act] | None = None,
    *,
    most: int,
    limit: int = SESSION_LIMIT_BYTES,
) -> MemoryPlan:
    """Let it happen in a ledger like a device's. Contexts that fit nowhere are left out, and their buffers too."""
    names = [context.name for context in contexts]
    if len(set(names)) != len(names):
        raise InvalidArgument(f"two contexts of one name among {', '.join(names)}; give each its own")
    trial = _Trial(contexts, Ledger(limit=limit, most=most))
    for act in loads_then_io(contexts) if acts is None else acts:
        trial.do(act)
    return MemoryPlan(
        contexts=tuple(contexts),
        outcomes=tuple(trial.outcomes),
        domains=trial.domains(),
        most=most,
        limit=limit,
    )


@dataclass(slots=True)
class _Trial:
    contexts: Sequence[ContextPlan]
    ledger: Ledger
    outcomes: list[ActOutcome] = field(default_factory=list)
    _tenants: dict[str, Tenant] = field(default_factory=dict)
    _groups: dict[str, SpillGroup] = field(default_factory=dict)
    _dummies: list[Tenant] = field(default_factory=list)

    def do(self, act: Act) -> None:
        if isinstance(act, LetGo):
            for dummy in self._dummies:
                self.ledger.leave(dummy)
            self._dummies.clear()
            self.outcomes.append(ActOutcome(act=act, domain=None, nbytes=0))
            return
        wanted = next((context for context in self.contexts if context.name == act.context), None)
        if wanted is None:
            raise InvalidArgument(f"context {act.context!r} is not among those that are planned")
        if isinstance(act, Load):
            self._load(act, wanted)
        elif act.context in self._tenants:  # else it is not there, which is said already
            self._take(act, wanted)

    def _load(self, act: Load, wanted: ContextPlan) -> None:
        tenant = Tenant(wanted.name, group=self._group_of(wanted))
        sizes = wanted.weights_bytes, wanted.spill_fill_bytes, wanted.backup_bytes
        error = ""
        try:
            room = wanted.needs.io_bytes if wanted.io_estimation else 0
            self.ledger.place(tenant, *sizes, room_for=room)
            self._tenants[wanted.name] = tenant
        except QnnError as failure:
            error = failure.message
        domain = None if tenant.domain is None else tenant.domain.number
        self.outcomes.append(ActOutcome(act=act, domain=domain, nbytes=sum(sizes), error=error))

    def _take(self, act: MapIo | Hold, wanted: ContextPlan) -> None:
        tenant = self._tenants[wanted.name]
        nbytes = act.nbytes if isinstance(act, Hold) else wanted.needs.io_bytes
        if not nbytes:
            return
        what = "a dummy buffer" if isinstance(act, Hold) else f"memory for the inputs and outputs of {wanted.name}"
        error, owner = "", tenant
        if isinstance(act, Hold):
            owner = Tenant(f"dummy buffer {len(self._dummies) + 1}", domain=tenant.domain)
            self._dummies.append(owner)
        try:
            self.ledger.take(owner, nbytes, MemoryUse.IO, what)
        except QnnError as failure:
            error = failure.message
        assert tenant.domain is not None
        self.outcomes.append(ActOutcome(act=act, domain=tenant.domain.number, nbytes=nbytes, error=error))

    def _group_of(self, wanted: ContextPlan) -> SpillGroup | None:
        if wanted.group is None:
            return None
        label = f"buffers of group {wanted.group}"
        members = [context for context in self.contexts if context.group == wanted.group]
        backup = max(context.backup_bytes for context in members) if wanted.concurrent else None
        return self._groups.setdefault(wanted.group, SpillGroup(0, label, grows=True, backup=backup))

    def domains(self) -> tuple[DomainPlan, ...]:
        return tuple(
            DomainPlan(
                number=domain.number,
                limit=domain.limit,
                holdings=tuple(
                    Holding(owner=grant.owner.label, use=grant.use.value, nbytes=grant.nbytes)
                    for grant in domain.grants
                ),
            )
            for domain in self.ledger.domains
        )


_UNITS = {"": 1, "b": 1, "kb": KIB, "kib": KIB, "mb": MIB, "mib": MIB, "gb": GIB, "gib": GIB}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_MOST = 1 << 44
_GRAPH_KEYS = ("name", "size", "spill_fill", "backup", "io")
_CONTEXT_KEYS = (
    *(*_GRAPH_KEYS, "graphs", "shared", "group", "concurrent"),
    *("io_memory_estimation", "switching", "retained"),
)


def size_in_bytes(size: object, what: str) -> int:
    """``1.5GB``, or a number of bytes. Units are powers of 1024, as in the documents."""
    number = real_number(size)
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        number = float(match[1]) * unit if match and unit else None
    if number is None or not 0 <= number <= _MOST:
        raise InvalidArgument(f"{what} is {shown(size)}; expected a size like 1.5GB, 250MB or 4096")
    return round(number)


def context_from_words(text: str) -> ContextPlan:
    """``name=size``, and then, with commas, ``io=size``, ``spill_fill=size`` and ``backup=size``."""
    name, _, rest = text.partition("=")
    size, *more = rest.split(",")
    fields: dict[str, Any] = {"name": name.strip(), "size": size}
    for item in more:
        key, _, value = item.partition("=")
        fields[key.strip()] = value
    unknown = [key for key in fields if key not in _GRAPH_KEYS]
    if not fields["name"] or not size.strip() or unknown:
        raise InvalidArgument(
            f"context {shown(text)}; expected name=size, and io=, spill_fill= or backup=size after commas, as in"
            " llm=1.5GB,io=60MB"
        )
    return context_from_mapping(fields)


def context_from_mapping(entry: object) -> ContextPlan:
    """A context as a file has it: a size, or the sizes of its graphs, and how it is loaded."""
    fields = _checked_entry(entry, _CONTEXT_KEYS, "a context")
    name = str(fields["name"])
    listed = fields.get("graphs")
    graphs: tuple[GraphNeeds, ...]
    if listed is None:
        graphs = (_graph({key: value for key, value in fields.items() if key in _GRAPH_KEYS}),)
    elif isinstance(listed, list) and listed:
        beside = [key for key in _GRAPH_KEYS[1:] if key in fields]
        if beside:
            raise InvalidArgument(f"context {name!r} has {beside[0]} beside its graphs; give it to each of them")
        graphs = tuple(map(_graph, listed))
    else:
        raise InvalidArgument(f"context {name!r} has graphs {shown(listed)}; expected a list of them")
    needs = ContextNeeds(graphs=graphs, shared_bytes=size_in_bytes(fields.get("shared", 0), f"shared of {name!r}"))
    retained = fields.get("retained", [])
    names = [graph.name for graph in graphs]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"context {name!r} has two graphs of one name among {', '.join(names)}")
    if not isinstance(retained, list) or any(graph not in names for graph in retained):
        raise InvalidArgument(f"context {name!r} retains {shown(retained)}; expected a list of {', '.join(names)}")
    group = fields.get("group")
    return ContextPlan(
        name=name,
        needs=needs,
        io_estimation=_context_flag(fields, "io_memory_estimation"),
        switching=_context_flag(fields, "switching") or bool(retained),
        retained=tuple(retained),
        group=None if group is None else str(group),
        concurrent=_context_flag(fields, "concurrent"),
    )


def _context_flag(fields: dict[str, Any], key: str) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"{key} of {fields['name']!r} is {shown(value)}; expected true or false")
    return value


def contexts_from_document(document: object) -> list[ContextPlan]:
    """All contexts of a file: ``contexts:`` and a list of them."""
    listed = document.get("contexts") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise InvalidArgument(
            "a file of contexts begins with `contexts:` and a list of them, each with name and size"
        )
    return [context_from_mapping(item) for item in listed]


def _graph(entry: object) -> GraphNeeds:
    fields = _checked_entry(entry, _GRAPH_KEYS, "a graph")
    name = str(fields["name"])
    return GraphNeeds(
        name=name,
        own_bytes=size_in_bytes(fields.get("size"), f"size of {name!r}"),
        spill_fill_bytes=size_in_bytes(fields.get("spill_fill", 0), f"spill_fill of {name!r}"),
        backup_bytes=size_in_bytes(fields.get("backup", 0), f"backup of {name!r}"),
        io_bytes=size_in_bytes(fields.get("io", 0), f"io of {name!r}"),
    )


def _checked_entry(entry: object, known: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or not entry.get("name"):
        raise InvalidArgument(f"{what} is {shown(entry)}; expected a mapping with a name")
    for key in entry:
        if key not in known:
            raise InvalidArgument(f"{what} {entry['name']!r} has {shown(key)}; expected one of {', '.join(known)}")
    return dict(entry)
