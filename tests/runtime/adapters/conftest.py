"""Adapters are exchanged on a device of its own and on one in this process."""

from __future__ import annotations

import pytest

import openhtp as htp


@pytest.fixture(params=["rpc", "inprocess"])
def device(backend: htp.Backend, request: pytest.FixtureRequest) -> htp.Device:
    return backend.create_device(transport=request.param)


@pytest.fixture
def context(device: htp.Device) -> htp.Context:
    return device.create_context()
