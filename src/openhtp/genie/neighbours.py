"""Other networks on the NPU that Genie uses: the clients of a scenario, over and over, while a dialog lives."""

from __future__ import annotations

from pathlib import Path

from openhtp.core.threads import OwnThread
from openhtp.planning import load_scenario
from openhtp.planning.live import LiveStage
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.device import Device


class NpuNeighbours:
    """Runs a scenario's clients beside Genie's contexts, on a thread of its own.

    Only clients and events of the scenario count: the device is the one that Genie has.
    """

    def __init__(self, scenario: Path, soc: str) -> None:
        self._scenario = load_scenario(scenario)
        self._soc = soc
        self._backend = Backend()
        self._stage = LiveStage(self._scenario, open_device=self._open)
        self._thread = OwnThread(self._play, name="openhtp-genie-neighbours")
        self._ends = False

    def __enter__(self) -> NpuNeighbours:
        self._stage.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends = True
        self._stage.stop()
        self._thread.join()
        self._stage.close()
        self._backend.free()

    def _open(self) -> Device:
        return self._backend.create_device(soc=self._soc, host="thread", npu="shared")

    def _play(self) -> None:
        while not self._ends:
            self._stage.play()
