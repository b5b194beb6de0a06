"""Power votes of one configuration, which stand on every device that a client's handle comes to."""

from __future__ import annotations

import contextlib
from typing import Any

from openhtp.hw.power import DcvsVote
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.power import PowerConfig

waiting: list[StandingVotes] = []
"""Votes that were made before there was a device to vote on."""


class StandingVotes:
    """What was voted under one number. Devices come and go, and the votes stand on each that it means."""

    def __init__(self, core: int) -> None:
        self._core = core
        self._standing: dict[str, Any] = {}
        self._configs: list[PowerConfig] = []

    def stand_on(self, device: Device) -> None:
        """Vote on one more device what was voted so far; those that are gone are forgotten."""
        config = device.create_power_config(self._core)
        if self._standing:
            config.set(**self._standing)
        self._configs = [*(one for one in self._configs if one.alive), config]

    def change(self, given: dict[str, Any]) -> None:
        """Vote, on all devices or, if it is refused, on none."""
        for config in self._configs:
            if config.alive or config is self._configs[-1]:  # if all are lost, the last one says so
                config.set(**given)
        old = self._standing.get("dcvs")
        self._standing |= given
        if isinstance(old, DcvsVote) and "dcvs" in given:
            self._standing["dcvs"] = given["dcvs"].over(old)

    def withdraw(self) -> None:
        """Take all votes back; those on devices that are gone went with them."""
        with contextlib.suppress(ValueError):
            waiting.remove(self)
        for config in self._configs:
            if config.alive:
                config.destroy()
