"""The process domains of one client: address spaces of 3.75 GB each, and what their contexts hold.

A context goes to the first domain that has room for it; a new one is opened when none has, as long as there may be
more (efficient packing). It stays there: its I/O buffers must be mapped into the same one. Memory is granted
before it is taken, and given back once. Thread-safe, since contexts are made ready beside the device's loop.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, OutOfMemory
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import bytes_in_words


class MemoryUse(enum.Enum):
    """The use of memory."""

    WEIGHTS = "weights"
    SPILL_FILL = "spill_fill"
    VTCM_BACKUP = "vtcm_backup"
    IO = "io"
    RESERVE = "reserve"


class MemoryGrant:
    """Memory that counts against a domain until it is given back, however often that is said."""

    __slots__ = ("_ledger", "domain", "nbytes", "owner", "use")

    def __init__(
        self, ledger: Ledger, domain: Domain, owner: Tenant | SpillGroup, nbytes: int, use: MemoryUse
    ) -> None:
        self._ledger = ledger
        self.domain: Domain | None = domain
        self.owner = owner
        self.nbytes = nbytes
        self.use = use
        domain.grants[self] = None
        domain.held[use] += nbytes

    def give_back(self) -> None:
        """Give the memory back."""
        with self._ledger._lock:
            domain, self.domain = self.domain, None
            if domain is not None:
                del domain.grants[self]
                domain.held[self.use] -= self.nbytes


class HeldMemory:
    """Memory that was granted together, and is given back together."""

    __slots__ = ("_grants",)

    def __init__(self, grants: Sequence[MemoryGrant]) -> None:
        self._grants = list(grants)

    def add(self, more: HeldMemory) -> None:
        """Give that back with it."""
        self._grants += more._grants

    def give_back(self) -> None:
        """Give the memory back."""
        for grant in self._grants:
            grant.give_back()


class Domain:
    """One address space."""

    def __init__(self, number: int, limit: int) -> None:
        self.number = number
        self.limit = limit
        self.grants: dict[MemoryGrant, None] = {}
        # Bytes that are held for each use, kept so that a context that goes need not look at all others.
        self.held = dict.fromkeys(MemoryUse, 0)

    @property
    def used(self) -> int:
        """Bytes that are held."""
        return sum(self.held.values())

    @property
    def left(self) -> int:
        """Bytes that nobody holds."""
        return self.limit - self.used

    def by_use(self) -> dict[str, int]:
        """Bytes that are held for each use."""
        return {use.value: nbytes for use, nbytes in self.held.items()}

    def by_owner(self) -> dict[str, int]:
        """Bytes by holder, the largest first."""
        totals: dict[str, int] = {}
        for grant in self.grants:
            label = grant.owner.label
            totals[label] = totals.get(label, 0) + grant.nbytes
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


@dataclass(slots=True, eq=False)
class SpillGroup:
    """Contexts that use one spill-fill buffer in turn: it is held once in each domain where one of them is.

    ``grows`` says that nobody chose its size: it is as large as the largest need. ``backup`` is the size of
    the VTCM backup buffer that they have in common as well; None if each graph has its own.
    """

    nbytes: int
    label: str
    grows: bool = False
    backup: int | None = None
    members: dict[Domain, set[Tenant]] = field(default_factory=dict)
    grants: dict[Domain, MemoryGrant] = field(default_factory=dict)
    backups: dict[Domain, MemoryGrant] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Tenant:
    """A context as the ledger sees it. ``anywhere`` is off for one that must be in the first domain."""

    label: str
    anywhere: bool = True
    group: SpillGroup | None = None
    domain: Domain | None = None


def largest_backup(vtcm_bytes: int, limit: int) -> int:
    """Size of the VTCM backup buffer of a graph that has all VTCM of a chip; a domain has ``limit`` bytes.

    A domain of less than the chip's is one to scale, for trying what happens when it is full. So is this.
    """
    return vtcm_bytes * min(limit, SESSION_LIMIT_BYTES) // SESSION_LIMIT_BYTES


class Ledger:
    """All domains of a client: ``most`` of them, each of ``limit`` bytes. The first is always there.

    ``vtcm_bytes`` is what their chip has of VTCM.
    """

    def __init__(self, *, limit: int = SESSION_LIMIT_BYTES, most: int = 1, vtcm_bytes: int = 0) -> None:
        self.limit = limit
        self.most = most
        self.backup_bytes = largest_backup(vtcm_bytes, limit)
        self.domains = [Domain(0, limit)]
        # Also held by code that makes several changes at once, so that no other thread sees a part of them.
        self.undisturbed = self._lock = threading.RLock()

    @property
    def used(self) -> int:
        """Bytes that are held in all domains."""
        with self._lock:
            return sum(domain.used for domain in self.domains)

    @property
    def weights(self) -> int:
        """Bytes of weights, which this process really has; of some other uses it only keeps count."""
        return self.by_use()[MemoryUse.WEIGHTS.value]

    def by_use(self) -> dict[str, int]:
        """Bytes that are held for each use, in all domains."""
        with self._lock:
            totals = [domain.by_use() for domain in self.domains]
        return {use.value: sum(total[use.value] for total in totals) for use in MemoryUse}

    def place(
        self, tenant: Tenant, weights: int, spill_fill: int = 0, backup: int = 0, *, room_for: int = 0
    ) -> HeldMemory:
        """Put a context where it fits, ``room_for`` more bytes included, which are not held afterwards.

        ``spill_fill`` and ``backup`` are the bytes of its buffers, where it does not have its group's.
        Raises OutOfMemory, and holds nothing, if there is no such place.
        """
        with self._lock:
            group = tenant.group
            if group is not None and spill_fill > group.nbytes and not group.grows:
                raise InvalidArgument(
                    f"{tenant.label} needs a spill-fill buffer of {spill_fill} bytes, and that of its group has"
                    f" {group.nbytes}; begin the group with the size that the largest of its graphs needs",
                    st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
                )
            for domain in self._open_to(tenant):
                buffers = spill_fill + backup if group is None else _growth(group, domain, spill_fill, backup)
                if weights + buffers + room_for <= domain.left:
                    return self._settle(tenant, domain, weights, spill_fill, backup)
            parts = {"weights": weights, "spill-fill": spill_fill, "VTCM backup": backup, "room for I/O": room_for}
            raise OutOfMemory(no_place(self, tenant, parts), st.QNN_CONTEXT_ERROR_MEM_ALLOC)

    def place_each(
        self, tenant: Tenant, parts: Sequence[tuple[int, int, int]], *, room_for: int = 0
    ) -> list[HeldMemory]:
        """Place parts that come and go separately, each (weights, spill-fill, backup); all of them, or none."""
        with self._lock:
            weights, spill_fill, backup = (sum(part[index] for part in parts) for index in range(3))
            self.place(tenant, weights, spill_fill, backup, room_for=room_for).give_back()
            return [self.place(tenant, *part) for part in parts]

    def take(self, tenant: Tenant, nbytes: int, use: MemoryUse, what: str) -> MemoryGrant:
        """Memory for a context in the domain where it is; the first with room if it is in none yet.

        Room reserved for its I/O is used first. Raises OutOfMemory, and holds nothing, if there is no room.
        """
        with self._lock:
            for domain in self._open_to(tenant):
                reserve = self._reserve_of(tenant, domain) if use is MemoryUse.IO else None
                reserved = 0 if reserve is None else reserve.nbytes
                if nbytes <= domain.left + reserved:
                    if reserve is not None:
                        self._shrink(reserve, nbytes)
                    tenant.domain = domain
                    return self._grant(domain, tenant, nbytes, use)
            raise OutOfMemory(no_room(self, tenant, nbytes, what), st.QNN_CONTEXT_ERROR_MEM_ALLOC)

    def reserve(self, tenant: Tenant, nbytes: int) -> None:
        """Keep room for the I/O of a context that is in its place."""
        if nbytes:
            self.take(tenant, nbytes, MemoryUse.RESERVE, "room for inputs and outputs")

    def leave(self, tenant: Tenant) -> None:
        """A context goes: give back what it has not given back itself."""
        with self._lock:
            for domain in self.domains:
                for grant in [grant for grant in domain.grants if grant.owner is tenant]:
                    grant.give_back()
                if tenant.group is not None:
                    self._leave_group(tenant, tenant.group, domain)
            tenant.domain = None
            while len(self.domains) > 1 and not self.domains[-1].grants:
                self.domains.pop()

    def _open_to(self, tenant: Tenant) -> list[Domain]:
        """Where a context may go, in order; a domain that is not open yet is the last."""
        if tenant.domain is not None:
            return [tenant.domain]
        if not tenant.anywhere:
            return self.domains[:1]
        if len(self.domains) < self.most and self.domains[-1].grants:
            return [*self.domains, Domain(len(self.domains), self.limit)]
        return list(self.domains)

    def _settle(self, tenant: Tenant, domain: Domain, weights: int, spill_fill: int, backup: int) -> HeldMemory:
        group = tenant.group
        own = {
            MemoryUse.WEIGHTS: weights,
            MemoryUse.SPILL_FILL: spill_fill if group is None else 0,
            MemoryUse.VTCM_BACKUP: backup if group is None or group.backup is None else 0,
        }
        if group is not None:
            self._join(tenant, group, domain, spill_fill)
        tenant.domain = domain
        return HeldMemory([self._grant(domain, tenant, nbytes, use) for use, nbytes in own.items() if nbytes])

    def _join(self, tenant: Tenant, group: SpillGroup, domain: Domain, spill_fill: int) -> None:
        if group.grows:
            group.nbytes = max(group.nbytes, spill_fill)
        group.members.setdefault(domain, set()).add(tenant)
        if group.backup and domain not in group.backups:
            group.backups[domain] = self._grant(domain, group, group.backup, MemoryUse.VTCM_BACKUP)
        old = group.grants.get(domain)
        if old is not None and old.nbytes >= group.nbytes:
            return
        if old is not None:
            old.give_back()
        group.grants[domain] = self._grant(domain, group, group.nbytes, MemoryUse.SPILL_FILL)

    def _leave_group(self, tenant: Tenant, group: SpillGroup, domain: Domain) -> None:
        members = group.members.get(domain)
        if members is None or tenant not in members:
            return
        members.discard(tenant)
        if not members:
            del group.members[domain]
            group.grants.pop(domain).give_back()
            if domain in group.backups:
                group.backups.pop(domain).give_back()

    def _grant(self, domain: Domain, owner: Tenant | SpillGroup, nbytes: int, use: MemoryUse) -> MemoryGrant:
        if domain.number == len(self.domains):
            self.domains.append(domain)
        return MemoryGrant(self, domain, owner, nbytes, use)

    def _reserve_of(self, tenant: Tenant, domain: Domain) -> MemoryGrant | None:
        mine = (grant for grant in domain.grants if grant.use is MemoryUse.RESERVE and grant.owner is tenant)
        return next(mine, None)

    def _shrink(self, reserve: MemoryGrant, nbytes: int) -> None:
        used = min(reserve.nbytes, nbytes)
        reserve.nbytes -= used
        if reserve.domain is not None:
            reserve.domain.held[reserve.use] -= used
        if not reserve.nbytes:
            reserve.give_back()


def _growth(group: SpillGroup, domain: Domain, spill_fill: int, backup: int) -> int:
    """How much a group's buffers grow in a domain by a context that needs ``spill_fill`` and ``backup`` bytes."""
    granted = group.grants.get(domain)
    spill = max(group.nbytes, spill_fill if group.grows else 0) - (0 if granted is None else granted.nbytes)
    if group.backup is None:
        return spill + backup
    return spill + (0 if domain in group.backups else group.backup)


# So many holders of a domain, and so many domains, are named: a message must stay readable.
_HOLDERS = 3
_DOMAINS = 4


def no_place(ledger: Ledger, tenant: Tenant, wanted: Mapping[str, int]) -> str:
    """The message about a context that fits nowhere; ``wanted`` has the bytes that it needs for each purpose."""
    parts = [f"{what} {bytes_in_words(nbytes)}" for what, nbytes in wanted.items() if nbytes]
    total = bytes_in_words(sum(wanted.values()))
    made_of = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{tenant.label} needs {total}{made_of}, but {_situation(ledger, tenant)}; {_advice(ledger, tenant)}"


def no_room(ledger: Ledger, tenant: Tenant, nbytes: int, what: str) -> str:
    """The message about memory, other than a context, that does not fit into its context's domain."""
    advice = "free contexts or memory"
    if tenant.domain is not None and ledger.most > 1:
        advice = (
            "buffers must be where their context is: give io_memory_estimation=True and register them right after"
            " the context is made, or hold a dummy buffer while contexts are made so that one goes elsewhere, or"
            " make them all with create_contexts_from_binaries(share_resources=True); or free contexts or memory"
        )
    return f"{what} needs {bytes_in_words(nbytes)}, but {_situation(ledger, tenant)}; {advice}"


def _situation(ledger: Ledger, tenant: Tenant) -> str:
    if tenant.domain is not None:
        return f"{tenant.label} is in {_domain_in_words(tenant.domain)}"
    if not tenant.anywhere:
        return f"a context whose graphs are prepared here must be in {_domain_in_words(ledger.domains[0])}"
    states = [f"process domain {domain.number} {_fill_in_words(domain)}" for domain in ledger.domains[:_DOMAINS]]
    if len(ledger.domains) > _DOMAINS:
        states.append(f"{len(ledger.domains) - _DOMAINS} more")
    if len(ledger.domains) < ledger.most:
        states.append(f"a new one has {bytes_in_words(ledger.limit)}")
    most = "" if len(ledger.domains) < ledger.most else f" (there can be {ledger.most})"
    return f"no process domain has that: {', '.join(states)}{most}"


def _domain_in_words(domain: Domain) -> str:
    return f"process domain {domain.number}, which {_fill_in_words(domain)}"


def _fill_in_words(domain: Domain) -> str:
    """How full a domain is, and with what."""
    by_owner = list(domain.by_owner().items())
    holders = [f"{owner} {bytes_in_words(nbytes)}" for owner, nbytes in by_owner[:_HOLDERS]]
    if len(by_owner) > _HOLDERS:
        holders.append(f"{len(by_owner) - _HOLDERS} more")
    who = f": {', '.join(holders)}" if holders else ""
    limit, used = bytes_in_words(domain.limit), bytes_in_words(domain.used)
    left = bytes_in_words(domain.left)
    return f"has {left} left (holds {used} of {limit}{who})"


def _advice(ledger: Ledger, tenant: Tenant) -> str:
    ways = ["free contexts or memory"]
    if not tenant.anywhere and ledger.most > 1:
        ways.append("make it from a binary (get_binary), which can go to another process domain")
    ways.append("load fewer of its graphs (enable_graphs), or one at a time (memory_limit_hint)")
    ways.append("see `openhtp memory plan --optimize`")
    return "; ".join(ways)
