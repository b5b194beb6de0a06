"""Results that depend on options: what folding a clamp into a convolution loses, and short convolutions.

Every expected number is computed here, in integers and exact scales; the vendor's library computes the same
(tests/vendor/test_vendor_options.py).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import openhtp as htp
from openhtp.core import telling
from openhtp.runtime.objects import notices
from tests.clamped_graphs import CLAMPED, Clamped, clamped_graph, encoding, exact_results


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "told", set())
    monkeypatch.setattr(notices, "_float_chips", {})


@pytest.mark.parametrize("case", CLAMPED, ids=lambda case: case.name)
@pytest.mark.parametrize("bits", [8, 16])
def test_a_clamp_is_folded_with_the_loss_that_the_documents_warn_of(
    case: Clamped, bits: int, context: htp.Context
) -> None:
    folded = clamped_graph(context, f"folded {case.name} {bits}", case, bits)
    apart = clamped_graph(
        context, f"apart {case.name} {bits}", case, bits, fold_relu_activation_into_conv_off=True
    )
    x, (wanted_folded, wanted_apart) = exact_results(case, bits)
    _expect_near(folded.execute({"x": x})["y"], wanted_folded)
    _expect_near(apart.execute({"x": x})["y"], wanted_apart)
    # More than the steps of either encoding.
    lost = np.abs(wanted_folded - wanted_apart).max() * encoding(case.result, bits).scale
    assert (lost > 0.2) == case.loses(bits)


@pytest.mark.parametrize("case", CLAMPED, ids=lambda case: case.name)
@pytest.mark.parametrize("off", [False, True])
def test_both_encodings_count_whatever_reads_the_result(case: Clamped, off: bool, context: htp.Context) -> None:
    graph = clamped_graph(
        context, f"read {case.name} {off}", case, 8, real=True, fold_relu_activation_into_conv_off=off
    )
    x, wanted = exact_results(case, 8)
    quant = encoding(case.result, 8)
    got = np.rint(graph.execute({"x": x})["z"] / quant.scale) - quant.offset
    _expect_near(got, wanted[off])


def _expect_near(got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    """Equal, up to a step where a result lies half-way between two."""
    far = np.abs(got.astype(np.int64) - wanted)
    assert far.max() <= 1
    assert (far != 0).mean() < 0.01


def test_a_loss_is_told_of_once_and_only_where_there_is_one(
    context: htp.Context, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for case in CLAMPED:
            clamped_graph(context, f"told {case.name}", case, 8)
    told = [record.message for record in caplog.records if "is folded into" in record.message]
    assert len(told) == sum(case.loses(8) for case in CLAMPED)
    assert all("fold_relu_activation_into_conv_off" in message for message in told)


def short_graph(context: htp.Context, name: str, offset: int, depth: int = 3, **options: Any) -> htp.Graph:
    graph = context.create_graph(name, **options)
    data = np.random.default_rng(0).integers(0, 255, (3, 3, depth, 8)).astype(np.uint8)
    x = graph.add_tensor("x", (1, 8, 8, depth), "ufixed8", quant=htp.ScaleOffset(0.02, -120), kind="app_write")
    w = graph.add_tensor("w", data.shape, "ufixed8", quant=htp.ScaleOffset(0.01, offset), kind="static", data=data)
    y = graph.add_tensor("y", (1, 6, 6, 8), "ufixed8", quant=htp.ScaleOffset(0.2, -128), kind="app_read")
    graph.add_node("Conv2d", inputs=[x, w], outputs=[y], params={"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]})
    graph.finalize()
    return graph


def test_short_convolutions_with_lopsided_weights_are_told_of(
    context: htp.Context, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        on = short_graph(context, "short lopsided", -100)
        for name, offset, depth, options in (
            ("short symmetric", -128, 3, {}),
            ("long lopsided", -100, 8, {}),
            ("short lopsided off", -100, 3, {"short_depth_conv_on_hmx_off": True}),
        ):
            off = short_graph(context, name, offset, depth, **options)
    told = [record.message for record in caplog.records if "not symmetric" in record.message]
    assert len(told) == 1
    assert "'short lopsided'" in told[0]
    assert "exact here" in told[0]
    x = np.random.default_rng(1).integers(0, 255, (1, 8, 8, 3)).astype(np.uint8)
    assert (on.execute({"x": x})["y"] == off.execute({"x": x})["y"]).all()


def test_half_precision_on_both_generations_is_told_of_once(
    shared_backend: htp.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    results = []
    with caplog.at_level(logging.WARNING):
        for soc in ("SM8550", "SM8650", "SM8550"):
            with shared_backend.create_device(soc=soc) as device:
                graph = device.create_context().create_graph("floats")
                x = graph.add_tensor("x", (1, 64), "float32", kind="app_write")
                data = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
                w = graph.add_tensor("w", (64, 64), "float32", kind="static", data=data)
                y = graph.add_tensor("y", (1, 64), "float32", kind="app_read")
                graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
                graph.finalize()
                results.append(graph.execute({"x": np.linspace(0, 3, 64, dtype=np.float32)[None]})["y"])
    told = [record.message for record in caplog.records if "same results here" in record.message]
    assert len(told) == 1
    assert "SM8550 and SM8650" in told[0]
    assert (results[0] == results[1]).all()
