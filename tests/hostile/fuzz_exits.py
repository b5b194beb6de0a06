"""Programs that end with work under way: by falling off the end, by exits and signals, with slow callbacks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

from tests.hostile.leaks import Holdings
from tests.hostile.running import ROOT
from tests.hostile.tally import Budget, Watch

SHORT = 3
"""Rounds of the short form."""

_PATIENCE = 120.0
"""Seconds in which a program must have started, worked and ended."""

_PROGRAM = """
import os, signal, sys, threading, time
import openhtp as htp
from tests.conftest import ramp, relu_graph

backend = htp.Backend()
device = backend.create_device()
print(device.pid, flush=True)
context = device.create_context(queue_depth=100)
graph = relu_graph(context)
seen = []
def notify(number, status):
    time.sleep({slow})
    seen.append(number)
for number in range({count}):
    graph.execute_async({{"x": ramp()}}, notify=notify, notify_param=number)
{end}
"""

# How it ends, and which exit codes that may have.
_ENDS: dict[str, tuple[int, ...]] = {
    "pass": (0,),
    "sys.exit(3)": (3,),
    "raise KeyboardInterrupt": (-signal.SIGINT, 130, 1),
    "raise RuntimeError('of the attack')": (1,),
    "os._exit(4)": (4,),
    "os.kill(os.getpid(), signal.SIGKILL)": (-signal.SIGKILL,),
    "os.kill(os.getpid(), signal.SIGTERM)": (-signal.SIGTERM,),
    "os.kill(device.pid, signal.SIGKILL)": (0,),
    "backend.free()": (0,),
    "backend.free(); assert sorted(seen) == list(range({count})), seen": (0,),
    "threading.Thread(target=backend.free).start()": (0,),
    "del backend, device, context, graph": (0,),
}
_EXPECTED = ("KeyboardInterrupt", "of the attack")


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One program after the other."""
    holdings = Holdings()
    while budget:
        end = rng.choice(list(_ENDS))
        count, slow = rng.randint(0, 60), rng.choice((0, 0, 0.001, 0.02))
        program = _PROGRAM.format(count=count, slow=slow, end=end.format(count=count))
        with watch.call(f"{count} executions, callbacks of {slow} s, then: {end}", limit=2 * _PATIENCE):
            _run(program, _ENDS[end], watch)
    holdings.check(watch)


def _run(program: str, codes: tuple[int, ...], watch: Watch) -> None:
    words = [sys.executable, "-X", "dev", "-c", program]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        _, errors = process.communicate()
        watch.found("hang", f"the program did not end\n{errors[-3000:]}")
        return
    if process.returncode not in codes:
        watch.found("wrong", f"it ended with {process.returncode}; expected one of {codes}\n{errors[-3000:]}")
    elif "Traceback" in errors and not any(words in errors for words in _EXPECTED):
        watch.found("stray", f"at exit:\n{errors[-3000:]}")
    if "ResourceWarning" in errors:
        watch.found("leak", errors[-3000:])
    if out.strip() and not _ends(int(out)):
        watch.found("leak", f"the device process {out.strip()} outlives its client")


def _ends(pid: int) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
