"""``defaults="document"``: what nobody asks for is as the vendor's pages have it."""

from __future__ import annotations

import logging

import pytest

import openhtp as htp
from tests.conftest import ramp, relu_graph


def facts(device: htp.Device, **options: object) -> tuple[str, int | None, str]:
    graph = device.create_context().create_graph("g", **options)  # type: ignore[arg-type]
    return device.soc, graph.options.vtcm_bytes, graph.options.precision.value


@pytest.mark.parametrize("of_backend", [True, False])
def test_c9_by_one_switch(of_backend: bool) -> None:
    switch = {"defaults": "document"}
    with htp.Backend(**(switch if of_backend else {})) as backend:
        device = backend.create_device(host="thread", **({} if of_backend else switch))  # type: ignore[arg-type]
        assert facts(device) == ("SM8350", 4 << 20, "float32")
        graph = relu_graph(device.create_context())
        assert (graph.execute({"x": ramp() / 3})["y"] == (ramp() / 3).clip(0)).all()
        own = backend.create_device(host="thread", defaults="openhtp")
        assert facts(own) == ("SM8650", None, "float16")


def test_c9_what_is_asked_for_comes_first() -> None:
    config = {"devices": [{"soc_model": 43}], "graphs": [{"graph_names": ["g"], "vtcm_mb": 2}]}
    with htp.Backend(defaults="document") as backend:
        device = backend.create_device(host="thread", config=config)
        assert facts(device) == ("SM8550", 2 << 20, "float32")
        assert facts(device, vtcm_mb="max", precision="float16") == ("SM8550", 0, "float16")
        assert facts(backend.create_device(host="thread", soc="QCS6490")) == ("QCS6490", 2 << 20, "float32")


def test_c9_other_words_are_refused() -> None:
    with pytest.raises(htp.InvalidArgument, match="defaults is 'vendor'; expected one of openhtp, document"):
        htp.Backend(defaults="vendor")
    with htp.Backend() as backend, pytest.raises(htp.InvalidArgument, match="expected one of openhtp, document"):
        backend.create_device(defaults="page")


def test_c9_a_chip_that_nobody_named_is_told(backend: htp.Backend, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        backend.create_device(host="thread")
        backend.create_device(host="thread", soc="SM8550")
    (told,) = [record.message for record in caplog.records if "no chip was named" in record.message]
    assert "SM8650" in told
    assert "SM8350" in told
