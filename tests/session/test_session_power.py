"""Votes and backend configs of sessions."""

from __future__ import annotations

import gc
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import PATIENCE_S

from openhtp import BadModel, InferenceSession, InvalidArgument, zoo
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.session import hosts


@pytest.fixture(autouse=True)
def nobody_else_has_a_device() -> None:
    """Sessions that tracebacks of other tests still hold are let go of first."""
    gc.collect()


@pytest.fixture(scope="module")
def model() -> bytes:
    return zoo.tiny_mlp()


def votes(session: InferenceSession) -> list[dict[str, Any]]:
    """Power configs on the session's device."""
    assert session.executable is not None
    configs: list[dict[str, Any]] = session.executable.device.info()["power"]["configs"]
    return configs


def feeds(session: InferenceSession) -> dict[str, Any]:
    return {item.name: np.zeros(item.shape, np.float32) for item in session.get_inputs()}


def with_mode(model: bytes, mode: str, **options: Any) -> InferenceSession:
    own = {"htp_performance_mode": mode, "enable_htp_fp16_precision": "1", **options}
    return InferenceSession(model, providers=["QNNExecutionProvider"], provider_options=[own])


def run_options(**entries: str) -> Any:
    options = onnxruntime.RunOptions()
    for name, value in entries.items():
        options.add_run_config_entry(f"qnn.{name}", value)
    return options


def test_a_mode_votes_until_the_session_is_closed(model: bytes) -> None:
    with with_mode(model, "default") as plain:
        assert votes(plain) == []
        with with_mode(model, "burst", rpc_control_latency="70") as session:
            (config,) = votes(session)
            assert (config["perf_profile"], config["rpc_control_latency_us"]) == ("burst", 70)
            with with_mode(model, "power_saver") as other:
                assert [each["perf_profile"] for each in votes(other)] == ["burst", "power_saver"]
        assert votes(plain) == []
    assert not hosts.devices


def test_a_session_that_failed_leaves_no_vote(model: bytes) -> None:
    with with_mode(model, "default") as plain:
        with pytest.raises(BadModel):
            with_mode(model[:-5] + b"12345", "burst")
        assert votes(plain) == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_votes_and_leaves_another(model: bytes, asynchronous: bool) -> None:
    with with_mode(model, "default") as session:
        options = run_options(htp_perf_mode="burst", htp_perf_mode_post_run="low_power_saver")
        if asynchronous:
            pending = session.run_async(None, feeds(session), run_options=options)
            pending.result(PATIENCE_S)
            session.run(None, feeds(session))
            while votes(session)[0]["perf_profile"] != "low_power_saver":
                pass
        else:
            session.run(None, feeds(session), options)
        (config,) = votes(session)
        assert config["perf_profile"] == "low_power_saver"
        session.run(None, feeds(session), run_options(rpc_control_latency="33"))
        assert votes(session)[0]["rpc_control_latency_us"] == 33


@pytest.mark.parametrize(
    "entries", [{"htp_perf_mode": "fast"}, {"htp_perf_mode_post_run": "slow"}, {"rpc_control_latency": "-1"}]
)
def test_bad_run_options_are_told(model: bytes, entries: dict[str, str]) -> None:
    with with_mode(model, "default") as session:
        with pytest.raises(InvalidArgument, match="expected"):
            session.run(None, feeds(session), run_options(**entries))
        assert votes(session) == []


def test_a_backend_config_reaches_device_context_graph_and_votes(
    model: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "htp.json").write_text(
        json.dumps(
            {
                "graphs": [{"graph_names": ["tiny_mlp"], "vtcm_mb": 2, "hvx_threads": 2}],
                "devices": [{"soc_model": 43, "cores": [{"perf_profile": "balanced", "rpc_polling_time": 77}]}],
            }
        )
    )
    outer = tmp_path / "config.json"
    outer.write_text(
        json.dumps(
            {
                "backend_extensions": {"shared_library_path": "x.so", "config_file_path": "htp.json"},
                "context_configs": {"async_execute_queue_depth": 33, "context_priority": "high"},
            }
        )
    )
    with caplog.at_level(logging.WARNING), InferenceSession(model, backend_config=outer) as session:
        loaded = session.executable
        assert loaded is not None
        named = loaded.graph.name
        assert loaded.device.soc == "SM8550"
        assert loaded.context.opened.places.depth == 33
        (config,) = votes(session)
        assert (config["perf_profile"], config["rpc_polling_us"]) == ("balanced", 77)
        if named == "tiny_mlp":
            assert loaded.graph.options.hvx_threads == 2
        else:
            assert f"this one is called {named!r}" in caplog.text


def test_what_is_asked_for_directly_comes_first(model: bytes) -> None:
    config = {"devices": [{"soc_model": 43, "cores": [{"perf_profile": "balanced"}]}]}
    own = {"htp_performance_mode": "burst"}
    with InferenceSession(
        model,
        providers=["QNNExecutionProvider"],
        provider_options=[own],
        soc="SM8650",
        queue_depth=5,
        backend_config=config,
    ) as session:
        assert session.executable is not None
        assert session.executable.device.soc == "SM8650"
        assert votes(session)[0]["perf_profile"] == "burst"


def test_a_bad_backend_config_is_told_with_its_place(model: bytes) -> None:
    with pytest.raises(InvalidArgument, match="/devices/0/cores/0/perf_profile is 'fast'"):
        InferenceSession(model, backend_config={"devices": [{"cores": [{"perf_profile": "fast"}]}]})
    assert not hosts.devices
