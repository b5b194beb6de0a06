"""A million queued executions of a tiny graph from eight threads: each notified once, and nothing grows."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

EXECUTIONS = int(os.environ.get("OPENHTP_SOAK", "1000000"))
THREADS = 8
MOST_GROWTH = 20 * 1024 * 1024


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


class Clerk:
    """Ticks off notifications. Only the notify thread writes, so it needs no lock."""

    def __init__(self, executions: int) -> None:
        self.ticks = np.zeros(executions, np.uint8)
        self.seen = 0
        self.bad = 0
        self.all = threading.Event()

    def __call__(self, number: object, status: int) -> None:
        self.ticks[number] += 1  # type: ignore[call-overload]
        self.bad += status != 0
        self.seen += 1
        if self.seen == len(self.ticks):
            self.all.set()


def queue_all(graphs: list[htp.Graph], executions: int) -> Clerk:
    clerk = Clerk(executions)
    share = executions // THREADS

    def work(thread: int) -> None:
        graph = graphs[thread]
        memory = graph.context.register_memory(128)
        x, y = memory.array(graph.tensors["x"]), memory.array(graph.tensors["y"])
        x[:] = ramp()
        inputs, outputs = {"x": x}, {"y": y}
        for number in range(thread * share, (thread + 1) * share):
            graph.execute_async(inputs, outputs, notify=clerk, notify_param=number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clerk.all.wait(PATIENCE_S)
    return clerk


@pytest.mark.soak
def test_a_million_executions(backend: htp.Backend, capsys: pytest.CaptureFixture[str]) -> None:
    device = backend.create_device()
    context = device.create_context(queue_depth=100)
    graphs = [relu_graph(context, f"g{n}") for n in range(THREADS)]
    queue_all(graphs, 20 * THREADS * 100)  # caches fill, pools grow to their size
    gc.collect()
    pids = {"client": os.getpid(), "device": device.pid}
    ticks_bytes = EXECUTIONS  # the clerk's own sheet
    before = {name: resident_bytes(pid) for name, pid in pids.items()}
    clerk = queue_all(graphs, EXECUTIONS)
    gc.collect()
    growth = {name: resident_bytes(pid) - before[name] for name, pid in pids.items()}
    growth["client"] -= ticks_bytes
    with capsys.disabled():
        told = ", ".join(f"{name} {grown / 2**20:+.1f} MiB" for name, grown in growth.items())
        print(f"\n{clerk.seen} executions, growth: {told}")  # noqa: T201
    assert clerk.bad == 0
    assert (clerk.ticks == 1).all()
    assert all(grown <= MOST_GROWTH for grown in growth.values()), growth
