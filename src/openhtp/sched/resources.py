"""What one core has to give, which jobs may hold it together, and where VTCM goes.

The rules of the HTP, each as one function:

* Sharing needs hardware from v73 on (``sharing``), and one process domain (PD) unless the chip has VTCM
  windowing (``windowing``).
* Two QNN graphs never run together, unless the device offers parallel graph execution; then two of equal
  priority do.
* A graph's VTCM is an *overmap*: its page spans the whole VTCM and its usable part lies at the end. Another
  client may live in the front part if its own page fits there. A graph that uses less than half of the VTCM
  gives up sharing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openhtp.core import status as st
from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument, OutOfMemory
from openhtp.core.units import MIB, bytes_in_words
from openhtp.sched.events import ClientAdded, ClientKind

MAX_PARALLEL_GRAPHS = 2
PARALLEL_WINDOW = 3
"""Parallel graph execution looks at this many graphs from the front of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResources:
    """One device: ``cores`` cores with these units each, and switches that decide which clients may share them.

    ``flat_priorities`` is the Windows platform from SDK 2.29 on: all graphs get one thread priority there and
    the operating system decides, so the device itself sees only order of arrival.
    """

    cores: int = 1
    hmx: int = 1
    hvx: int = 4
    vtcm_bytes: int = 8 * MIB
    sharing: bool = True
    windowing: bool = False
    parallel_graphs: bool = False
    flat_priorities: bool = False

    @property
    def graphs_at_once(self) -> int:
        """How many graphs may run side by side."""
        return self.cores * (MAX_PARALLEL_GRAPHS if self.parallel_graphs and self.sharing else 1)


class ChipResources(Protocol):
    """What a chip has, core by core, before anyone chose otherwise."""

    @property
    def cores(self) -> int:
        """How many there are."""

    @property
    def hmx(self) -> int:
        """HMX units."""

    @property
    def hvx(self) -> int:
        """HVX threads."""

    @property
    def vtcm_bytes(self) -> int:
        """VTCM."""

    @property
    def has_vtcm_sharing(self) -> bool:
        """Whether two clients may hold parts of the VTCM at once."""


def resources_of(
    chip: ChipResources | None,
    *,
    cores: int | None = None,
    hmx: int | None = None,
    hvx: int | None = None,
    vtcm_bytes: int | None = None,
    sharing: bool | None = None,
    windowing: bool = False,
    parallel_graphs: bool = False,
    flat_priorities: bool = False,
) -> DeviceResources:
    """A device of this chip, live or planned. What is given stands; the rest is the chip's, or the usual."""
    usual = DeviceResources()
    has_hmx = chip.hmx if chip else usual.hmx
    if parallel_graphs:
        # Every graph takes an HMX, so graphs side by side need one each.
        has_hmx = max(MAX_PARALLEL_GRAPHS, has_hmx)
    has_sharing = chip.has_vtcm_sharing if chip else usual.sharing
    has = chip or usual
    return DeviceResources(
        cores=has.cores if cores is None else cores,
        hmx=has_hmx if hmx is None else hmx,
        hvx=has.hvx if hvx is None else hvx,
        vtcm_bytes=has.vtcm_bytes if vtcm_bytes is None else vtcm_bytes,
        sharing=has_sharing if sharing is None else sharing,
        windowing=windowing,
        parallel_graphs=parallel_graphs,
        flat_priorities=flat_priorities,
    )


def priority_on(device: DeviceResources, priority: int) -> int:
    """The priority that counts on this device: one of the eight, or always NORMAL where priorities are flat."""
    return int(Priority.NORMAL if device.flat_priorities else Priority.parse(priority))


class Demand:
    """What a client takes while it runs, and at which priority. Slots and plain fields: it is read often.

    ``page`` is the page size asked for; ``overmap`` is the part of it in front of the usable bytes, which
    another client may use.
    """

    __slots__ = ("hmx", "hvx", "is_graph", "lonely", "overmap", "page", "pd", "priority", "vtcm")

    def __init__(self, added: ClientAdded, device: DeviceResources) -> None:
        self.priority = priority_on(device, added.priority)
        self.is_graph = added.kind is ClientKind.GRAPH
        self.pd = added.pd
        self.hmx = added.hmx
        self.hvx = added.hvx
        self.vtcm = added.vtcm_bytes
        if added.page_bytes is not None:
            self.page = added.page_bytes
        else:
            self.page = device.vtcm_bytes if self.is_graph else added.vtcm_bytes
        self.overmap = max(0, self.page - self.vtcm)
        # Nobody else's VTCM beside this one: no such hardware, or a graph below half of the VTCM.
        self.lonely = not device.sharing or (self.is_graph and 2 * self.vtcm < device.vtcm_bytes)


class Share:
    """The part of a core that one job holds: unit masks (and the same as numbers), a VTCM range [start, end)."""

    __slots__ = ("demand", "end", "hmx", "hmx_units", "hvx", "hvx_units", "start")

    def __init__(self, demand: Demand, hmx: int, hvx: int, start: int) -> None:
        self.demand = demand
        self.hmx = hmx
        self.hvx = hvx
        self.hmx_units = units_of(hmx)
        self.hvx_units = units_of(hvx)
        self.start = start
        self.end = start + demand.vtcm


def verify_demand(added: ClientAdded, device: DeviceResources) -> None:
    """Refuse a client that could never run on this device.

    Raises:
        OutOfMemory: more VTCM than the device has.
        InvalidArgument: more HMX units, HVX threads or cores than it has, or negative numbers.
    """
    if added.vtcm_bytes > device.vtcm_bytes:
        raise OutOfMemory(
            f"client {added.client} asks for {bytes_in_words(added.vtcm_bytes)} of VTCM, "
            f"the device has {bytes_in_words(device.vtcm_bytes)}",
            st.QNN_COMMON_ERROR_MEM_ALLOC,
        )
    for name, asked, has in (
        ("HMX units", added.hmx, device.hmx),
        ("HVX threads", added.hvx, device.hvx),
        ("bytes of VTCM", added.vtcm_bytes, device.vtcm_bytes),
        ("bytes of page", added.page_bytes or 0, device.vtcm_bytes),
    ):
        if not 0 <= asked <= has:
            raise InvalidArgument(f"client {added.client} asks for {asked} {name}, the device has {has}")
    if not 0 <= added.core < device.cores:
        raise InvalidArgument(f"client {added.client} asks for core {added.core} of {device.cores}")


def may_share(a: Demand, b: Demand, device: DeviceResources) -> bool:
    """Whether two clients may hold parts of one core at the same time. Symmetric: order does not matter."""
    if a.is_graph and b.is_graph:
        # Their VTCM is partitioned by the runtime itself, so the page rule below does not apply.
        return device.parallel_graphs and device.sharing and (a.pd == b.pd or device.windowing)
    if a.pd != b.pd and not device.windowing:
        return False
    if not a.vtcm or not b.vtcm:
        return True  # nothing of the VTCM is shared
    if a.lonely or b.lonely:
        return False
    return _page_fits(a, b) and _page_fits(b, a)


def _page_fits(guest: Demand, host: Demand) -> bool:
    """An overmapped host takes a guest only if the guest's page fits into the overmap."""
    return not host.overmap or guest.page <= host.overmap


def place(others: Sequence[Share], wanted: Demand, device: DeviceResources) -> Share | None:
    """Find room beside ``others``; None if there is none or sharing is not allowed."""
    hmx_busy = hvx_busy = graphs = 0
    for share in others:
        if not may_share(share.demand, wanted, device):
            return None
        if share.demand.is_graph and wanted.is_graph:
            graphs += 1
            if graphs >= MAX_PARALLEL_GRAPHS or share.demand.priority != wanted.priority:
                return None
        hmx_busy |= share.hmx
        hvx_busy |= share.hvx
    hmx = _lowest_free(hmx_busy, wanted.hmx, device.hmx)
    hvx = _lowest_free(hvx_busy, wanted.hvx, device.hvx)
    if hmx is None or hvx is None:
        return None
    start = _vtcm_start(others, wanted, device.vtcm_bytes)
    return None if start is None else Share(wanted, hmx, hvx, start)


def _lowest_free(busy: int, count: int, total: int) -> int | None:
    """Mask of the ``count`` lowest units that are free."""
    if not busy:
        return (1 << count) - 1
    mask = 0
    for unit in range(total):
        if not count:
            break
        bit = 1 << unit
        if not busy & bit:
            mask |= bit
            count -= 1
    return None if count else mask


def _vtcm_start(others: Sequence[Share], wanted: Demand, total: int) -> int | None:
    """First byte of the range: at the end for an overmap, otherwise first fit from the front, page-aligned."""
    size = wanted.vtcm
    if wanted.overmap:
        for end in [total, *sorted((share.start for share in others), reverse=True)]:
            if end >= size and _is_free(others, end - size, end):
                return end - size
        return None
    if not size:
        return 0
    step = wanted.page or 1
    for candidate in [0, *sorted(share.end for share in others)]:
        start = -(-candidate // step) * step
        if start + size <= total and _is_free(others, start, start + size):
            return start
    return None


def _is_free(others: Sequence[Share], start: int, end: int) -> bool:
    return all(share.end <= start or end <= share.start for share in others)


@functools.cache
def units_of(mask: int) -> tuple[int, ...]:
    """``0b101`` -> ``(0, 2)``."""
    return tuple(unit for unit in range(mask.bit_length()) if mask >> unit & 1)
