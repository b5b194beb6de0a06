"""How long each node of a part on the CPU took, as ONNX Runtime itself measures it.

The runtime profiles a session from its making to its end, so a run whose nodes are to be told has one of its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from openhtp.session.cpu import cpu_session

_OF_A_NODE = "_kernel_time"


class NodeTime(NamedTuple):
    """A node as the runtime ran it: of several that it made one, the name of one of them."""

    name: str
    op: str
    us: int


class ProfiledSession:
    """For one run. Used in a ``with`` block, after which its file is gone."""

    def __init__(self, make: Callable[..., Any], model: bytes | Path, options: Any) -> None:
        """``options`` are taken over and changed."""
        self._folder = tempfile.TemporaryDirectory(prefix="openhtp-profile-")
        try:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(self._folder.name) / "run")
            self._session = cpu_session(make, model, options)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> ProfiledSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Any], run_options: Any) -> list[Any]:
        """As the runtime's own."""
        found: list[Any] = self._session.run(list(outputs), dict(feeds), run_options)
        return found

    def times(self) -> tuple[NodeTime, ...]:
        """Of the run, in the order in which the nodes ran."""
        told = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
        return tuple(
            NodeTime(event["name"].removesuffix(_OF_A_NODE), event["args"].get("op_name", ""), int(event["dur"]))
            for event in told
            if event.get("cat") == "Node" and event["name"].endswith(_OF_A_NODE)
        )
