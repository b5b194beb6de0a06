"""Room for graphs in the process domain of their context: taken before they are made ready."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.device.contexts import DeviceContext
from openhtp.engine.protocol import LoadedProgram
from openhtp.memory.ledger import HeldMemory
from openhtp.memory.needs import ContextNeeds, backup_of
from openhtp.program.packed import GraphInfo


class Room:
    """What one binary takes for its context. Used on the thread that makes graphs ready, then on the loop's."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._ledger = context.session.ledger
        self._weights = self._spill_fill = self._backup = self._io = 0
        self.held = HeldMemory(())
        self.prepare_only = context.prepare_only

    @property
    def largest_backup(self) -> int:
        """Size of the VTCM backup buffer of a graph that has all VTCM there is."""
        return self._ledger.backup_bytes

    def take(self, needs: ContextNeeds) -> None:
        """Find a place for what is known from the binary alone. Raises OutOfMemory, and takes nothing."""
        context = self._context
        if context.prepare_only:
            return
        new = context.tenant.domain is None
        if new:
            names = ", ".join(graph.name for graph in needs.graphs[:3])
            more = f" and {len(needs.graphs) - 3} more" if len(needs.graphs) > 3 else ""
            context.tenant.label = f"context {context.number} ({names}{more})"
        self._weights, self._spill_fill = needs.weights_bytes, self._spilled(_spills(needs))
        self._backup = needs.backup_bytes
        self._io = needs.io_bytes if context.io_room or context.keep_io_room else 0
        self._take(new=new)

    def correct(self, ready: Sequence[tuple[GraphInfo, LoadedProgram]]) -> None:
        """The graphs are ready, and only now is it known what those hold that had not been compiled before."""
        spill_fill = self._spilled([loaded.spill_fill_bytes for _, loaded in ready])
        peaks = ((info, loaded.vtcm_peak_bytes) for info, loaded in ready)
        backup = sum(backup_of(info, peak, self.largest_backup) for info, peak in peaks)
        if self.prepare_only or (spill_fill, backup) == (self._spill_fill, self._backup):
            return
        self._spill_fill, self._backup = spill_fill, backup
        # Its first graphs decide where a context is: with more to hold, that may be elsewhere.
        new = not self._context.graphs and not self._context.memories
        with self._ledger.undisturbed:
            self.held.give_back()
            if new:
                self._ledger.leave(self._context.tenant)
            self._take(new=new)

    def give_back(self) -> None:
        """The graphs are not wanted, or could not be made ready."""
        self.held.give_back()
        context = self._context
        if context.number not in context.session.contexts or not (context.graphs or context.memories):
            self._ledger.leave(context.tenant)

    def _take(self, *, new: bool) -> None:
        tenant = self._context.tenant
        sizes = self._weights, self._spill_fill, self._backup
        self.held = self._ledger.place(tenant, *sizes, room_for=self._io if new else 0)
        if new and self._context.keep_io_room:
            self._ledger.reserve(tenant, self._io)

    def _spilled(self, each: Sequence[int]) -> int:
        """Graphs of a group use its buffer in turn, others have their own."""
        return max(each, default=0) if self._context.group is not None else sum(each)


def _spills(needs: ContextNeeds) -> list[int]:
    return [graph.spill_fill_bytes for graph in needs.graphs]
