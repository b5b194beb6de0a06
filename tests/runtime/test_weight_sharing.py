"""Weights that several graphs of a context have in common: stored and counted for each, or once if asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.program.binary import read_binary
from tests.runtime.test_stored_weights import FLOATS, X, dense

HALVES = FLOATS.nbytes // 2


def binary_of_two(device: htp.Device, **options: Any) -> bytes:
    with device.create_context(**options) as context:
        for name in ("a", "b"):
            dense(context, name=name)
        return context.get_binary()


def weights_counted(device: htp.Device) -> int:
    (domain,) = [domain for session in device.info()["sessions"] for domain in session["domains"]]
    return int(domain["memory"]["weights"])


@pytest.mark.parametrize(("shared", "copies"), [(False, 2), (True, 1)])
def test_common_weights_are_there_as_often_as_the_option_says(
    backend: htp.Backend, shared: bool, copies: int
) -> None:
    device = backend.create_device()
    binary = binary_of_two(device, weight_sharing_enabled=shared)
    assert copies * HALVES < len(binary) < copies * HALVES + 40_000
    with device.create_context_from_binary(binary) as context:
        assert copies * HALVES <= weights_counted(device) < copies * HALVES + 20_000
        one, two = (context.graph(name).execute({"x": X})["y0"] for name in ("a", "b"))
        np.testing.assert_array_equal(one, two)
        again = context.get_binary()
    assert len(again) == len(binary), "a binary keeps the choice of its maker"
    assert read_binary(again).info.weight_sharing is shared


def test_a_graph_of_another_vtcm_size_is_refused_where_weights_are_shared(backend: htp.Backend) -> None:
    device = backend.create_device(soc="SM8650")
    with device.create_context(weight_sharing_enabled=True) as context:
        dense(context, name="a", vtcm_mb=4)
        with pytest.raises(htp.UnsupportedFeature, match=r"'b' has 2 MiB of VTCM and another one 4 MiB"):
            dense(context, name="b", vtcm_mb=2)
        assert list(context.graphs) == ["a"]
        dense(context, name="b", vtcm_mb=4)
    with device.create_context(weight_sharing_enabled=True) as context:
        dense(context, name="a")
        dense(context, name="b", vtcm_mb=8)  # which is all there is
    with device.create_context() as context:
        dense(context, name="a", vtcm_mb=4)
        dense(context, name="b", vtcm_mb=2)
