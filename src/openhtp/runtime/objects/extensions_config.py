"""A backend extensions config that was given for a device: it holds for all that is made there.

What a call gives directly comes before the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openhtp.options import GRAPH, ContextOrigin

if TYPE_CHECKING:
    from openhtp.config import BackendConfig, Source
    from openhtp.runtime.objects.device import Device


class ExtensionsConfig:
    """Options for devices, contexts and graphs. Without a config it adds nothing."""

    __slots__ = ("_config",)

    def __init__(self, source: Source | None) -> None:
        self._config: BackendConfig | None = None
        if source is not None:
            from openhtp.config import as_config  # needed by those who have a config

            self._config = as_config(source)

    def device(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options of the device."""
        return {**({} if self._config is None else self._config.device_options()), **given}

    def context(self, given: Mapping[str, Any], origin: ContextOrigin) -> dict[str, Any]:
        """Options of a context that comes to be in this way."""
        return {**({} if self._config is None else self._config.context_options(origin)), **given}

    def graph(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a graph. What is given in another unit takes the place of what the config has."""
        if self._config is None:
            return dict(given)
        units = {GRAPH.option(option).same_as or option for option in given if option in GRAPH}
        own = {
            option: value
            for option, value in self._config.graph_options(name).items()
            if (GRAPH.option(option).same_as or option) not in units
        }
        return {**own, **given}

    def vote(self, device: Device) -> None:
        """Vote as the config says."""
        if self._config is not None:
            self._config.vote(device)
