"""Where the news of ended executions goes: back the way each of them came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from openhtp.rpc import frames


class Reports(Protocol):
    """Who is told how an execution ended."""

    def report(self, record: frames.Record, extra: bytes = b"") -> None:
        """Tell of an end; ``extra`` is a frame that belongs to it."""

    def report_failure(self, record: frames.Record, text: str) -> None:
        """Tell of a failure, in words."""


class Outlet:
    """News not yet sent. ``notify`` is called whenever there is more."""

    __slots__ = ("_notify", "extras", "records")

    def __init__(self, notify: Callable[[], None]) -> None:
        # Frames that go before the next record, and packed records that may share a packet.
        self.extras: list[bytes] = []
        self.records: list[bytes] = []
        self._notify = notify

    def report(self, record: frames.Record, extra: bytes = b"") -> None:
        """Tell of an end; ``extra`` is a frame that belongs to it."""
        if extra:
            self.extras.append(extra)
        self.records.append(frames.RECORD.pack(*record))
        self._notify()

    def report_failure(self, record: frames.Record, text: str) -> None:
        """Tell of a failure, in words."""
        head = frames.BATCH_HEAD.pack(frames.FAILED, 0, 1)
        self.extras.append(head + frames.RECORD.pack(*record) + text.encode()[:4096])
        self._notify()

    def packets(self) -> list[bytes]:
        """All news as packets, in order; afterwards there is none."""
        packets, self.extras = self.extras, []
        records, self.records = self.records, []
        for start in range(0, len(records), frames.MAX_RECORDS):
            part = records[start : start + frames.MAX_RECORDS]
            packets.append(frames.BATCH_HEAD.pack(frames.DONE, 0, len(part)) + b"".join(part))
        return packets
