"""Our own C library, and a device with a name, for all tests of the contract."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.rpc_link import RpcLink
from tests.capi.conftest import ROOT, build_script


@pytest.fixture(scope="session")
def lib_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lib")
    if not build_script().compile_libraries(ROOT, folder):
        pytest.skip("there is no C compiler")
    return folder


@pytest.fixture(scope="module")
def named() -> Iterator[str]:
    """A device with a name, which lets its clients order faults."""
    name = f"contract-{os.getpid()}"
    starter = RpcLink(DeviceOptions(name=name, allow_faults=True), lambda _: None)
    yield name
    starter.close()
