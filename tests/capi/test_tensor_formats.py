"""Data formats of tensors through the C library: what a client says about its memory is heeded, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from tests.engine.native_head import NativeHead

PLACES = (0, 96)


@pytest.fixture
def device(lib_dir: Path) -> Iterator[htp.Device]:
    """Our own library in the vendor's place."""
    with htp.Backend(library=lib_dir / "libQnnHtp.so") as backend:
        yield backend.create_device(soc="SM8650")


def results(device: htp.Device, head: NativeHead) -> list[np.ndarray]:
    with device.create_context() as context:
        graph = head.build(context)
        graph.finalize()
        native = None if any(head.native) else False
        return [np.array(graph.execute(head.feeds(place, native=native))["y"]) for place in PLACES]


@pytest.mark.parametrize("head", [NativeHead(), NativeHead(tokens=32, native_out=True)], ids=["in", "in and out"])
def test_b5_a_native_kv_cache_gives_what_a_flat_one_gives(device: htp.Device, head: NativeHead) -> None:
    flat = results(device, dataclasses.replace(head, native=(False, False), native_out=False))
    for one, two in zip(results(device, head), flat, strict=True):
        assert np.count_nonzero(one != two) == 0
        assert len(np.unique(one)) > 8
