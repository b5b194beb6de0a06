"""What a process holds, before and after: descriptors, threads, children, shared memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

from tests.hostile.tally import LONGEST_CALL, Watch

_PATIENCE = LONGEST_CALL


class Holdings:
    """What was held when this was made; ``check`` says what has been added since."""

    def __init__(self) -> None:
        gc.collect()
        self._before = _held()

    def check(self, watch: Watch) -> None:
        """Report what does not go away."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            gc.collect()
            more = {what: held - self._before[what] for what, held in _held().items()}
            more = {what: extra for what, extra in more.items() if extra}
            if not more or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        for what, extra in more.items():
            watch.found("leak", f"{len(extra)} more {what}: {sorted(extra)[:10]}")


def open_files(pid: int | str = "self") -> set[str]:
    """Descriptors and what they lead to. Those of Python's own making are left out."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if f"/proc/{os.getpid()}/fd" not in target and not target.endswith("/fd"):
            found.add(f"{path.name} {target}")
    return found


def _held() -> dict[str, set[str]]:
    shared = Path("/dev/shm")
    return {
        "descriptors": open_files(),
        "threads": {f"{thread.name} {thread.ident}" for thread in threading.enumerate()},
        "children": children(),
        "shared memory": {path.name for path in shared.iterdir() if "openhtp" in path.name},
    }


def children() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update((task / "children").read_text().split())
        except OSError:
            continue
    return found
