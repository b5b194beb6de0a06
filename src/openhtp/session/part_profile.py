"""The profile of a run in parts: what each part cost, on the HTP or on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from openhtp.frontend.partitioning import AssignedNode
from openhtp.records.profile import ProfileEvent, walk
from openhtp.runtime.objects.profile import Profile
from openhtp.session.assigned import AssignedPart
from openhtp.session.cpu_profile import NodeTime

PART = 90_004
"""Ours: a part of a model, with the events of its graph below, or of its nodes if it is on the CPU. Measured."""
NODE = 90_005
"""Ours: a node of a part on the CPU. Measured, by ONNX Runtime."""
_WHOLE = 400


@dataclass(slots=True)
class PartRun:
    """One part of a run, and its profile if it is on the HTP. Times are 0 until it is over."""

    provider: str
    nodes: tuple[AssignedNode, ...]
    profile: Profile | None
    begin_ns: int = 0
    end_ns: int = 0
    node_times: tuple[NodeTime, ...] = ()

    @property
    def events(self) -> tuple[ProfileEvent, ...]:
        """Of its graph on the HTP, or of its nodes on the CPU."""
        if self.profile is not None:
            return self.profile.events()
        return tuple(ProfileEvent(NODE, f"{each.name} ({each.op})", each.us, "us") for each in self.node_times)


class PartsProfile:
    """Filled by one run; read like a ``Profile``."""

    def __init__(self, level: str, assigned: Sequence[AssignedPart], profiles: Sequence[Profile | None]) -> None:
        self.level = level
        self.parts = tuple(
            PartRun(part.provider, part.nodes, profile) for part, profile in zip(assigned, profiles, strict=True)
        )

    @property
    def tells_nodes(self) -> bool:
        """Whether the nodes of parts on the CPU are to be told, too."""
        return self.level not in ("off", "basic")

    @contextmanager
    def timing(self, number: int) -> Iterator[Profile | None]:
        """Around one part; gives what its graph is to fill."""
        part = self.parts[number]
        part.begin_ns = time.monotonic_ns()
        yield part.profile
        part.end_ns = time.monotonic_ns()

    def events(self) -> tuple[ProfileEvent, ...]:
        """The parts in their order, and the whole; those of an HTP have the events of their graphs."""
        run = [(number, part) for number, part in enumerate(self.parts) if part.end_ns]
        if not run:
            return ()
        found = [
            ProfileEvent(
                PART,
                f"part {number + 1} on {part.provider}, {len(part.nodes)} nodes",
                (part.end_ns - part.begin_ns) // 1000,
                "us",
                events=part.events,
            )
            for number, part in run
        ]
        whole = run[-1][1].end_ns - run[0][1].begin_ns
        return (*found, ProfileEvent(_WHOLE, "All parts (execute) time", whole // 1000, "us"))

    def event(self, number: int) -> ProfileEvent | None:
        """The first event with this API number, wherever it is in the tree."""
        return next((event for event in walk(self.events()) if event.type == number), None)

    def __repr__(self) -> str:
        return f"<PartsProfile {self.level}, {len(self.parts)} parts>"


AnyProfile = Profile | PartsProfile
"""Of a run as a whole, or in parts."""
