"""Where the nodes of a model run."""

from __future__ import annotations

from dataclasses import dataclass

from openhtp.frontend.partitioning import AssignedNode


@dataclass(frozen=True, slots=True)
class AssignedPart:
    """What runs together: the provider, and its nodes with the reason why they are on the CPU."""

    provider: str
    nodes: tuple[AssignedNode, ...]
