"""Why something does not fit: how much is asked, what is left where, who holds the rest, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from openhtp.core.units import bytes_in_words

if TYPE_CHECKING:
    from openhtp.memory.ledger import Domain, Ledger, Tenant

# Named of those who hold memory in a domain, and of domains: a message must stay readable.
_HOLDERS = 3
_DOMAINS = 4


def no_place(ledger: Ledger, tenant: Tenant, wanted: Mapping[str, int]) -> str:
    """A context fits nowhere, which wants so many bytes for each of these."""
    parts = [f"{what} {bytes_in_words(nbytes)}" for what, nbytes in wanted.items() if nbytes]
    total = bytes_in_words(sum(wanted.values()))
    made_of = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{tenant.label} needs {total}{made_of}, but {_situation(ledger, tenant)}; {_advice(ledger, tenant)}"


def no_room(ledger: Ledger, tenant: Tenant, nbytes: int, what: str) -> str:
    """Something else does not fit where its context is."""
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
        return f"{tenant.label} is in {_where(tenant.domain)}"
    if not tenant.anywhere:
        return f"a context whose graphs are prepared here must be in {_where(ledger.domains[0])}"
    states = [f"process domain {domain.number} {_state(domain)}" for domain in ledger.domains[:_DOMAINS]]
    if len(ledger.domains) > _DOMAINS:
        states.append(f"{len(ledger.domains) - _DOMAINS} more")
    if len(ledger.domains) < ledger.most:
        states.append(f"a new one has {bytes_in_words(ledger.limit)}")
    most = "" if len(ledger.domains) < ledger.most else f" (there can be {ledger.most})"
    return f"no process domain has that: {', '.join(states)}{most}"


def _where(domain: Domain) -> str:
    return f"process domain {domain.number}, which {_state(domain)}"


def _state(domain: Domain) -> str:
    """How full a domain is, and with what."""
    held = list(domain.by_owner().items())
    holders = [f"{owner} {bytes_in_words(nbytes)}" for owner, nbytes in held[:_HOLDERS]]
    if len(held) > _HOLDERS:
        holders.append(f"{len(held) - _HOLDERS} more")
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
