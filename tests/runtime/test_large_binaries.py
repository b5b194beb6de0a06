"""What large binaries take of the device's memory, measured."""

from __future__ import annotations

import pytest

from openhtp.bench import loading


@pytest.mark.slow
def test_memory_follows_what_is_shared_and_the_read_budget() -> None:
    *_, found = loading.measure_binaries(0, loading.BINARY_STEPS)
    assert isinstance(found, loading.BinaryFigures)
    assert found.metadata_file_bytes > 1 << 30
    assert found.shared_file_ratio <= 1.1
    assert found.shared_memory_ratio <= 1.1
    assert 0 < found.peak_over_with_budget_bytes <= found.budget_bytes
