"""What would happen if these contexts were loaded and their buffers mapped in this order. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.memory.ledger import Ledger, MemoryUse, SpillGroup, Tenant
from openhtp.memory.needs import ContextNeeds
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
        found = (o.domain for o in self.outcomes if isinstance(o.act, Load) and o.act.context == name)
        return next(found, None)


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
