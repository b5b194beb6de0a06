"""A property says yes only to what can be used."""

from __future__ import annotations

import pytest

from openhtp.core.errors import UsageError
from openhtp.runtime.property import has_capability


@pytest.mark.parametrize("vendor", [False, True])
@pytest.mark.parametrize(
    "key", ["DEVICE_SUPPORT_INFRASTRUCTURE", "QNN_PROPERTY_DEVICE_SUPPORT_INFRASTRUCTURE", 1502]
)
def test_there_is_a_power_infrastructure_to_ask_for(key: str | int, vendor: bool) -> None:
    assert has_capability(key, vendor=vendor)


def test_names_and_numbers_mean_the_same() -> None:
    assert has_capability("GRAPH_SUPPORT_ASYNC_EXECUTION") is has_capability(304) is True
    assert has_capability("GRAPH_SUPPORT_SUBGRAPH") is has_capability(314) is False


@pytest.mark.parametrize("key", ["DEVICE_SUPPORT_MAGIC", 2, -1])
def test_an_unknown_key_is_told(key: str | int) -> None:
    with pytest.raises(UsageError, match="unknown") as caught:
        has_capability(key)
    assert caught.value.name == "QNN_PROPERTY_ERROR_UNKNOWN_KEY"
