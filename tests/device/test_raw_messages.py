"""Thousands of raw messages: each is answered, or ends the connection that it came on, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from openhtp.rpc import channel, messages as ms
from tests.conftest import ramp, relu_graph
from tests.device.raw_messages import assorted_descriptors, messages, throw
from tests.device.test_process import Raw
from tests.waiting import PATIENCE_S

COUNT = 2600


class Thrower:
    """A client that throws messages and comes back whenever it was cut off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self._enter()

    def _enter(self) -> None:
        self.raw = Raw(self.name)
        self.connections += 1
        context = self.raw.ask(ms.CreateContext(queue_depth=3, priority=100)).value
        self.raw.ask(ms.AddApp(context=context, name="app", priority=100, hmx=0, hvx=1, vtcm_bytes=0))
        self.raw.control.setblocking(False)
        self.raw.data.setblocking(False)

    def throw(self, message, descriptors: list[int]) -> None:
        sock = self.raw.control if message.control else self.raw.data
        if not throw(sock, message, descriptors) or not self._drain():
            self.raw.close()
            self._enter()

    def _drain(self) -> bool:
        """Read what the device says; False if it has hung up."""
        for sock in (self.raw.control, self.raw.data):
            while True:
                try:
                    _, received = channel.receive(sock)
                except BlockingIOError:
                    break
                except (channel.Disconnected, channel.ProtocolError):
                    return False
                channel.close_all(received)
        return True


@pytest.mark.parametrize("seed", [1, 20_000])
def test_raw_messages_hurt_nobody_else(
    seed: int, backend: htp.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    device = backend.create_device(name="car")
    graph = relu_graph(device.create_context(priority="high"), priority="high")
    pid = device.pid
    descriptors = assorted_descriptors()
    thrower = Thrower("car")
    for index, message in enumerate(messages(seed, COUNT // 2)):
        thrower.throw(message, descriptors)
        if index % 50 == 0:
            result = graph.execute_async({"x": ramp()}).result(PATIENCE_S)["y"]
            np.testing.assert_array_equal(result, np.maximum(ramp(), 0))
    thrower.raw.close()
    channel.close_all(descriptors)
    graph.execute_async({"x": ramp()}).result(PATIENCE_S)
    assert device.pid == pid
    assert device.restarts == 0
    assert thrower.connections > 10
    while len(device.info()["sessions"]) > 1:
        pass
    log = os.pread(device.link._process._log, 1 << 20, 0).decode(errors="replace")
    assert "Traceback" not in log, log  # all of it was foreseen
    # What is left is the device's own and the neighbour's: nothing of what was thrown.
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert not [link for link in links if "loose" in link]
    assert len(links) < 40
