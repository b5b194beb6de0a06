"""A plan of loading these contexts and mapping their buffers in this order. Nothing is loaded.

Contexts that are not built yet are given in words (``llm=1.5GB,io=60MB``), or as a mapping from a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openhtp.core.checks import real_number, shown
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import GIB, KIB, MIB
from openhtp.core.validating import KeyPlace, WrittenFields, WrittenValue, written
from openhtp.core.value_kinds import Flag, RefusedValue
from openhtp.memory.ledger import Ledger, MemoryUse, SpillGroup, Tenant
from openhtp.memory.needs import ContextNeeds, GraphNeeds
from openhtp.memory.switching import loaded_first


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """A context to load. ``switching`` loads its graphs when they run, ``retained`` those at once.

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
    """The result of one act: its domain, or why it failed."""

    act: Act
    domain: int | None
    nbytes: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Memory that one owner holds in a domain for one use."""

    owner: str
    use: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlan:
    """One domain after all acts."""

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
    """The result of each act, and how full every domain is then."""

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
        contexts=tuple(contexts), outcomes=tuple(trial.outcomes), domains=trial.domains(), most=most, limit=limit
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
        elif act.context in self._tenants:  # otherwise it is not there, which is said already
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
_SIZE_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_MOST = 1 << 44
_GRAPH_KEYS = ("name", "size", "spill_fill", "backup", "io")
_CONTEXT_KEYS = (
    *(*_GRAPH_KEYS, "graphs", "shared", "group", "concurrent"),
    *("io_memory_estimation", "switching", "retained"),
)


class ByteSize:
    """``1.5GB``, or a number of bytes. Units are powers of 1024, as in the documents."""

    words = "a size like 1.5GB, 250MB or 4096"
    python_type = "int | str"

    def read(self, value: object) -> int:
        """The size in bytes."""
        number = real_number(value)
        if isinstance(value, str):
            match = _SIZE_TEXT.fullmatch(value)
            unit = _UNITS.get(match[2].lower()) if match else None
            number = float(match[1]) * unit if match and unit else None
        if number is None or not 0 <= number <= _MOST:
            raise RefusedValue(self.words)
        return round(number)


_SIZE, _FLAG = ByteSize(), Flag("true or false")


def size_in_bytes(size: object, what: str) -> int:
    """A size that a person gave for ``what``."""
    try:
        return _SIZE.read(size)
    except RefusedValue as refusal:
        raise InvalidArgument(f"{what} is {shown(size)}; expected {refusal.expected}") from None


def context_from_words(text: str) -> ContextPlan:
    """``name=size``, and then, with commas, ``io=size``, ``spill_fill=size`` and ``backup=size``."""
    name, _, rest = text.partition("=")
    size, *more = rest.split(",")
    fields = {"name": name.strip(), "size": size}
    for item in more:
        key, _, value = item.partition("=")
        fields[key.strip()] = value
    unknown = [key for key in fields if key not in _GRAPH_KEYS]
    if not fields["name"] or not size.strip() or unknown:
        raise InvalidArgument(
            f"context {shown(text)}; expected name=size, and io=, spill_fill= or backup=size after commas, as in"
            " llm=1.5GB,io=60MB"
        )
    return _context(written(fields, KeyPlace(text, error=InvalidArgument)))


def contexts_from_document(document: object, source: str = "a file of contexts") -> list[ContextPlan]:
    """All contexts of a file: ``contexts:`` and a list of them, each a size, or the sizes of its graphs."""
    listed = document.get("contexts") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise InvalidArgument(
            f"{source} begins with `contexts:` and a list of them, each with name and size; this one does not"
        )
    return [
        _context(item) for item in written(listed, KeyPlace(source, "contexts", error=InvalidArgument)).items()
    ]


def _context(value: WrittenValue) -> ContextPlan:
    fields = value.fields(_CONTEXT_KEYS)
    listed, retained, group = fields.get("graphs"), fields.get("retained"), fields.get("group")
    if listed is None:
        graphs = [_graph(fields)]
    else:
        for key in _GRAPH_KEYS[1:]:
            if key in fields:
                fields[key].fail("stands beside the graphs; give it to each of them")
        graphs = [_graph(item.fields(_GRAPH_KEYS)) for item in listed.items()]
        if not graphs:
            raise listed.place.unexpected([], "at least one graph")
    names = [graph.name for graph in graphs]
    if len(set(names)) < len(names):
        value.fail(f"two graphs of one name among {', '.join(names)}")
    kept = () if retained is None else tuple(item.choice(*names) for item in retained.items())
    return ContextPlan(
        name=fields["name"].text(),
        needs=ContextNeeds(graphs=tuple(graphs), shared_bytes=fields.read("shared", _SIZE, 0)),
        io_estimation=fields.read("io_memory_estimation", _FLAG, False),
        switching=fields.read("switching", _FLAG, False) or bool(kept),
        retained=kept,
        group=None if group is None or group.raw is None else group.text(),
        concurrent=fields.read("concurrent", _FLAG, False),
    )


def _graph(fields: WrittenFields) -> GraphNeeds:
    return GraphNeeds(
        name=fields["name"].text(),
        own_bytes=fields["size"].read(_SIZE),
        spill_fill_bytes=fields.read("spill_fill", _SIZE, 0),
        backup_bytes=fields.read("backup", _SIZE, 0),
        io_bytes=fields.read("io", _SIZE, 0),
    )
