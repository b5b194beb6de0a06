"""Damaged context binaries, in short here, and 20,000 of them by ``make corrupt-binaries``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import openhtp as htp
from openhtp.program.binary import read_binary
from openhtp.program.coding import Coding
from tests.hostile.corrupt_binaries import CORRUPTIONS, attack, good_binary
from tests.program.forging import parts_of, put_together


def test_every_damaged_binary_is_an_error(backend: htp.Backend, tmp_path: Path) -> None:
    found = attack(backend.create_device(), 300, 1, tmp_path)
    assert found.total() == 300


@pytest.mark.slow
def test_twenty_thousand_damaged_binaries(backend: htp.Backend, tmp_path: Path) -> None:
    found = attack(backend.create_device(), 20_000, 7, tmp_path)
    assert found.total() == 20_000


def test_the_tools_change_nothing_by_themselves(shared_device: htp.Device) -> None:
    good = good_binary(shared_device)
    assert put_together(*parts_of(good)) == good
    shared_device.validate_binary(good, check_data=True)
    with shared_device.create_context_from_binary(good) as context:
        assert context.graph("net").was_prepared
        assert context.graph("wide").was_prepared
    opened = read_binary(good)
    graphs = [opened.packed(name) for name in opened.graph_names]
    assert len(graphs) == 8
    assert {blob.record.coding for graph in graphs for blob in graph.blobs} == set(Coding), "all codings"
    rng = random.Random(0)
    for corruption in set(CORRUPTIONS):
        assert any(corruption(rng, good) != good for _ in range(20)), corruption.__name__
