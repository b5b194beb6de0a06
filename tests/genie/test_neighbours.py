"""A scenario beside Genie: when its clients run."""

from __future__ import annotations

from pathlib import Path

import pytest

from openhtp.core.latches import Latch
from openhtp.genie.host import NpuNeighbours
from openhtp.planning.live import LiveStage

_CAMERA = """
name: a camera
unit: ms
duration: 20
device: {soc: SM8650}
clients: [{name: camera}]
events: [{client: camera, every: 10, run: 1}]
"""


def test_neighbours_run_from_when_they_are_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before: their executions would line up while Genie loads its graphs."""
    (tmp_path / "camera.yaml").write_text(_CAMERA)
    played, has_begun, play = [], Latch(), LiveStage.play

    def watched(stage: LiveStage) -> None:
        played.append(stage)
        has_begun.unlock()
        play(stage)

    monkeypatch.setattr(LiveStage, "play", watched)
    with NpuNeighbours(tmp_path / "camera.yaml", "SM8650"):
        pass
    assert not played, "the dialog could not be opened, say"
    with NpuNeighbours(tmp_path / "camera.yaml", "SM8650") as neighbours:
        neighbours.begin()
        has_begun.wait()
    assert played
