from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from openhtp.vendor import oracle
from openhtp.vendor.library import find_library
from openhtp.vendor.worker import VendorProcess

MISSING = "the onnxruntime-qnn package is not installed"


@pytest.fixture(autouse=True)
def _needs_library(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("vendor") and find_library() is None:
        pytest.skip(MISSING)


@pytest.fixture(scope="module")
def process() -> Iterator[VendorProcess]:
    """One v73 process for a module's tests that do not hurt it."""
    if find_library() is None:
        pytest.skip(MISSING)
    with VendorProcess(soc="SM8550", timeout_s=60) as started:
        yield started


@pytest.fixture(scope="module")
def oracle_processes() -> Iterator[None]:
    with contextlib.closing(oracle):
        yield
