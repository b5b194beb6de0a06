"""Takes executions in: reads frames from clients' ducts, a limited number from each client in turn."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.core import status as st
from openhtp.device.connection import Connection, ServedDuct
from openhtp.device.executions import Executions
from openhtp.rpc import channel, frames
from openhtp.rpc.channel import ProtocolError

# Frames taken from one client, on all its ducts together, before the others have their turn.
FRAMES_PER_TURN = 64
# Cancels that are remembered because their executions may still be on another duct.
MAX_EARLY_CANCELS = 1024


class Intake:
    """Reads ducts. ``new_turn`` gives every client its share again."""

    def __init__(self, executions: Executions, on_end: Callable[[Connection, ServedDuct], None]) -> None:
        self._executions = executions
        self._on_end = on_end
        self._turn = 0
        self._view = memoryview(bytearray(channel.MAX_MESSAGE))
        self.took_any = False

    def new_turn(self) -> None:
        """All ready clients are about to be served once."""
        self._turn += 1

    def serve(self, connection: Connection, duct: ServedDuct) -> None:
        """Take what a client has sent on a duct."""
        if connection.turn != self._turn:
            connection.turn, connection.share = self._turn, FRAMES_PER_TURN
        first = connection.ducts[0]
        # Executions that a thread queued before it began to wait on its own duct must stay first.
        if duct is first or self._read(connection, first):
            self._read(connection, duct)

    def _read(self, connection: Connection, duct: ServedDuct) -> bool:
        """Take frames within the client's share; return whether the duct is empty now."""
        session = connection.session
        if session is None:
            if connection.closed:
                return True
            raise ProtocolError("an execution before Hello")
        executions, view, receive = self._executions, self._view, duct.sock.recv_into
        while connection.share > 0 and not duct.closed:
            try:
                count = receive(view)
            except BlockingIOError:
                return True
            except OSError:
                count = 0
            if count == 0:
                self._on_end(connection, duct)
                return True
            connection.share -= 1
            self.took_any = True
            kind = view[0]
            if kind == frames.EXECUTE:
                executions.execute(session, duct.outlet, bytes(view[:count]))
                if connection.early_cancels:
                    self._cancel_early(connection, frames.read_head(view).job)
            elif kind == frames.CANCEL and count >= frames.EXECUTE_HEAD.size:
                head = frames.read_head(view)
                if head.flags & frames.FLAG_ANSWER:
                    self._settle(connection, duct, head.job)
                else:
                    self._cancel(connection, duct, head.job)
            else:
                raise ProtocolError(f"frame of kind {kind} and {count} bytes")
        return duct.closed

    def _cancel(self, connection: Connection, duct: ServedDuct, job: int) -> None:
        session = connection.session
        assert session is not None
        if job not in session.jobs:
            # The job was sent before its cancel, but perhaps on a duct that was not read yet.
            others = [other for other in connection.ducts if other is not duct]
            empty = [self._read(connection, other) for other in others]
            if not all(empty):
                early = connection.early_cancels
                early[job] = None
                if len(early) > MAX_EARLY_CANCELS:
                    del early[next(iter(early))]  # most are of executions that are long over
        self._executions.cancel(session, job)

    def _settle(self, connection: Connection, duct: ServedDuct, job: int) -> None:
        """Cancel an execution whose caller was interrupted and does not know whether it was sent.

        If it was sent, it came first on the same duct, and its end is reported. Otherwise this reports an abort.
        """
        session = connection.session
        assert session is not None
        if job in session.jobs:
            self._executions.cancel(session, job)
            return
        now = self._executions.clock.now()
        record = frames.Record.of_moment(job, st.QNN_GRAPH_ERROR_ABORTED.code, now)
        duct.outlet.report_failure(record, "interrupted before it was sent, or when it was over")

    def _cancel_early(self, connection: Connection, job: int) -> None:
        """Cancel an execution if its cancel came before it."""
        session = connection.session
        assert session is not None
        if job in connection.early_cancels:
            del connection.early_cancels[job]
            self._executions.cancel(session, job)
