"""A scenario: a device, its clients, and their requests. Plain frozen data; times in nanoseconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from openhtp.core.enumerations import Priority
from openhtp.core.limits import DEFAULT_QUEUE_DEPTH
from openhtp.core.units import MIB, MS, SECOND, US
from openhtp.hw.clocks import WARM_NS, Clocks, StandingVote
from openhtp.records.trace import Track, Units
from openhtp.sched.events import ClientAdded, ClientKind
from openhtp.sched.policy import STRICT, Policy
from openhtp.sched.resources import DeviceResources
from openhtp.sched.timed import Pace

UNITS = {"ns": 1, "us": US, "ms": MS, "s": SECOND}

DEFAULT_STEPS = 64
"""Yield points of one run where the scenario does not say; a small network has about as many steps."""

WAKE_NS = WARM_NS
"""Switching HVX and HMX to another client."""


class Pattern(enum.Enum):
    """How a source of requests goes on."""

    AT = "at"
    EVERY = "every"
    BURST = "burst"
    POISSON = "poisson"
    CLOSED = "closed"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model runs, and as what."""

    name: str
    precision: str | None = None
    dims: tuple[tuple[str, int], ...] = ()
    freeze: tuple[tuple[str, float | tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One request of a language model: runs that read the prompt, then runs that write ``tokens``."""

    prompt_runs: int
    prompt_ns: int
    token_runs: int
    token_ns: int
    tokens: int

    @property
    def runs(self) -> int:
        """All runs."""
        return self.prompt_runs + self.token_runs

    @property
    def total_ns(self) -> int:
        """All of them, one after the other."""
        return self.prompt_runs * self.prompt_ns + self.token_runs * self.token_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """One client: the part of the device that it takes, its priority, and the shape of its runs."""

    name: str
    kind: ClientKind = ClientKind.GRAPH
    priority: Priority = Priority.NORMAL
    pd: int = 1
    core: int = 0
    hmx: int = 1
    hvx: int = 1
    vtcm_bytes: int = 0
    page_bytes: int | None = None
    deadline_ns: int | None = None
    depth: int = DEFAULT_QUEUE_DEPTH
    steps: int = DEFAULT_STEPS
    timeout_ns: int | None = None
    model: ModelChoice | None = None
    talk: Conversation | None = None
    size_bytes: int = 0
    load_ns: int | None = None
    # Its votes: while work is done for it, or all the time.
    perf_profile: str | None = None
    votes: StandingVote | None = None
    # Why queued executions gain nothing over synchronous ones, if they do not.
    no_gain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSource:
    """One source of requests: a pattern, its numbers, and how long each run takes.

    ``gap_ns`` is the period (every, and repeated bursts), the mean gap (poisson), the thinking time (closed)
    or the delay (after). ``count`` bounds the number of requests; bursts count as one each. ``times`` has the time
    of a run at all clocks that votes can come to, if it depends on them; ``run_ns`` is the shortest.
    """

    client: int
    pattern: Pattern
    run_ns: int
    start_ns: int = 0
    gap_ns: int = 0
    count: int | None = None
    until_ns: int | None = None
    burst: int = 1
    in_flight: int = 1
    seed: int = 0
    after: int | None = None
    times: tuple[tuple[Clocks, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """Clients whose graphs are loaded when they run, into ``room_bytes``; ``retained`` ones stay if they can."""

    graphs: tuple[int, ...]
    room_bytes: int
    retained: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything a plan needs. ``eviction_ns`` None means that evictions are modelled."""

    name: str
    device: DeviceResources
    clients: tuple[ClientSpec, ...]
    sources: tuple[RequestSource, ...]
    policy: Policy = STRICT
    unit: str = "us"
    eviction_ns: int | None = None
    dma_gbs: float = 40.0
    duration_ns: int | None = None
    soc: str | None = None
    switching: tuple[Switched, ...] = ()
    # The device's own profile: it always stands.
    perf_profile: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def has_votes(self) -> bool:
        """Whether anybody votes on the clocks of a known chip."""
        voters = any(client.perf_profile or client.votes for client in self.clients)
        return self.soc is not None and (voters or self.perf_profile is not None)

    @property
    def unit_ns(self) -> int:
        """Nanoseconds in one unit of the scenario's times."""
        return UNITS[self.unit]

    def in_unit(self, time_ns: float) -> int | float:
        """A time in the scenario's own unit; whole if it can be."""
        value = time_ns / self.unit_ns
        return int(value) if value == int(value) else round(value, 6)

    def work_for(self, client: ClientSpec, run_ns: int) -> Pace:
        """How a run of this client behaves in the modelled engine."""
        if self.eviction_ns is not None:
            return Pace(step_ns=(run_ns,), eviction_ns=self.eviction_ns)
        transfer_ns = round(client.vtcm_bytes / self.dma_gbs)  # bytes / (GB/s) = ns
        return Pace(
            step_ns=(run_ns,),
            yield_every_ns=max(1, run_ns // client.steps),
            save_ns=transfer_ns,
            wake_ns=WAKE_NS,
            restore_ns=transfer_ns,
        )

    def introductions(self) -> list[ClientAdded]:
        """The clients as the scheduler gets to know them; they are numbered in order."""
        return [
            ClientAdded(
                t=0,
                client=number,
                priority=int(client.priority),
                kind=client.kind,
                pd=client.pd,
                core=client.core,
                hmx=client.hmx,
                hvx=client.hvx,
                vtcm_bytes=client.vtcm_bytes,
                page_bytes=client.page_bytes,
            )
            for number, client in enumerate(self.clients)
        ]

    def ends_ns(self, source: RequestSource) -> int | None:
        """When a source stops asking; None if its count alone ends it."""
        return min((end for end in (source.until_ns, self.duration_ns) if end is not None), default=None)

    def load_ns(self, client: ClientSpec) -> int:
        """How long loading a switched graph takes: as given, otherwise as long as moving its bytes from DDR."""
        return round(client.size_bytes / self.dma_gbs) if client.load_ns is None else client.load_ns

    def without_votes(self) -> Scenario:
        """The same scenario at the clocks that all votes together come to, as if they always stood."""
        clients = tuple(replace(client, perf_profile=None, votes=None) for client in self.clients)
        return replace(self, clients=clients, perf_profile=None)

    def with_choice(
        self, *, policy: Policy, priorities: tuple[Priority, ...], depths: tuple[int, ...]
    ) -> Scenario:
        """The same scenario with other priorities, queue depths and policy."""
        clients = tuple(
            replace(client, priority=priority, depth=depth)
            for client, priority, depth in zip(self.clients, priorities, depths, strict=True)
        )
        return replace(self, policy=policy, clients=clients)

    @property
    def is_random(self) -> bool:
        """Whether any arrivals of the scenario are random."""
        return any(source.pattern is Pattern.POISSON for source in self.sources)

    def with_seed(self, seed: int) -> Scenario:
        """The same scenario with other arrivals; no two sources draw alike, as they would from equal seeds."""
        sources = tuple(
            replace(source, seed=(seed << 80) + (number << 64) + source.seed)
            for number, source in enumerate(self.sources)
        )
        return replace(self, sources=sources)

    @property
    def tracks(self) -> dict[int, Track]:
        """The clients as a trace knows them; they are numbered in order."""
        return {
            number: Track(
                name=client.name,
                kind=client.kind.value,
                session=client.pd,
                core=client.core,
                priority=int(client.priority),
            )
            for number, client in enumerate(self.clients)
        }

    @property
    def units(self) -> Units:
        """The device as a trace knows it."""
        has = self.device
        return Units(cores=has.cores, hmx=has.hmx, hvx=has.hvx, vtcm_bytes=has.vtcm_bytes)

    @property
    def vtcm_cells(self) -> int:
        """Cells of 1 MB in the VTCM of one core."""
        return -(-self.device.vtcm_bytes // MIB)
