"""The contents of the address spaces that a client has on the device, and the room left in each.

Knows process domains, contexts as what they need, I/O buffers and graphs that are switched. Must not know threads,
sockets or engines: a device keeps one ``Ledger`` for each client, a plan one for the time that it takes. Start at
``ledger.py``; ``planning.py`` asks it what would happen, ``advice.py`` what would make it fit, ``switching.py``
says which graph is unloaded for which.
"""

from openhtp.core.renamed import renamed_names
from openhtp.memory.ledger import Domain, HeldMemory, Ledger, MemoryGrant, MemoryUse, SpillGroup, Tenant
from openhtp.memory.needs import ContextNeeds, GraphNeeds

__all__ = [
    "ContextNeeds",
    "Domain",
    "GraphNeeds",
    "HeldMemory",
    "Ledger",
    "MemoryGrant",
    "MemoryUse",
    "SpillGroup",
    "Tenant",
]

__getattr__ = renamed_names(__name__, {"Grant": "MemoryGrant", "Held": "HeldMemory", "Use": "MemoryUse"})
