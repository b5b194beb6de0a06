"""What ``SessionOptions.enable_profiling`` asks for: a file of events as ONNX Runtime writes it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.step_names import StepOps

_STEPS = 407


class EventFile:
    """Collects events and writes them at the end: a JSON list, times in microseconds since ``start_ns``."""

    def __init__(self, prefix: str, start_ns: int) -> None:
        self.start_ns = start_ns
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")[:-3]
        self.path = f"{prefix}_{stamp}.json"
        self._events: list[dict[str, Any]] = []
        self._is_open = True

    def add(
        self, category: str, name: str, begin_ns: int, end_ns: int, args: dict[str, Any] | None = None
    ) -> None:
        """Something that took time."""
        if self._is_open:
            self._events.append(
                {
                    "cat": category,
                    "pid": os.getpid(),
                    "tid": threading.get_native_id(),
                    "dur": max(0, end_ns - begin_ns) // 1000,
                    "ts": max(0, begin_ns - self.start_ns) // 1000,
                    "ph": "X",
                    "name": name,
                    "args": args or {},
                }
            )

    def add_steps(self, profile: Profile, provider: str, ops: Sequence[StepOps], end_ns: int) -> None:
        """Every step of a run that ended then, with the ops that it computes."""
        steps = profile.event(_STEPS)
        times = [] if steps is None else [step.value * 1000 for step in steps.events]
        # The device tells how long each took; that the last one ended with the run.
        at = end_ns - sum(times)
        for index, duration in enumerate(times):
            names, kinds = ops[index] if index < len(ops) else ((f"step {index}",), ("",))
            self.add_nodes(provider, index, names, kinds, at, at + duration)
            at += duration

    def add_nodes(
        self, provider: str, index: int, names: Sequence[str], kinds: Sequence[str], begin_ns: int, end_ns: int
    ) -> None:
        """Nodes that ran together."""
        args = {
            "op_name": "+".join(dict.fromkeys(kinds)),
            "provider": provider,
            "node_index": str(index),
            "nodes": list(names),
        }
        self.add("Node", f"{names[0]}_kernel_time", begin_ns, end_ns, args)

    def close(self) -> None:
        """Write the file; events that come later are dropped."""
        if self._is_open:
            self._is_open = False
            Path(self.path).write_text(json.dumps(self._events, indent=0), encoding="utf-8")
