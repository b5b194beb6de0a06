from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from openhtp.testing import oracle
from openhtp.vendor.backend import LibraryBackend, LibraryDevice
from openhtp.vendor.library import find_library, load

MISSING = "the onnxruntime-qnn package is not installed"


@pytest.fixture(autouse=True)
def _needs_library(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("vendor") and find_library() is None:
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def opened() -> Iterator[LibraryDevice]:
    """The library in this process, as a v73: it cannot be another chip in the same process."""
    if find_library() is None:
        pytest.skip(MISSING)
    with LibraryBackend(load(), soc="SM8550") as backend:
        yield backend.create_device(soc="SM8550")


@pytest.fixture(scope="module")
def oracle_devices() -> Iterator[None]:
    with contextlib.closing(oracle):
        yield
