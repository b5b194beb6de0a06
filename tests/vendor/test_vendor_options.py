"""Options of a graph that change results, on the vendor's library and here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.clamped_graphs import CLAMPED, Clamped, clamped_graph, encoding, exact_results

import openhtp as htp
from openhtp.vendor.library import find_library

pytestmark = pytest.mark.vendor

KERNEL, DEPTH, SIZE, FILTERS = 7, 3, 28, 32


@pytest.fixture(scope="module")
def library() -> Iterator[htp.Context]:
    if find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    with htp.Backend(library="vendor") as backend:
        yield backend.create_device().create_context()


@pytest.mark.parametrize("case", CLAMPED, ids=lambda case: case.name)
@pytest.mark.parametrize("off", [False, True], ids=["folded", "apart"])
def test_clamps_are_folded_as_the_library_folds_them(case: Clamped, off: bool, library: htp.Context) -> None:
    name = f"{case.name} {off}"
    graph = clamped_graph(library, name, case, 8, fold_relu_activation_into_conv_off=off)
    x, wanted = exact_results(case, 8)
    far = np.abs(graph.execute({"x": x})["y"].astype(np.int64) - wanted[off])
    step, before = encoding(case.result, 8).scale, encoding(case.between, 8).scale
    assert far.max() <= 1 + (before / step if off else 0)


@pytest.mark.parametrize("case", [case for case in CLAMPED if case.op == "ReluMinMax"], ids=lambda case: case.name)
def test_wide_clamps_are_folded_as_the_library_folds_them(case: Clamped, library: htp.Context) -> None:
    graph = clamped_graph(library, f"wide {case.name}", case, 16)
    x, (wanted, _) = exact_results(case, 16)
    assert np.abs(graph.execute({"x": x})["y"].astype(np.int64) - wanted).max() <= 8


def test_short_convolutions_with_lopsided_weights_are_exact_with_the_flag_only(library: htp.Context) -> None:
    """A tenth of the results is a step off without it; with it, and with symmetric weights, next to none is."""
    wrong = {off: _wrong_share(library, -100, short_depth_conv_on_hmx_off=off) for off in (False, True)}
    assert wrong[True] < 0.001
    assert 0.05 < wrong[False] < 0.2
    assert _wrong_share(library, -128) < 0.04


def _wrong_share(context: htp.Context, offset: int, **options: Any) -> float:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (1, SIZE, SIZE, DEPTH)).astype(np.uint8)
    weights = rng.integers(0, 255, (KERNEL, KERNEL, DEPTH, FILTERS)).astype(np.uint8)
    places = SIZE - KERNEL + 1
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64) - 120, (KERNEL, KERNEL), (1, 2))
    real = np.einsum("nxycij,ijcf->nxyf", windows, weights.astype(np.float64) + offset) * 0.02 * 0.01
    scale = (real.max() - real.min()) / 255
    quant = htp.ScaleOffset(scale, round(real.min() / scale))
    graph = context.create_graph(f"short {offset} {options}", **options)
    source = graph.add_tensor("x", x.shape, "ufixed8", quant=htp.ScaleOffset(0.02, -120), kind="app_write")
    filters = graph.add_tensor(
        "w", weights.shape, "ufixed8", quant=htp.ScaleOffset(0.01, offset), kind="static", data=weights
    )
    y = graph.add_tensor("y", (1, places, places, FILTERS), "ufixed8", quant=quant, kind="app_read")
    window = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
    graph.add_node("Conv2d", inputs=[source, filters], outputs=[y], params=window)
    graph.finalize()
    exact = np.clip(np.rint(real / scale) - quant.offset, 0, 255)
    return float((graph.execute({"x": x})["y"] != exact).mean())
